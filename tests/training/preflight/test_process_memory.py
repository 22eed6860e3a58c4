from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from saccade.training.preflight import process_memory as memory
from saccade.training.preflight.process_memory import (
    available_memory,
    cgroup_free_memory,
    memory_in_use,
    peak_memory,
    reset_peak_memory,
)

CPU = torch.device("cpu")
MEGABYTE = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_peak_memory_is_measured_and_reset() -> None:
    """Runs in a new process: this one may have free memory from other tests."""
    alone("test_process_memory", "highest_mark")


def alone(module: str, function: str) -> None:
    """Call a function of a test module in a new process."""
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]!r}; import {module}; {module}.{function}()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def highest_mark() -> None:
    before = memory_in_use(CPU)
    reset_peak_memory(CPU)
    large = torch.ones(100 * MEGABYTE, dtype=torch.uint8)
    del large
    assert peak_memory(CPU) - before > 80 * MEGABYTE
    reset_peak_memory(CPU)
    assert peak_memory(CPU) - before < 80 * MEGABYTE


def test_available_memory_is_positive() -> None:
    available = available_memory(CPU)
    assert available is None or available > memory_in_use(CPU)


def test_without_proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PROCESS", tmp_path / "none")
    monkeypatch.setattr(memory, "SYSTEM", tmp_path / "none")
    assert peak_memory(CPU) > MEGABYTE
    assert available_memory(CPU) is None


class TestControlGroups:
    @pytest.fixture
    def system(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(memory, "PROCESS", tmp_path)
        monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
        return tmp_path

    def limit(self, folder: Path, names: tuple[str, str, str], values: tuple[str, int, int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(values[0])
        (folder / names[1]).write_text(str(values[1]))
        (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {values[2]}\n")

    def test_version_2(self, system: Path) -> None:
        names = ("memory.max", "memory.current", "inactive_file")
        (system / "cgroup").write_text("0::/jobs/mine\n")
        self.limit(system / "groups" / "jobs" / "mine", names, ("1000\n", 700, 100))
        self.limit(system / "groups" / "jobs", names, ("max\n", 700, 100))
        assert list(cgroup_free_memory()) == [400]

    def test_version_1_inside_a_container(self, system: Path) -> None:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        (system / "cgroup").write_text("9:cpu:/x\n4:memory:/outside/of/the/container\n0::/\n")
        self.limit(system / "groups" / "memory", names, ("5000", 6000, 0))
        assert list(cgroup_free_memory()) == [0]

    def test_without_cgroups(self, system: Path) -> None:
        assert list(cgroup_free_memory()) == []
        (system / "cgroup").write_text("4:memory:/\n")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        self.limit(system / "groups" / "memory", names, ("9223372036854771712", 6000, 0))
        assert list(cgroup_free_memory()) == []

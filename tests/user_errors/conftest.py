from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import contents, make_workspace

from saccade.ops.dispatch import kernel_level

SECONDS = 30  # for one try


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the tries, which is the current one."""
    folder = tmp_path_factory.mktemp("user-errors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("SACCADE_DATA", ".")
        patch.setenv("COLUMNS", "200")
        make_workspace(folder)
        shutil.copytree(folder, backup_of(folder), symlinks=True, ignore=shutil.ignore_patterns("pipe"))
        yield folder


def backup_of(folder: Path) -> Path:
    """Return the path of the copy of the workspace."""
    return folder.with_name(f"{folder.name}-backup")


@pytest.fixture(scope="module")
def pristine(workspace: Path) -> dict[str, str]:
    """The contents of the workspace before the first try."""
    return contents(workspace)


@pytest.fixture
def time_limit() -> Iterator[None]:
    """Interrupt a try that hangs."""

    def interrupt(*_: object) -> None:
        raise AssertionError(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def unchanged(workspace: Path, pristine: dict[str, str]) -> Iterator[list[str]]:
    """Check that a try changes nothing in the workspace except the names in this list; remove what it created."""
    # Without kernels the default engine is CTranslate2, which caches its conversion in the model folder.
    may_write: list[str] = [] if kernel_level() else ["model/ctranslate2"]
    yield may_write
    after = contents(workspace)
    changed = [name for name in {**pristine, **after} if pristine.get(name) != after.get(name)]
    unexpected = [name for name in changed if not any(name == one or name.startswith(f"{one}/") for one in may_write)]
    for name in sorted(after.keys() - pristine.keys(), reverse=True):
        path = workspace / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in changed:
        if name in pristine and not (backup_of(workspace) / name).is_dir():
            (workspace / name).unlink(missing_ok=True)
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(backup_of(workspace) / name, workspace / name, follow_symlinks=False)
    assert not unexpected

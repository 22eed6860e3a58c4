"""Shell commands whose standard streams are closed, full or broken: each ends with the right exit code."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from table import rows

ROWS = rows("descriptors.txt")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device /dev/full")
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row, marks=() if row[1] == "*" else pytest.mark.slow) for row in ROWS]
)
def test_command_with_broken_streams(row: str, workspace: Path, unchanged: list[str]) -> None:
    code, _, text = row.partition(" ")
    command, _, written = text.partition(" => ")
    unchanged += written.split()
    program = shlex.join([sys.executable, "-m", "saccade.cli.main"])
    done = subprocess.run(
        ["bash", "-c", command.replace("$S", program)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=workspace,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == int(code.removesuffix("*")), done.stderr
    if done.returncode:
        assert done.stderr.splitlines()[-2].startswith("saccade: error: "), done.stderr
        assert done.stderr.splitlines()[-1].startswith("  "), done.stderr

"""The two scripts that kill processes with SIGKILL: few kills in `make test`, many in `make test-all`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_script(name: str, kills: int) -> str:
    """Run a script in its own process: it forks, and must not inherit the threads of the tests."""
    words = [sys.executable, str(HERE / name), "--kills", str(kills)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ten_kills_while_saving():
    assert run_script("kill_saves.py", 10).startswith("10 kills")


def test_four_kills_of_runs():
    assert "4 kills in" in run_script("kill_runs.py", 4)


@pytest.mark.slow
def test_two_hundred_kills_while_saving():
    assert run_script("kill_saves.py", 200).startswith("200 kills")


@pytest.mark.slow
def test_a_hundred_kills_of_runs():
    assert "100 kills in" in run_script("kill_runs.py", 100)

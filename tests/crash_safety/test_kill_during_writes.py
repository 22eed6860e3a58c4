"""The two trials with SIGKILL; a few kills in `make test`, all of them in `make test-all`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def trial(name: str, kills: int) -> str:
    """Run a script in a process of its own: it forks, and must not inherit the threads of the tests."""
    words = [sys.executable, str(HERE / name), "--kills", str(kills)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_few_kills_while_saving():
    assert "none torn, none lost" in trial("kill_saves.py", 10)


def test_a_few_kills_of_runs():
    assert "every run ended as the undisturbed one" in trial("kill_runs.py", 4)


@pytest.mark.slow
def test_two_hundred_kills_while_saving():
    assert "none torn, none lost" in trial("kill_saves.py", 200)


@pytest.mark.slow
def test_a_hundred_kills_of_runs():
    assert "every run ended as the undisturbed one" in trial("kill_runs.py", 100)

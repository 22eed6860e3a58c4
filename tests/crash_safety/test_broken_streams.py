"""Signals and broken streams at random moments; a few tries in `make test`, sixty in `make test-all`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("break_streams.py")


def try_streams(*options: str) -> str:
    """Run the script in a process of its own: it forks, and must not inherit the threads of the tests."""
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_few_disturbed_commands() -> None:
    assert "nothing lost, nothing half written" in try_streams("--tries", "4", "--seed", "1")


@pytest.mark.slow
def test_sixty_disturbed_commands() -> None:
    assert "nothing lost, nothing half written" in try_streams("--tries", "60")

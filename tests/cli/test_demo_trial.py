"""The full demo reaches the accuracy that the README states."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_demo_translates_unseen_numbers(tmp_path):
    command = [sys.executable, "-m", "saccade.cli.main", "demo", "--output", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    score = re.search(r"exact match on 1,000 unseen numbers: ([\d.]+) %", done.stdout)
    assert score is not None
    assert float(score[1]) >= 99.0
    assert (tmp_path / "demo" / "alignment.png").is_file()

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from saccade.errors import SaccadeError
from saccade.training.runs.lock import run_lock

HOLD = "import sys, time\nfrom pathlib import Path\nfrom saccade.training.runs.lock import run_lock\n"
HOLD += "with run_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_error_names_the_process_that_holds_the_lock(tmp_path, holder):
    with pytest.raises(SaccadeError, match=f"process {holder.pid}\\b"), run_lock(tmp_path):
        pass


def test_killed_process_releases_the_lock(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    time.sleep(0.01)
    with run_lock(tmp_path):
        pass


def test_lock_is_released_after_its_block(tmp_path):
    for _ in range(2):
        with run_lock(tmp_path):
            pass


def test_read_only_directory_is_an_error(tmp_path):
    with pytest.raises(SaccadeError, match="cannot be written"), run_lock(tmp_path / "absent"):
        pass

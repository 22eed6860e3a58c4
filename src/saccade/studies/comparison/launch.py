"""Entry point of a worker, before torch is imported.

    python -m saccade.studies.comparison.launch PHASE JOB PARENT PIPE

A signal during the import ends the process without a word: there is nothing to lose yet. If the comparison itself is
killed, its worker stops as it does on SIGTERM; it would else train on beside the next one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from saccade.studies.comparison.process import LONGEST_REASON, STOPS

BETWEEN = 0.5  # seconds between two looks at the parent


def leave(number: int, _: FrameType | None) -> NoReturn:
    """End at once."""
    os._exit(128 + number)


def stop(number: int, _: FrameType | None) -> NoReturn:
    """End in good order, wherever the worker is; a training has its own way, which comes first."""
    raise SystemExit(128 + number)


def watch(parent: int) -> None:
    """Stop this process when the one that started it is gone."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(BETWEEN)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=look, name="watch", daemon=True).start()


def tell(pipe: int, reason: str) -> None:
    """Tell the parent what went wrong; this needs no room on a disk."""
    try:
        os.write(pipe, reason.encode("utf-8", "replace")[:LONGEST_REASON])
    except OSError:
        return  # nobody listens any more


def main(words: list[str]) -> int:
    """Do a phase; returns the exit code."""
    phase, job, parent, pipe = words
    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    watch(int(parent))
    try:
        from saccade.studies.comparison.worker import read_job, run_phase

        for number in STOPS:
            if signal.getsignal(number) is leave:
                signal.signal(number, stop)
        ended = run_phase(phase, read_job(Path(job)))
    except Exception as error:
        tell(int(pipe), str(error) or type(error).__name__)
        raise
    tell(int(pipe), ended.reason)
    return ended.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

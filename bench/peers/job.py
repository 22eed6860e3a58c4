"""What passes between the benchmark and a peer's process: a job as JSON on the command line, a line of JSON back.

Needs the standard library only, for every environment imports it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

MARK = "bench-result "  # peers print much else


class EnoughError(Exception):
    """The measured updates are done; ends a training loop that is not ours from within."""


class Updates:
    """The clock of a training: seconds and target tokens of each update after the warm-up, which is at least one."""

    def __init__(self, warmup: int, updates: int) -> None:
        self.warmup = max(1, warmup)  # the end of an update is where the clock of the next one starts
        self.wanted = updates
        self.seen = 0
        self.last = 0.0
        self.seconds: list[float] = []
        self.tokens: list[int] = []

    def tick(self, tokens: int) -> bool:
        """An update is done, with so many target tokens that are no padding; true when there are enough."""
        now = time.perf_counter()
        self.seen += 1
        if self.seen > self.warmup:
            self.seconds.append(now - self.last)
            self.tokens.append(int(tokens))
        self.last = now
        return len(self.seconds) >= self.wanted

    def result(self) -> dict[str, Any]:
        """What a training job answers."""
        return {"seconds": self.seconds, "tokens": self.tokens}


def read_job(arguments: list[str] | None = None) -> dict[str, Any]:
    """The job that this process was given."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        raise SystemExit("give one job as JSON")
    job = json.loads(given[0])
    if not isinstance(job, dict):
        raise SystemExit("a job is a JSON object")
    return job


def tell(result: dict[str, Any]) -> None:
    """Print the result, with the largest memory this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("\n" + MARK + json.dumps({"megabytes": peak, **result}), flush=True)


def find_result(output: str) -> dict[str, Any] | None:
    """The last result in what a process printed, if there is one."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            return dict(json.loads(line.removeprefix(MARK)))
    return None


def read_ids(path: str | Path) -> list[list[int]]:
    """A file of ids: one sentence a line."""
    with Path(path).open(encoding="ascii") as file:
        return [[int(number) for number in line.split()] for line in file]


def read_lines(path: str | Path) -> list[str]:
    """A text without its line ends; only a line feed ends a line."""
    text = Path(path).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def write_lines(path: str | Path, lines: list[str]) -> None:
    """One line each."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")

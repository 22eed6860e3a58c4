"""Communication with a peer's process: a job as JSON on the command line, and a result as a line of JSON.

Uses only the standard library, because every environment imports it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "bench-result "  # marks the result among other output


TrainFunction = Callable[[dict[str, Any], Callable[[int], bool]], None]
"""Trains a peer's model; calls its second argument with the target tokens of each update, and stops when it is true."""


class EnoughUpdatesError(Exception):
    """Raised to end the training loop of a peer when enough updates are done."""


class UpdateTimer:
    """Seconds and target tokens of each update after warmup, which is at least one update."""

    def __init__(self, warmup: int, updates: int) -> None:
        self.warmup = max(1, warmup)  # an update is timed from the end of the previous one
        self.updates = updates
        self.seen = 0
        self.last = 0.0
        self.seconds: list[float] = []
        self.tokens: list[int] = []

    def record(self, tokens: int) -> bool:
        """Record an update with its number of target tokens, without padding; true when enough updates are measured."""
        now = time.perf_counter()
        self.seen += 1
        if self.seen > self.warmup:
            self.seconds.append(now - self.last)
            self.tokens.append(int(tokens))
        self.last = now
        return len(self.seconds) >= self.updates

    def result(self) -> dict[str, Any]:
        """The result of a training job."""
        return {"seconds": self.seconds, "tokens": self.tokens}


def measure_updates(job: dict[str, Any], train: TrainFunction) -> dict[str, Any]:
    """Train until enough updates are measured; returns seconds and tokens of each update."""
    timer = UpdateTimer(job["warmup"], job["updates"])
    train(job, timer.record)
    return timer.result()


def train_until_deadline(job: dict[str, Any], train: TrainFunction) -> dict[str, Any]:
    """Train for some minutes, until a deadline, or for some updates; returns the number of updates and the time."""
    began, steps = time.perf_counter(), 0
    deadline = job.get("deadline") or time.time() + 60 * job["minutes"]

    def finished(_: int) -> bool:
        nonlocal steps
        steps += 1
        return time.time() >= deadline or steps >= job.get("updates", sys.maxsize)

    train(job, finished)
    return {"steps": steps, "training_seconds": time.perf_counter() - began}


def run_task(job: dict[str, Any], train: TrainFunction, decode: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Run the task of a job: "training" measures updates, "model" trains until a deadline, "decoding" translates."""
    if job["task"] == "decoding":
        return decode(job)
    return {"training": measure_updates, "model": train_until_deadline}[job["task"]](job, train)


def read_job(arguments: list[str] | None = None) -> dict[str, Any]:
    """Read the job from the command line."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        raise SystemExit("give one job as JSON")
    job = json.loads(given[0])
    if not isinstance(job, dict):
        raise SystemExit("a job is a JSON object")
    return job


def print_result(result: dict[str, Any]) -> None:
    """Print the result, with the peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("\n" + MARK + json.dumps({"megabytes": peak, **result}), flush=True)


def find_result(output: str) -> dict[str, Any] | None:
    """The last result in the output of a process, if there is one."""
    for line in reversed(output.splitlines()):
        if line.startswith(MARK):
            return dict(json.loads(line.removeprefix(MARK)))
    return None


def read_ids(path: str | Path) -> list[list[int]]:
    """Read token ids, one sentence per line."""
    with Path(path).open(encoding="ascii") as file:
        return [[int(number) for number in line.split()] for line in file]


def read_lines(path: str | Path) -> list[str]:
    """Read the lines of a text; only a line feed ends a line."""
    text = Path(path).read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def write_lines(path: str | Path, lines: list[str]) -> None:
    """Write one line per string."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(line + "\n" for line in lines), encoding="utf-8")

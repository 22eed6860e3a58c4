"""Every chosen layer at every width and length, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch

from saccade.studies.complexity import resident
from saccade.studies.complexity.measurement import FLOAT_BYTES, Measurement, Task
from saccade.studies.complexity.subjects import Sizes
from saccade.studies.complexity.worker import FORK, ended_by, fault_of, measurement_from

PATIENCE = 10  # seconds for a process that has closed its output to end


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    layers: tuple[str, ...]
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    sizes: Sizes
    seconds: float
    """How long to repeat each measurement."""
    memory: int
    """The most bytes that a layer may take beside its weights and its input."""


class Worker:
    """The process that measures, from this side: started when it is needed, and again if it died."""

    def __init__(self, *, fork: bool) -> None:
        self.fork = fork
        """Whether one process forks for all tasks; else each task gets a process that is started anew."""
        self.process: subprocess.Popen[str] | None = None

    def measure(self, task: Task) -> Measurement:
        """Hand over a task and wait; what cannot be measured for whatever reason is left out."""
        values = self.ask(task)
        if not self.fork:
            self.stop()
        if "fault" in values:
            why = f"could not be measured: {values['fault']}"
            size = task.length * task.width * FLOAT_BYTES
            return Measurement(task.layer, task.width, task.length, size, left_out=why)
        return measurement_from(values)

    def ask(self, task: Task) -> dict[str, Any]:
        """The answer of the process, or the reason why there is none."""
        try:
            process = self.process = self.process or self.start()
        except OSError as error:
            return {"fault": fault_of(error)}
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps(asdict(task)), file=process.stdin, flush=True)
            if line := process.stdout.readline():
                values: dict[str, Any] = json.loads(line)
                return values
        except (BrokenPipeError, ValueError):
            pass
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(PATIENCE)
        self.stop()
        if code is not None and code < 0:
            return {"fault": ended_by(-code)}
        return {"fault": "the measuring process ended without an answer"}

    def start(self) -> subprocess.Popen[str]:
        """A process that has loaded torch, in a group of its own, which its forks belong to."""
        return subprocess.Popen(
            [sys.executable, "-m", "saccade.studies.complexity.worker", *([FORK] if self.fork else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=without_threads_of_numpy() if self.fork else None,
            start_new_session=True,
        )

    def stop(self) -> None:
        """End the process and its forks, measuring or not."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError), process:  # waits, and closes the pipes
            pass


def without_threads_of_numpy() -> dict[str, str]:
    """An environment in which numpy, which torch loads, starts no threads: they would be lost in a fork.

    If torch multiplies by OpenBLAS as well, its threads would be pinned too; then those of numpy are put up with.
    """
    if "BLAS_INFO=open" in torch.__config__.show():
        return dict(os.environ)
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def worker(*, fork: bool | None = None) -> Iterator[Worker]:
    """To measure with; it forks where memory can be measured, which is where that is safe, if nothing else is said."""
    measuring = Worker(fork=resident.measurable() if fork is None else fork)
    try:
        yield measuring
    finally:
        measuring.stop()


def measurements(plan: Plan) -> Generator[Measurement, None, None]:
    """Layer by layer, width by width, from the shortest length up; what is left out once is not tried longer."""
    with worker() as measuring:
        yield from measured(plan, measuring)


def measured(plan: Plan, measuring: Worker) -> Iterator[Measurement]:
    """The same with a worker that is there already."""
    for layer, width in product(plan.layers, plan.widths):
        reason: str | None = None
        for length in sorted(plan.lengths):
            if reason is None:
                task = Task(layer, width, length, plan.sizes, plan.seconds, plan.memory)
                found = measuring.measure(task)
                reason = found.left_out
            else:
                found = Measurement(layer, width, length, length * width * FLOAT_BYTES, left_out=reason)
            yield found

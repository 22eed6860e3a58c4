"""Every chosen layer at every width and length, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product

from saccade.complexity.measurement import Measurement, Task
from saccade.complexity.subjects import Sizes
from saccade.complexity.worker import measurement_from
from saccade.errors import SaccadeError

FLOAT_BYTES = 4


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
    """The process that measures, from this side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def measure(self, task: Task) -> Measurement:
        """Hand over a task and wait."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(json.dumps(asdict(task)), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        values = json.loads(line) if line else {"fault": "the measuring process ended"}
        if "fault" in values:
            # The last line of a traceback is the error itself.
            raise SaccadeError(
                f"could not be measured: {values['fault'].strip().splitlines()[-1]}",
                where=f"{task.layer}, {task.length:,} places, width {task.width}",
                do="try shorter --lengths, smaller --widths, or a lower --memory",
            )
        return measurement_from(values)


@contextmanager
def worker() -> Iterator[Worker]:
    """A process that has loaded torch and has no threads yet; numpy's own would be lost in a fork."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "saccade.complexity.worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    ) as process:
        try:
            yield Worker(process)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.terminate()


def measurements(plan: Plan) -> Iterator[Measurement]:
    """Layer by layer, width by width, from the shortest length up; what is left out once is not tried longer."""
    with worker() as measuring:
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

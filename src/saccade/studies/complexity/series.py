"""Every selected layer at every width and length, each measured in a fresh process."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import product

import torch

from saccade.errors import SaccadeError
from saccade.studies.complexity import peak_memory
from saccade.studies.complexity.layers import Sizes
from saccade.studies.complexity.measurement import (
    Measurement,
    Task,
    describe_error,
    not_measured,
    read_measurement,
    task_message,
)
from saccade.workers.process import Worker, start_worker
from saccade.workers.replies import WorkerDiedError, describe_exit

HANDLER = "saccade.studies.complexity.measurement"


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
    """The maximum bytes that a layer may use besides its weights and its input."""


class MeasuringProcess:
    """The worker that measures; it is started on first use, and again after it died."""

    def __init__(self, *, fork: bool) -> None:
        self.fork = fork
        """Whether one worker forks for each task; otherwise each task gets a new worker."""
        self.worker: Worker | None = None

    def measure(self, task: Task) -> Measurement:
        """Measure a task in the worker; a task that fails, or ends the worker, is left out."""
        try:
            worker = self.worker = self.worker or start_worker(HANDLER, fork=self.fork, environment=self.environment())
            return read_measurement(worker.request(task_message(task)))
        except WorkerDiedError as error:
            reason = f"the measuring process {describe_exit(error.status)}"
            if self.worker is not None and (error.status is None or self.worker.process.poll() is not None):
                self.stop()  # the worker itself, not only its fork
        except SaccadeError as error:
            reason = describe_error(error)
        finally:
            if not self.fork:
                self.stop()
        return not_measured(task, f"could not be measured: {reason}")

    def environment(self) -> dict[str, str]:
        """Additional environment variables of the worker."""
        return without_numpy_threads() if self.fork else {}

    def stop(self) -> None:
        """Kill the worker and its fork."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.kill()


def without_numpy_threads() -> dict[str, str]:
    """Variables that keep numpy, which torch imports, from starting threads: a fork would lose them.

    If torch also uses OpenBLAS, this would set the threads of torch too; then numpy keeps its threads.
    """
    return {} if "BLAS_INFO=open" in torch.__config__.show() else {"OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def measuring_process(*, fork: bool | None = None) -> Iterator[MeasuringProcess]:
    """A process to measure in; by default it forks where memory is measurable, because forking is safe there."""
    process = MeasuringProcess(fork=peak_memory.measurable() if fork is None else fork)
    try:
        yield process
    finally:
        process.stop()


def measurements(plan: Plan) -> Generator[Measurement, None, None]:
    """Measure layer by layer, width by width, from the shortest length; skip lengths above one that was left out."""
    with measuring_process() as process:
        yield from measure_in(process, plan)


def measure_in(process: MeasuringProcess, plan: Plan) -> Iterator[Measurement]:
    """Measure a plan in a given process."""
    for layer, width in product(plan.layers, plan.widths):
        reason: str | None = None
        for length in sorted(plan.lengths):
            task = Task(layer, width, length, plan.sizes, plan.seconds, plan.memory)
            found = process.measure(task) if reason is None else not_measured(task, reason)
            reason = found.left_out
            yield found

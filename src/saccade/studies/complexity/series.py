"""A series of measurements: every selected layer at every width and length, each in a fresh process."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import product

import torch

from saccade.errors import SaccadeError
from saccade.studies.complexity import peak_memory
from saccade.studies.complexity.layers import LayerSizes
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

HANDLER_MODULE = "saccade.studies.complexity.measurement"


@dataclass(frozen=True)
class MeasurementPlan:
    """The measurements of a study: every layer at every width and length."""

    layers: tuple[str, ...]
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    sizes: LayerSizes
    seconds: float
    """Seconds of repeated runs in each measurement."""
    memory: int
    """The maximum bytes that a layer may use besides its weights and its input."""


class MeasuringProcess:
    """The worker that measures; it is started on first use, and again after it died."""

    def __init__(self, *, fork: bool) -> None:
        self.fork = fork
        """True: one worker forks for each task; False: each task has a new worker."""
        self.worker: Worker | None = None

    def measure(self, task: Task) -> Measurement:
        """Measure a task in the worker; a task that fails, or ends the worker, is left out."""
        try:
            if self.worker is None:
                self.worker = start_worker(HANDLER_MODULE, fork=self.fork, environment=self.environment())
            return read_measurement(self.worker.request(task_message(task)))
        except WorkerDiedError as error:
            reason = f"the measuring process {describe_exit(error.status)}"
            if self.worker is not None and (error.status is None or self.worker.process.poll() is not None):
                self.stop()  # the worker itself has ended, not only its fork
        except SaccadeError as error:
            reason = describe_error(error)
        finally:
            if not self.fork:
                self.stop()
        return not_measured(task, f"could not be measured: {reason}")

    def environment(self) -> dict[str, str]:
        """Return additional environment variables of the worker."""
        return without_numpy_threads() if self.fork else {}

    def stop(self) -> None:
        """Kill the worker and its fork."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.kill()


def without_numpy_threads() -> dict[str, str]:
    """Return environment variables that keep numpy, which torch imports, from starting threads: a fork would lose them.

    If torch uses OpenBLAS too, they would also change the threads of torch, so none are returned.
    """
    return {} if "BLAS_INFO=open" in torch.__config__.show() else {"OPENBLAS_NUM_THREADS": "1"}


@contextlib.contextmanager
def measuring_process(*, fork: bool | None = None) -> Iterator[MeasuringProcess]:
    """Start a measuring process; by default it forks where memory is measurable, because forking is safe there."""
    process = MeasuringProcess(fork=peak_memory.is_measurable() if fork is None else fork)
    try:
        yield process
    finally:
        process.stop()


def measurements(plan: MeasurementPlan) -> Generator[Measurement, None, None]:
    """Measure layer by layer, width by width, from the shortest length; skip lengths above one that was left out."""
    with measuring_process() as process:
        yield from measure_in(process, plan)


def measure_in(process: MeasuringProcess, plan: MeasurementPlan) -> Iterator[Measurement]:
    """Perform the measurements of a plan in a given process."""
    for layer, width in product(plan.layers, plan.widths):
        reason: str | None = None
        for length in sorted(plan.lengths):
            task = Task(layer, width, length, plan.sizes, plan.seconds, plan.memory)
            found = process.measure(task) if reason is None else not_measured(task, reason)
            reason = found.left_out
            yield found

"""Metrics on their way to experiment trackers, in the background: a slow or failing tracker never delays a run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import NamedTuple

from saccade.training.runs.experiment_trackers import ExperimentTracker, RunStatus
from saccade.training.runs.log_files import LogFailures

MAX_WAITING = 10_000  # metrics that wait for a slow tracker; further ones are dropped
CLOSE_SECONDS = 60.0  # time that a tracker has at the end to send what is left


class StepMetrics(NamedTuple):
    """Metrics of one step."""

    step: int
    metrics: Mapping[str, float]


class MetricStream:
    """Sends metrics to one experiment tracker in a thread; its first failure is reported, and the run continues."""

    def __init__(self, name: str, tracker: ExperimentTracker, failures: LogFailures) -> None:
        self._name = name
        self._tracker = tracker
        self._failures = failures
        self._waiting: queue.Queue[StepMetrics | RunStatus] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._send_all, name=f"metrics-{name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send metrics of a step soon."""
        with self._failures.tolerated(self._name, queue.Full):
            self._waiting.put_nowait(StepMetrics(step, dict(metrics)))

    def close(self, status: RunStatus) -> None:
        """End the run in the tracker, and wait a limited time until everything is sent."""
        with self._failures.tolerated(self._name, Exception):
            self._waiting.put(status, timeout=CLOSE_SECONDS)
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                raise TimeoutError(f"not everything was sent within {CLOSE_SECONDS:.0f} s")

    def _send_all(self) -> None:
        while True:
            item = self._waiting.get()
            with self._failures.tolerated(self._name, Exception):
                if isinstance(item, StepMetrics):
                    self._tracker.log(item.step, item.metrics)
                else:
                    self._tracker.close(item)
            if not isinstance(item, StepMetrics):
                return

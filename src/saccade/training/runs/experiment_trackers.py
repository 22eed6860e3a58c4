"""Experiment trackers: Weights & Biases, MLflow, Trackio and TensorBoard, imported only when they are used.

A resumed run continues its run in the tracker: `trackers.json` in the run directory has the ids.
"""

from __future__ import annotations

import importlib.util
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from saccade.errors import SaccadeError
from saccade.folder import json_text, read_json, replace_file
from saccade.training.config import TrackerName

RunStatus = Literal["finished", "interrupted", "failed"]
PROJECT = "saccade"  # default name of the project or experiment in a tracker
MAX_PARAMETERS = 100  # per call of MLflow
MAX_PARAMETER_LENGTH = 500  # characters of a setting in MLflow, the limit of its oldest servers


class ExperimentTracker(Protocol):
    """A run in an experiment tracker; any method may raise any exception."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        ...

    def close(self, status: RunStatus) -> None:
        """Send what is buffered and end the run in the tracker."""
        ...


class Wandb:
    """A run of Weights & Biases; WANDB_PROJECT, WANDB_MODE and its other variables apply."""

    def __init__(self, directory: Path, run_id: str, settings: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=directory.absolute().name,
            id=run_id,
            resume="allow",
            config=dict(settings),
            dir=str(directory),
            settings=wandb.Settings(console="off"),  # train.log has the messages
        )
        # The step is a metric of its own: a resumed run repeats steps, and wandb drops those below its own counter.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        self._run.log({"step": step, **metrics})

    def close(self, status: RunStatus) -> None:
        """Upload what is buffered and end the run."""
        self._run.finish(exit_code=1 if status == "failed" else 0)


class MLflow:
    """A run of MLflow; MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and its other variables apply."""

    STATUS: Mapping[RunStatus, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}

    def __init__(self, directory: Path, run_id: str | None, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric: Any = Metric
        self._client: Any = MlflowClient()
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
            self.run_id = run_id
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        self.run_id = str(self._client.create_run(experiment_id, run_name=directory.absolute().name).info.run_id)
        parameters = [Param(key, str(value)[:MAX_PARAMETER_LENGTH]) for key, value in settings.items()]
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self.run_id, params=parameters[first : first + MAX_PARAMETERS])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        now = int(1000 * time.time())
        values = [self._metric(name, float(value), now, step) for name, value in metrics.items()]
        self._client.log_batch(self.run_id, metrics=values)

    def close(self, status: RunStatus) -> None:
        """End the run."""
        self._client.set_terminated(self.run_id, self.STATUS[status])


class Trackio:
    """A run of Trackio, which identifies runs by their names; TRACKIO_DIR and its other variables apply."""

    def __init__(self, run_id: str, settings: Mapping[str, Any]) -> None:
        import trackio

        self._run: Any = trackio.init(project=PROJECT, name=run_id, config=dict(settings), resume="allow")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def close(self, status: RunStatus) -> None:
        """Send what is buffered and end the run."""
        self._run.finish()


class TensorBoard:
    """Event files of TensorBoard; points from `first_step` on that an earlier process wrote are hidden."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step or None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of a step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self, status: RunStatus) -> None:
        """Write what is buffered."""
        self._writer.close()


def check_installed(names: Sequence[TrackerName]) -> None:
    """Raise an error for a tracker whose package is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise SaccadeError(
                f"the package {name} is not installed, which --training.log-to {name} needs",
                hint=f"pip install 'saccade[{name}]'",
            )


def open_tracker(name: TrackerName, directory: Path, record: Path, settings: Mapping[str, Any]) -> ExperimentTracker:
    """Open the run of a tracker, the same one after a resumption; its id is kept in the file `record`."""
    ids = read_json(record) if record.exists() else {}
    known = ids.get(name)
    new_id = uuid.uuid4().hex[:8]
    tracker: ExperimentTracker
    if name == "mlflow":
        tracker = mlflow = MLflow(directory, known, settings)
        used = mlflow.run_id
    elif name == "wandb":
        used = known or new_id
        tracker = Wandb(directory, used, settings)
    else:
        used = known or f"{directory.absolute().name}-{new_id}"
        tracker = Trackio(used, settings)
    if used != known:
        replace_file(record, json_text({**ids, name: used}))
    return tracker

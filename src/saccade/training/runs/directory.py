"""The run directory: the paths of all files that a run writes."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from saccade.config import Config, write_yaml
from saccade.errors import SaccadeError, not_written
from saccade.folder import fsync, partial_path, recover, write_json
from saccade.ops.dispatch import kernel_level
from saccade.version import __version__

ENVIRONMENT = "env.json"
LEFTOVERS = {"samples", "checkpoints", ENVIRONMENT, ".config.yaml.partial"}
"""Files that a process killed while it created the run directory may have left in an empty folder."""


@dataclass(frozen=True)
class RunDirectory:
    """Paths under a run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def log(self) -> Path:
        """Log messages."""
        return self.path / "train.log"

    @property
    def metrics(self) -> Path:
        """Metrics, one row per logged step."""
        return self.path / "metrics.csv"

    @property
    def timing(self) -> Path:
        """Seconds and speed, one row per logged step; separate because they differ between equal runs."""
        return self.path / "timing.csv"

    @property
    def tokenizers(self) -> Path:
        """Tokenizers, so that a resumed run does not train them again."""
        return self.path / "tokenizers"

    @property
    def data(self) -> Path:
        """Report on the training data, and a digest that detects changed data."""
        return self.path / "data.json"

    @property
    def start(self) -> Path:
        """The model that the run started from; absent for a run from scratch."""
        return self.path / "start.json"

    @property
    def curves(self) -> Path:
        """Plot of the metrics."""
        return self.path / "results.png"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tb"

    @property
    def trackers(self) -> Path:
        """Ids of the run in experiment trackers; absent without --training.log-to."""
        return self.path / "trackers.json"

    @property
    def samples(self) -> Path:
        """Sample outputs of every validation."""
        return self.path / "samples"

    @property
    def checkpoints(self) -> Path:
        """Training checkpoints."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """Model folder with the best criterion."""
        return self.path / "model-best"

    @property
    def last(self) -> Path:
        """Model folder of the last step."""
        return self.path / "model-last"


def create(path: Path, config: Config) -> RunDirectory:
    """Create a run directory atomically with its config; an existing non-empty directory is an error."""
    given, path = RunDirectory(path), path.absolute()
    if path.exists() and not (path.is_dir() and {entry.name for entry in path.iterdir()} <= LEFTOVERS):
        kind = "and is not empty" if path.is_dir() else "and is not a directory"
        resumable = f", or continue it: saccade train --resume {path}" if given.config.is_file() else ""
        raise SaccadeError(f"already exists {kind}", where=str(path), hint=f"choose another --output{resumable}")
    # An existing empty folder may be a link or a mounted disk, so it is filled; a new one is renamed into place.
    staging = path if path.exists() else partial_path(path)
    try:
        if staging != path:
            staging.parent.mkdir(parents=True, exist_ok=True)
            recover(path)
        RunDirectory(staging).samples.mkdir(parents=True, exist_ok=True)
        RunDirectory(staging).checkpoints.mkdir(exist_ok=True)  # so that its absence shows that it was deleted
        write_json(staging / ENVIRONMENT, environment())
        rewrite_config(RunDirectory(staging), config)  # last: a folder with a config counts as a run
        if staging != path:
            staging.rename(path)
    except OSError as error:
        remove(RunDirectory(staging))
        raise not_written(path, error) from None
    return given


def remove(directory: RunDirectory) -> None:
    """Delete a run that failed before training began, so that the command can be repeated."""
    for entry in directory.path.iterdir() if directory.path.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a link or a mounted disk cannot be removed
        directory.path.rmdir()


def rewrite_config(directory: RunDirectory, config: Config) -> None:
    """Replace the config of a run atomically."""
    staging = partial_path(directory.config)
    write_yaml(config, staging)
    fsync(staging)
    staging.replace(directory.config)


def environment() -> dict[str, str | int]:
    """Return versions and hardware facts that results may depend on."""
    return {
        "saccade": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "kernels": kernel_level() or "none",
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }

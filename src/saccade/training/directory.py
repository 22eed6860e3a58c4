"""The run directory: everything a run leaves behind, at fixed places."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

from saccade.config import Config, write_yaml
from saccade.errors import SaccadeError
from saccade.folder import write_json
from saccade.version import __version__


@dataclass(frozen=True)
class RunDirectory:
    """Paths under a run."""

    path: Path

    @property
    def config(self) -> Path:
        """Every resolved setting."""
        return self.path / "config.yaml"

    @property
    def log(self) -> Path:
        """All that was said."""
        return self.path / "train.log"

    @property
    def metrics(self) -> Path:
        """One row a logged step."""
        return self.path / "metrics.csv"

    @property
    def curves(self) -> Path:
        """The metrics as a picture."""
        return self.path / "results.png"

    @property
    def tensorboard(self) -> Path:
        """Event files."""
        return self.path / "tb"

    @property
    def samples(self) -> Path:
        """Sample outputs of every validation."""
        return self.path / "samples"

    @property
    def checkpoints(self) -> Path:
        """Where training can go on from."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The model folder with the best criterion."""
        return self.path / "model-best"

    @property
    def last(self) -> Path:
        """The model folder of the last step."""
        return self.path / "model-last"


def create(path: Path, config: Config) -> RunDirectory:
    """A new run directory; one that holds anything is never touched."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError(
            "already exists and is not empty",
            where=str(path),
            do=f"choose another --output, or continue it: saccade train --resume {path}",
        )
    directory = RunDirectory(path)
    try:
        directory.samples.mkdir(parents=True, exist_ok=True)
        write_yaml(config, directory.config)
        write_json(path / "env.json", environment())
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(path), do="choose another --output"
        ) from None
    return directory


def environment() -> dict[str, str | int]:
    """What a result may depend on besides the config."""
    return {
        "saccade": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }

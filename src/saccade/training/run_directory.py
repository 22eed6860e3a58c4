"""The run directory: everything a run leaves behind, at fixed places."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from saccade.config import Config, write_yaml
from saccade.csrc.library import level
from saccade.errors import SaccadeError
from saccade.folder import flush, partial, recover, write_json
from saccade.version import __version__

ENVIRONMENT = "env.json"
UNFINISHED = {"samples", ENVIRONMENT, ".config.yaml.partial"}
"""What a command that was killed while it made a run directory may have left in an empty folder."""


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
    def timing(self) -> Path:
        """What depends on the clock: seconds and speed, one row a logged step."""
        return self.path / "timing.csv"

    @property
    def tokenizers(self) -> Path:
        """The vocabularies, so that a resumed run need not learn them again."""
        return self.path / "tokenizers"

    @property
    def data(self) -> Path:
        """What was found in the data, and a digest that tells whether it is still the same."""
        return self.path / "data.json"

    @property
    def start(self) -> Path:
        """Which model the run started from, if it did not start from scratch."""
        return self.path / "start.json"

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
    """A new run directory, which appears with its config in it or not at all; what is there already is not touched."""
    given, path = RunDirectory(path), path.absolute()
    if path.exists() and not (path.is_dir() and {entry.name for entry in path.iterdir()} <= UNFINISHED):
        raise SaccadeError(
            "already exists and is not empty",
            where=str(path),
            do=f"choose another --output, or continue it: saccade train --resume {path}",
        )
    # A folder of the user's own, perhaps a link or a mounted disk, is filled; a new one is renamed into place.
    place = path if path.exists() else partial(path)
    try:
        if place != path:
            place.parent.mkdir(parents=True, exist_ok=True)
            recover(path)
        RunDirectory(place).samples.mkdir(parents=True, exist_ok=True)
        write_json(place / ENVIRONMENT, environment())
        rewrite_config(RunDirectory(place), config)  # last: it is what makes a run of a folder
        if place != path:
            place.rename(path)
    except OSError as error:
        remove(RunDirectory(place))
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(path), do="choose another --output"
        ) from None
    return given


def remove(directory: RunDirectory) -> None:
    """Forget a run that never began; the same command may come again."""
    for entry in directory.path.iterdir() if directory.path.is_dir() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a link or a mounted disk stays
        directory.path.rmdir()


def rewrite_config(directory: RunDirectory, config: Config) -> None:
    """Keep the settings of a run: the old ones or the new ones, whatever happens."""
    place = partial(directory.config)
    write_yaml(config, place)
    flush(place)
    place.replace(directory.config)


def environment() -> dict[str, str | int]:
    """What a result may depend on besides the config."""
    return {
        "saccade": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "kernels": level() or "none",
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }

"""COMET (Rei et al. 2020): a neural metric, computed by the optional package unbabel-comet.

The model is a local file or folder, or a name; a named model is downloaded. A checkpoint is a pickle: loading it can
execute code, so it must come from a trusted source.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import Comparison, Interval, compare_means, mean_interval
from saccade.evaluation.metrics import References, Score
from saccade.evaluation.references import check_references
from saccade.untrusted_files import shown

CHECKPOINT = Path("checkpoints", "model.ckpt")  # in the folder of a model, which also has hparams.yaml
BATCH_SIZE = 16
SCALE = 100  # as in the tables of the WMT metrics tasks
DEFAULT_NAME = "Unbabel/wmt22-comet-da"


@dataclass(frozen=True)
class CometModel:
    """A loaded COMET model; `gpus` is 0 or 1."""

    model: Any
    name: str
    gpus: int = 0

    def sentence_scores(self, sources: Sequence[str], hypotheses: Sequence[str], references: References) -> list[float]:
        """Return the score of each sentence times 100; of several references the first one counts."""
        check_references(hypotheses, references)
        if len(sources) != len(hypotheses):
            raise SaccadeError(
                f"{len(sources):,} sources but {len(hypotheses):,} hypotheses", hint="COMET needs the source texts too"
            )
        samples = [
            {"src": source, "mt": hypothesis, "ref": accepted[0]}
            for source, hypothesis, accepted in zip(sources, hypotheses, references, strict=True)
        ]
        with quiet_lightning():
            found = self.model.predict(samples, batch_size=BATCH_SIZE, gpus=self.gpus, progress_bar=False)
        scores = [SCALE * float(score) for score in found["scores"]]
        if len(scores) != len(samples) or not all(map(math.isfinite, scores)):
            raise SaccadeError(
                f"the COMET model {self.name} did not return a finite score for each sentence",
                hint="use a model that scores with source and reference, such as " + DEFAULT_NAME,
            )
        return scores


class CometTestSet:
    """A test set with a COMET model; the outputs of a system are scored once."""

    def __init__(self, model: CometModel, sources: Sequence[str], references: References) -> None:
        self.model = model
        self.sources = sources
        self.references = references
        self._scores: dict[tuple[str, ...], list[float]] = {}

    def sentence_scores(self, outputs: Sequence[str]) -> list[float]:
        """Return the score of each output."""
        key = tuple(outputs)
        if key not in self._scores:
            self._scores[key] = self.model.sentence_scores(self.sources, outputs, self.references)
        return self._scores[key]

    def score(self, outputs: Sequence[str]) -> Score:
        """Return the mean score of the outputs."""
        scores = self.sentence_scores(outputs)
        signature = f"model:{self.model.name}|nrefs:1|scale:{SCALE}|version:{version()}"
        return Score("COMET", sum(scores) / len(scores), signature, True, {"sentences": float(len(scores))})

    def interval(self, outputs: Sequence[str]) -> Interval:
        """Return the mean score and its 95 % interval."""
        return mean_interval(self.sentence_scores(outputs))

    def compare(self, baseline: Sequence[str], outputs: Sequence[str]) -> Comparison:
        """Compare the outputs with those of a baseline by paired bootstrap resampling."""
        return compare_means("comet", self.sentence_scores(baseline), self.sentence_scores(outputs))


def load_comet(model: str, device: torch.device) -> CometModel:
    """Load a COMET model from a checkpoint, from the folder of a model, or by name (downloaded and cached)."""
    package = import_package()
    path = Path(model).expanduser()
    is_path = path.exists() or path.suffix == ".ckpt" or model.startswith(("/", ".", "~"))
    if is_path:
        checkpoint = find_checkpoint(path)
        name = path.parent.parent.resolve().name if path.is_file() else path.resolve().name
    else:
        try:
            checkpoint, name = Path(package.download_model(model)), model
        except Exception as error:  # KeyError for an unknown name, and errors of the network
            raise SaccadeError(
                f"the COMET model {shown(model)} cannot be downloaded: {shown(str(error))}",
                hint=f"give a model of https://huggingface.co/Unbabel, such as {DEFAULT_NAME}, or the path of a model",
            ) from None
    with quiet_lightning():
        try:
            loaded = package.load_from_checkpoint(str(checkpoint), local_files_only=is_path)
        except Exception as error:  # the package raises plain exceptions
            raise SaccadeError(
                f"is not a COMET model: {shown(str(error), 200)}",
                where=str(checkpoint),
                hint="the folder of a model has hparams.yaml and checkpoints/model.ckpt; its encoder must be in the "
                "cache of Hugging Face",
            ) from None
    return CometModel(loaded, name, gpus=int(device.type == "cuda"))


def find_checkpoint(path: Path) -> Path:
    """Return the checkpoint: the path itself, or the checkpoint in a folder."""
    checkpoint = path / CHECKPOINT if path.is_dir() else path
    if not checkpoint.is_file():
        raise SaccadeError("no such COMET model", where=str(checkpoint), hint="check the path of --comet-model")
    return checkpoint


def import_package() -> Any:
    """Import the package; if it is missing, the error has the command that installs it."""
    try:
        with quiet_lightning():
            return importlib.import_module("comet")
    except ImportError:
        raise SaccadeError(
            "COMET needs the package unbabel-comet, which is not installed", hint="pip install 'saccade[comet]'"
        ) from None


def version() -> str:
    """Return the version of the package."""
    try:
        return metadata.version("unbabel-comet")
    except metadata.PackageNotFoundError:
        return "unknown"


@contextlib.contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence warnings and advice of PyTorch Lightning, on which the package is based."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

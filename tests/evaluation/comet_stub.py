"""A module with the public functions of unbabel-comet, and a model that scores by counting common words."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

HUB = "Unbabel/wmt22-comet-da"


class StubModel:
    """A model with the method `predict`; the score is the share of reference words in the output."""

    def __init__(self, calls: list[tuple[str, Any]], nan: bool = False) -> None:
        self.calls = calls
        self.nan = nan

    def predict(
        self,
        samples: list[dict[str, str]],
        batch_size: int = 16,
        gpus: int = 1,
        progress_bar: bool = True,
    ) -> dict[str, Any]:
        self.calls.append(("predict", samples))
        assert (gpus, progress_bar) == (0, False)
        warnings.warn("a trainer has many options", UserWarning, stacklevel=1)
        logging.getLogger("pytorch_lightning").warning("GPU available: False")
        scores = [
            float("nan")
            if self.nan
            else len(set(one["mt"].split()) & set(one["ref"].split())) / len(one["ref"].split())
            for one in samples
        ]
        assert all(one["src"] for one in samples)
        return {"scores": scores, "system_score": sum(scores) / len(scores)}


def comet_stub(folder: Path, *, nan: bool = False) -> tuple[ModuleType, list[tuple[str, Any]]]:
    """Return the module and the list of its calls; a download puts a model into `folder`."""
    calls: list[tuple[str, Any]] = []
    module = ModuleType("comet")

    def download_model(model: str, saving_directory: str | None = None, local_files_only: bool = False) -> str:
        calls.append(("download", model))
        if model != HUB:
            raise KeyError(f"Model '{model}' not supported by COMET.")
        return str(make_comet_model(folder / "downloaded"))

    def load_from_checkpoint(
        checkpoint_path: str, reload_hparams: bool = False, strict: bool = False, local_files_only: bool = False
    ) -> StubModel:
        calls.append(("load", (checkpoint_path, local_files_only)))
        if not (Path(checkpoint_path).parents[1] / "hparams.yaml").is_file():
            raise Exception("hparams.yaml file is missing")
        return StubModel(calls, nan)

    module.download_model = download_model  # type: ignore[attr-defined]
    module.load_from_checkpoint = load_from_checkpoint  # type: ignore[attr-defined]
    return module, calls


def make_comet_model(folder: Path) -> Path:
    """Make the files of a model and return the path of its checkpoint."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "hparams.yaml").write_text("class_identifier: regression_metric\n")
    checkpoint = folder / "checkpoints" / "model.ckpt"
    checkpoint.write_bytes(b"weights")
    return checkpoint

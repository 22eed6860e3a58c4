"""Models for decoding benchmarks: a Saccade model, trained if none is given, and its exports for peers."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import log_progress
from bench.environments import find_reason
from bench.paths import CACHE, ROOT
from bench.prepared_data import PreparedData, make_job
from bench.processes import run_job
from bench.sizes import DROPOUT, LABEL_SMOOTHING, SIZES, Size

MAX_MINUTES = 30  # timeout for one update of a peer
SACCADE = [sys.executable, "-m", "saccade.cli.main"]


class NoModelError(Exception):
    """No model is available; the message says why."""


@dataclass(frozen=True)
class SaccadeModel:
    """A model folder of Saccade."""

    folder: Path

    @property
    def tokenizer(self) -> Path:
        """The tokenizer file."""
        return self.folder / "tokenizer.json"


def saccade_model(size_name: str, work: PreparedData, *, minutes: float, given: Path | None = None) -> SaccadeModel:
    """The given model, else one that is trained once and kept."""
    if given is not None:
        return SaccadeModel(model_folder(given))
    run = model_path("saccade", size_name, None if SIZES[size_name].length else minutes)
    command = training_command(SIZES[size_name], work, run, minutes)
    if not (run / "model-best").is_dir() or not is_current(run, command):
        shutil.rmtree(run, ignore_errors=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        log_progress(f"training a Saccade model for decoding: {run.name}")
        call(command, f"train-{run.name}")
        mark_current(run, command)
    return SaccadeModel(model_folder(run))


def training_command(size: Size, work: PreparedData, run: Path, minutes: float) -> list[str]:
    """The command that trains a Saccade model with the settings of its preset for some minutes."""
    settings = {"data.vocabulary": size.pieces, "training.validate-every": 1_000_000, "output": run}
    sides = {side: [work.folder / f"train.{side}"] for side in ("source", "target")}
    if size.length:  # outputs have a fixed length, so the model need not be trained
        settings |= {"data.min-frequency": 1, "training.max-steps": 1, "data.batch-tokens": 512}
        for side, files in sides.items():
            files += [file for file in [work.folder / f"more.{side}"] if file.is_file()]
    else:
        settings |= {"training.max-minutes": minutes}
        settings |= {"valid-source": work.folder / "valid.source", "valid-target": work.folder / "valid.target"}
    command = [*SACCADE, "train", "--preset", size.preset]
    for side, files in sides.items():
        for file in files:
            command += [f"--{side}", str(file)]
    for name, value in settings.items():
        command += [f"--{name}", str(value)]
    return command


def is_current(path: Path, recipe: object) -> bool:
    """Whether a kept model was made by this recipe."""
    ready = path.with_suffix(".ready")
    return ready.is_file() and ready.read_text(encoding="utf-8") == json.dumps(recipe)


def mark_current(path: Path, recipe: object) -> None:
    """Record the recipe of a kept model."""
    path.with_suffix(".ready").write_text(json.dumps(recipe), encoding="utf-8")


def model_path(peer: str, size_name: str, minutes: float | None) -> Path:
    """The path of a model with this training time; None for an untrained model."""
    training = "untrained" if minutes is None else f"trained-{minutes:g}-minutes".replace(".", "-")
    return CACHE / "models" / f"{peer}-{size_name}-{training}"


def model_folder(path: Path) -> Path:
    """The best model of a run, or the folder itself."""
    best = path / "model-best"
    folder = best if best.is_dir() else path
    if not (folder / "tokenizer.json").is_file():
        raise NoModelError(f"{path} is not a run or model folder with one joint tokenizer")
    return folder.absolute()


def export_path(model: SaccadeModel, file_format: str) -> Path:
    """The path of an exported model."""
    weights = model.folder / "model.safetensors"
    digest = hashlib.sha256(f"{model.folder} {weights.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    return CACHE / "exports" / f"{file_format}-{digest}"


def export(model: SaccadeModel, file_format: str) -> Path:
    """Export the model with `saccade export`, once."""
    folder = export_path(model, file_format)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [*SACCADE, "export", str(model.folder), "--format", file_format, "--output", str(folder)]
        call(command, f"export-{file_format}")
    return folder


def peer_model(peer: str, size_name: str, work: PreparedData) -> Path:
    """A model of the peer after one update of its own trainer; its outputs will have a fixed length."""
    folder = model_path(peer, size_name, None)
    job = make_job(
        size_name,
        work,
        name=f"model-{folder.name}",
        task="model",
        folder=str(folder),
        minutes=MAX_MINUTES,
        dropout=DROPOUT,
        label_smoothing=LABEL_SMOOTHING,
        batch_tokens=512,
        updates=1,
    )
    if not folder.is_dir() or not is_current(folder, job):
        shutil.rmtree(folder, ignore_errors=True)
        log_progress(f"making a model of {peer} for decoding: {folder.name}")
        outcome = run_job(peer, job, most_seconds=60 * MAX_MINUTES)
        if outcome.result is None:
            raise NoModelError(f"its training fails: {outcome.reason}")
        mark_current(folder, job)
    return folder


def call(command: list[str], name: str) -> None:
    """Run a saccade command; its output goes to a log file."""
    log = CACHE / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
    if done.returncode:
        name = command[len(SACCADE)]
        raise NoModelError(f"saccade {name} fails: {find_reason(log.read_text(encoding='utf-8', errors='replace'))}")

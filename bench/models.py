"""Models to decode with: one of ours, trained here for some minutes if none is given, kept, and exported for others."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.environments import reason_in
from bench.places import CACHE, ROOT
from bench.processes import run_job
from bench.series import say
from bench.sizes import DROPOUT, LABEL_SMOOTHING, SIZES, Size
from bench.work import Work, job_for

MOST_MINUTES = 30  # for one update of a peer
SACCADE = [sys.executable, "-m", "saccade.cli.main"]


class NoModelError(Exception):
    """There is no model, and why."""


@dataclass(frozen=True)
class SaccadeModel:
    """A model folder of ours."""

    folder: Path

    @property
    def tokenizer(self) -> Path:
        """The file that turns raw text into pieces."""
        return self.folder / "tokenizer.json"


def saccade_model(size_name: str, work: Work, *, minutes: float, given: Path | None = None) -> SaccadeModel:
    """The model that is given, else one that was or will be trained here."""
    if given is not None:
        return SaccadeModel(model_folder(given))
    run = place_of("saccade", size_name, None if SIZES[size_name].length else minutes)
    command = training_of(SIZES[size_name], work, run, minutes)
    if not (run / "model-best").is_dir() or not made_by(run, command):
        shutil.rmtree(run, ignore_errors=True)
        run.parent.mkdir(parents=True, exist_ok=True)
        say(f"training a Saccade model for decoding: {run.name}")
        call(command, f"train-{run.name}")
        note(run, command)
    return SaccadeModel(model_folder(run))


def training_of(size: Size, work: Work, run: Path, minutes: float) -> list[str]:
    """The command that trains a model of ours: what suits the preset, for some minutes."""
    settings = {"data.vocabulary": size.pieces, "training.validate-every": 1_000_000, "output": run}
    sides = {side: [work.folder / f"train.{side}"] for side in ("source", "target")}
    if size.length:  # its outputs have a given length, so what it says does not matter
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


def made_by(place: Path, how: object) -> bool:
    """Whether what is kept here was made in this very way."""
    ready = place.with_suffix(".ready")
    return ready.is_file() and ready.read_text(encoding="utf-8") == json.dumps(how)


def note(place: Path, how: object) -> None:
    """Write down how something was made."""
    place.with_suffix(".ready").write_text(json.dumps(how), encoding="utf-8")


def place_of(peer: str, size_name: str, minutes: float | None) -> Path:
    """Where a model of this training, or of none, is kept."""
    training = "untrained" if minutes is None else f"trained-{minutes:g}-minutes".replace(".", "-")
    return CACHE / "models" / f"{peer}-{size_name}-{training}"


def model_folder(path: Path) -> Path:
    """A run's best model, or the folder itself."""
    best = path / "model-best"
    folder = best if best.is_dir() else path
    if not (folder / "tokenizer.json").is_file():
        raise NoModelError(f"{path} is no run and no model folder with one tokenizer")
    return folder.absolute()


def place_of_export(model: SaccadeModel, form: str) -> Path:
    """Where these weights are kept in another's format."""
    weights = model.folder / "model.safetensors"
    digest = hashlib.sha256(f"{model.folder} {weights.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    return CACHE / "exports" / f"{form}-{digest}"


def export(model: SaccadeModel, form: str) -> Path:
    """The same weights in another's format, by `saccade export`."""
    folder = place_of_export(model, form)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        call([*SACCADE, "export", str(model.folder), "--format", form, "--output", str(folder)], f"export-{form}")
    return folder


def peer_model(peer: str, size_name: str, work: Work) -> Path:
    """A model of the peer's own, after one update of its own trainer: its outputs have a given length."""
    folder = place_of(peer, size_name, None)
    job = job_for(
        size_name,
        work,
        name=f"model-{folder.name}",
        task="model",
        folder=str(folder),
        minutes=MOST_MINUTES,
        dropout=DROPOUT,
        label_smoothing=LABEL_SMOOTHING,
        batch_tokens=512,
        updates=1,
    )
    if not folder.is_dir() or not made_by(folder, job):
        shutil.rmtree(folder, ignore_errors=True)
        say(f"making a model of {peer} for decoding: {folder.name}")
        outcome = run_job(peer, job, most_seconds=60 * MOST_MINUTES)
        if outcome.result is None:
            raise NoModelError(f"its training fails: {outcome.reason}")
        note(folder, job)
    return folder


def call(command: list[str], name: str) -> None:
    """Run a command of ours; what it says goes to a log."""
    log = CACHE / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
    if done.returncode:
        verb = command[len(SACCADE)]
        raise NoModelError(f"saccade {verb} fails: {reason_in(log.read_text(encoding='utf-8', errors='replace'))}")

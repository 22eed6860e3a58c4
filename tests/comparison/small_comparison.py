"""A comparison of two small Transformers on generated sentences."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from saccade.studies.comparison.budget import read_budget
from saccade.studies.comparison.phases import PhaseEnd, phase_end, run_phase
from saccade.studies.comparison.request import Request, find_entries
from saccade.training.runs.tracking import RunTracker
from saccade.workers.replies import reply_to, result_of

ENGLISH = {"one": "eins", "two": "zwei", "three": "drei", "red": "rot", "green": "grün", "cat": "Katze", "dog": "Hund"}
TINY = {"width": 8, "heads": 2, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1}


def write_corpus(folder: Path) -> None:
    """Write sentences of 2 to 26 words, translated word by word, for training, validation and test."""
    generator = random.Random(1)
    for part, count in (("train", 120), ("valid", 6), ("test", 40)):
        lines = [generator.choices(sorted(ENGLISH), k=generator.randint(2, 26)) for _ in range(count)]
        source = "".join(" ".join(line) + "\n" for line in lines)
        target = "".join(" ".join(ENGLISH[word] for word in line) + "\n" for line in lines)
        (folder / f"{part}.en").write_text(source, encoding="utf-8")
        (folder / f"{part}.de").write_text(target, encoding="utf-8")


def request_of(corpus: Path, output: Path, models: str = "transformer,transformer-small", **changes: Any) -> Request:
    """Return the request for a comparison of these models with a budget of a few updates."""
    settings = {
        "model": TINY,
        "data": {
            "source": [str(corpus / "train.en")],
            "target": [str(corpus / "train.de")],
            "valid_source": str(corpus / "valid.en"),
            "valid_target": str(corpus / "valid.de"),
            "tokenizer": "word",
            "batch_tokens": 512,
        },
        "training": {"valid_sentences": 2},
        "decoding": {"beam": 2},
    }
    values: dict[str, Any] = {
        "entries": tuple(find_entries(models.split(","))),
        "settings": settings,
        "budget": read_budget("3ktok"),
        "test_source": corpus / "test.en",
        "test_references": (corpus / "test.de",),
        "output": output,
    }
    return Request(**{**values, **changes})


def in_this_process(phase: str, job: Path) -> PhaseEnd:
    """Run a phase in this process, which saves the seconds that a worker takes to start."""
    return phase_end(lambda request: result_of(reply_to(request, run_phase)), phase, job)


def interrupt_training(patch: pytest.MonkeyPatch) -> None:
    """Send SIGINT to this process after the third update of a training run."""
    update = RunTracker.update

    def interrupt(self: RunTracker, made: Any, progress: Any, fraction: Any) -> None:
        update(self, made, progress, fraction)
        if made.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    patch.setattr(RunTracker, "update", interrupt)

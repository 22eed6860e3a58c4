"""Runs of a few seconds: data (words spelt backwards), a model, interruptions."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from saccade.training.loop import Loop

WORDS = ["ab", "ba", "cad", "dac", "ee", "fg"]
MODEL = {
    "preset": "transformer-tiny",
    "encoder_layers": 1,
    "decoder_layers": 1,
    "width": 16,
    "feed_forward": 16,
    "heads": 2,
}


def write_pairs(folder: Path, count: int, longest: int) -> None:
    """Write `count` lines of up to `longest` words as source, and their reversal as target."""
    chooser = random.Random(0)
    lines = [" ".join(chooser.choices(WORDS, k=chooser.randint(1, longest))) for _ in range(count)]
    (folder / "train.src").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "train.tgt").write_text("\n".join(line[::-1] for line in lines) + "\n", encoding="utf-8")


def run_settings(folder: Path, *, hold_out: int, **training: Any) -> dict[str, Any]:
    """Return the settings of a run on the pairs of a folder; `training` is added to the training settings."""
    return {
        "model": MODEL,
        "data": {
            "source": str(folder / "train.src"),
            "target": str(folder / "train.tgt"),
            "hold_out": hold_out,
            "tokenizer": "char",
            "batch_tokens": 400,
        },
        "training": {"warmup_steps": 4, "device": "cpu", **training},
    }


STEPS = {"max_steps": 12, "validate_every": 5, "checkpoint_every": 4, "log_every": 2}
"""Training settings of a run with three checkpoints."""


def interrupted_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt every run by a signal after this update."""
    original = Loop.update

    def interrupt(self, batches):
        found = original(self, batches)
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(Loop, "update", interrupt)


def log_of(run: Path) -> str:
    """Return the log of a run."""
    return (run / "train.log").read_text(encoding="utf-8")

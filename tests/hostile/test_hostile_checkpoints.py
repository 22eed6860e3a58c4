"""Crafted checkpoints: never taken for a place to go on from, in bounded time and memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hostile.case import Case, check_refusal
from hostile.command import check_answer, command
from hostile.crafted_checkpoints import CHECKPOINTS
from hostile.guard import guarded, time_limit
from hostile.pristine import copy_of, resume_from
from saccade.errors import SaccadeError
from saccade.training.state import checkpoints


@pytest.mark.parametrize("case", CHECKPOINTS.parameters())
def test_a_crafted_checkpoint_is_refused(pristine_checkpoint: Path, tmp_path: Path, case: Case) -> None:
    case.make(copy_of(pristine_checkpoint, tmp_path))
    with guarded(tmp_path), pytest.raises(SaccadeError) as caught:
        resume_from(tmp_path)
    check_refusal(str(caught.value), case)


def test_a_sound_checkpoint_is_taken(pristine_checkpoint: Path, tmp_path: Path) -> None:
    copy_of(pristine_checkpoint, tmp_path)
    assert resume_from(tmp_path).progress.step == 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four updates with two checkpoints."""
    place = tmp_path_factory.mktemp("run")
    for name, line in (("source", "ein kleiner Hund\n"), ("target", "a small dog\n")):
        (place / name).write_text(line * 40, encoding="utf-8")
    small = ("--model.width", 16, "--model.heads", 2, "--model.feed-forward", 16, "--data.tokenizer", "byte")
    small += ("--model.encoder-layers", 1, "--model.decoder-layers", 1, "--data.batch-tokens", 256)
    steps = ("--training.max-steps", 4, "--training.checkpoint-every", 2, "--data.workers", 1)
    arguments = ("--source", place / "source", "--target", place / "target", "--output", place / "run")
    answer = command("train", *arguments, *small, *steps)
    assert answer.code == 0, answer.err
    return place / "run"


SOME = [case for case in CHECKPOINTS.cases if not case.name.startswith("weights_")][::8]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in SOME])
def test_a_run_is_not_resumed_from_a_crafted_checkpoint(run: Path, tmp_path: Path, case: Case) -> None:
    place = tmp_path / "run"
    shutil.copytree(run, place)
    newest = checkpoints(place / "checkpoints")[-1]
    case.make(newest)
    with time_limit(30):
        answer = command("train", "--resume", place)
    assert "Traceback" not in answer.err
    assert "internal error" not in answer.err
    assert case.file in answer.err
    if answer.code == 0:  # it went on from an older one
        assert f"damaged checkpoint: {newest / case.file}" in answer.err
    else:
        check_answer(answer)

"""Crafted checkpoints: refused in bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from saccade.errors import SaccadeError
from untrusted_input.case import Case, check_refusal
from untrusted_input.crafted_checkpoints import CHECKPOINTS
from untrusted_input.guard import guarded
from untrusted_input.pristine import copy_of, resume_from


@pytest.mark.parametrize("case", CHECKPOINTS.parameters())
def test_a_crafted_checkpoint_is_refused(pristine_checkpoint: Path, tmp_path: Path, case: Case) -> None:
    case.make(copy_of(pristine_checkpoint, tmp_path))
    with guarded(tmp_path), pytest.raises(SaccadeError) as caught:
        resume_from(tmp_path)
    check_refusal(str(caught.value), case)


def test_a_sound_checkpoint_is_taken(pristine_checkpoint: Path, tmp_path: Path) -> None:
    copy_of(pristine_checkpoint, tmp_path)
    assert resume_from(tmp_path).progress.step == 3

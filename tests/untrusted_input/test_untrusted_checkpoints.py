"""Crafted checkpoints: rejected in bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from saccade.errors import SaccadeError
from untrusted_input.case import Case, check_error
from untrusted_input.crafted_checkpoints import CHECKPOINTS
from untrusted_input.guard import guarded
from untrusted_input.pristine import copy_of, resume_from


@pytest.mark.parametrize("case", CHECKPOINTS.parameters())
def test_a_crafted_checkpoint_is_rejected(pristine_checkpoint: Path, tmp_path: Path, case: Case) -> None:
    case.make(copy_of(pristine_checkpoint, tmp_path))
    with guarded(tmp_path), pytest.raises(SaccadeError) as caught:
        resume_from(tmp_path)
    check_error(str(caught.value), case)


def test_a_valid_checkpoint_is_loaded(pristine_checkpoint: Path, tmp_path: Path) -> None:
    copy_of(pristine_checkpoint, tmp_path)
    assert resume_from(tmp_path).progress.step == 3

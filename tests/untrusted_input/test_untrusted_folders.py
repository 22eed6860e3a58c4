"""Crafted model folders: rejected with the file named, in bounded time and memory, without executing their content."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saccade.errors import SaccadeError
from saccade.inference.loading import load
from saccade.model_folder import weights_of
from untrusted_input.case import Case, check_error
from untrusted_input.command import check_answer, command
from untrusted_input.crafted_folders import REJECTED
from untrusted_input.crafted_manifests import HARMLESS
from untrusted_input.guard import guarded
from untrusted_input.pristine import copy_of


@pytest.mark.parametrize(("kind", "case"), [pytest.param(*row, id=f"{row[0]}-{row[1].name}") for row in REJECTED])
def test_a_crafted_folder_is_rejected(pristine: dict[str, Path], tmp_path: Path, kind: str, case: Case) -> None:
    folder = copy_of(pristine[kind], tmp_path)
    case.make(folder)
    with guarded(tmp_path) as watch, pytest.raises(SaccadeError) as caught:
        load(folder, "cpu")
    check_error(str(caught.value), case)
    assert "/etc/passwd" not in watch.opened
    assert "TOP-SECRET" not in str(caught.value)
    with guarded(tmp_path):
        answer = command("info", folder)
    check_answer(answer)
    assert (answer.code, answer.out) == (1, "")
    assert case.file in answer.err
    assert not Path("executed").exists()


@pytest.mark.parametrize("case", HARMLESS.parameters())
def test_files_that_the_manifest_does_not_list_are_not_read(
    pristine: dict[str, Path], tmp_path: Path, case: Case
) -> None:
    folder = copy_of(pristine["separate"], tmp_path)
    case.make(folder)
    with guarded(tmp_path) as watch:
        translator = load(folder, "cpu")
        answer = command("info", folder)
    assert answer.code == 0
    assert not [path for path in watch.opened if Path(path).name == "tokenizer.json"]
    original = load(pristine["separate"], "cpu")
    assert translator.tokenizers.source.encode("ein Hund") == original.tokenizers.source.encode("ein Hund")
    for name, tensor in weights_of(original.model).items():  # type: ignore[arg-type]
        assert torch.equal(weights_of(translator.model)[name], tensor)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "separate"])
def test_a_valid_folder_is_accepted_under_guard(pristine: dict[str, Path], tmp_path: Path, kind: str) -> None:
    folder = copy_of(pristine[kind], tmp_path)
    for arguments in (("info", folder), ("translate", folder)):
        with guarded(tmp_path):
            answer = command(*arguments, stdin=b"ein Hund\n")
        assert answer.code == 0
    assert answer.out.count("\n") == 1

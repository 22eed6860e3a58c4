"""Thousands of mutated inputs (a few hundred without `slow`): each is rejected, or loaded with its mutated content."""

from __future__ import annotations

from pathlib import Path

import pytest

from saccade.model_folder import load_model_folder
from untrusted_input.attempts import (
    Outcome,
    Subject,
    damaged_folder,
    load_checkpoint_at,
    mutated_checkpoint,
    mutated_model,
    mutated_pairs,
    mutated_recipe,
    mutated_tokenizer,
    run_attempts,
    table_of,
)
from untrusted_input.pristine import KINDS

QUICK = 60  # inputs of a subject in every test run


@pytest.fixture(scope="module")
def damaged(pristine: dict[str, Path], pristine_checkpoint: Path) -> list[Subject]:
    """Valid folders with flipped bits and truncated files."""
    return [
        damaged_folder(pristine["separate"], load_model_folder),
        damaged_folder(pristine_checkpoint, load_checkpoint_at),
    ]


@pytest.fixture(scope="module")
def mutated(pristine: dict[str, Path], pristine_checkpoint: Path) -> dict[Subject, int]:
    """Mutated inputs, and their number among 10,000 inputs."""
    files = [file for kind in KINDS for file in sorted(pristine[kind].glob("tokenizer*.json"))]
    return {
        mutated_recipe(): 2500,
        mutated_tokenizer(files): 2000,
        mutated_pairs(): 2000,
        mutated_model(pristine["separate"], "char and word"): 1250,
        mutated_model(pristine["bpe"], "bpe"): 1250,
        mutated_checkpoint(pristine_checkpoint): 1000,
    }


def test_damaged_files_are_named_errors(damaged: list[Subject], tmp_path: Path) -> None:
    for subject in damaged:
        outcomes = run_attempts(subject, range(QUICK), tmp_path)
        assert outcomes == {Outcome.REJECTED: QUICK}


def test_mutated_inputs_are_rejected_or_loaded_with_their_content(mutated: dict[Subject, int], tmp_path: Path) -> None:
    for subject in mutated:
        outcomes = run_attempts(subject, range(QUICK), tmp_path)
        assert outcomes.total() == QUICK
        assert outcomes[Outcome.REJECTED] > QUICK / 10  # many mutations are invalid


@pytest.mark.slow
def test_a_thousand_damaged_folders_are_rejected(
    damaged: list[Subject], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {subject.name: run_attempts(subject, range(500), tmp_path) for subject in damaged}
    with capsys.disabled():
        print(table_of(rows))
    assert sum(counts[Outcome.REJECTED] for counts in rows.values()) == 1000


@pytest.mark.slow
def test_ten_thousand_mutated_inputs_are_rejected_or_loaded_with_their_content(
    mutated: dict[Subject, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {subject.name: run_attempts(subject, range(count), tmp_path) for subject, count in mutated.items()}
    with capsys.disabled():
        print(table_of(rows))
    assert sum(counts.total() for counts in rows.values()) == 10_000

"""Mutated inputs, thousands of them: refused, or loaded as exactly what they say; a few hundred in every test run."""

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
    """Sound folders with flips and cuts in them."""
    return [
        damaged_folder(pristine["separate"], load_model_folder),
        damaged_folder(pristine_checkpoint, load_checkpoint_at),
    ]


@pytest.fixture(scope="module")
def mutated(pristine: dict[str, Path], pristine_checkpoint: Path) -> dict[Subject, int]:
    """All that is mutated, with the share of 10,000 inputs that it gets."""
    files = [file for kind in KINDS for file in sorted(pristine[kind].glob("tokenizer*.json"))]
    return {
        mutated_recipe(): 2500,
        mutated_tokenizer(files): 2000,
        mutated_pairs(): 2000,
        mutated_model(pristine["separate"], "char and word"): 1250,
        mutated_model(pristine["bpe"], "bpe"): 1250,
        mutated_checkpoint(pristine_checkpoint): 1000,
    }


def test_some_damage_is_refused_and_the_file_named(damaged: list[Subject], tmp_path: Path) -> None:
    for subject in damaged:
        outcomes = run_attempts(subject, range(QUICK), tmp_path)
        assert outcomes == {Outcome.REFUSED: QUICK}


def test_some_mutations_are_refused_or_loaded_as_what_they_say(mutated: dict[Subject, int], tmp_path: Path) -> None:
    for subject in mutated:
        outcomes = run_attempts(subject, range(QUICK), tmp_path)
        assert outcomes.total() == QUICK
        assert outcomes[Outcome.REFUSED] > QUICK / 10  # the mutator does hurt


@pytest.mark.slow
def test_a_thousand_flips_and_cuts_are_refused(
    damaged: list[Subject], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {subject.name: run_attempts(subject, range(500), tmp_path) for subject in damaged}
    with capsys.disabled():
        print(table_of(rows))
    assert sum(counts[Outcome.REFUSED] for counts in rows.values()) == 1000


@pytest.mark.slow
def test_ten_thousand_mutations_are_refused_or_loaded_as_what_they_say(
    mutated: dict[Subject, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {subject.name: run_attempts(subject, range(count), tmp_path) for subject, count in mutated.items()}
    with capsys.disabled():
        print(table_of(rows))
    assert sum(counts.total() for counts in rows.values()) == 10_000

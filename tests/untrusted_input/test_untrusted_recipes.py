"""Crafted recipes: rejected with file and line, in bounded time and memory, without executing their content."""

from __future__ import annotations

from pathlib import Path

import pytest

from saccade.config import read_yaml, write_yaml
from saccade.errors import SaccadeError
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_recipe
from untrusted_input.case import Case, check_error
from untrusted_input.command import check_answer, command
from untrusted_input.crafted_recipes import FILE, RECIPES, VALID
from untrusted_input.guard import guarded


@pytest.mark.parametrize("case", RECIPES.parameters())
def test_a_crafted_recipe_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.chdir(tmp_path)
    case.make(tmp_path)
    with guarded(tmp_path), pytest.raises(SaccadeError) as caught:
        resolve_recipe(tmp_path / FILE)
    check_error(str(caught.value), case)
    with guarded(tmp_path):
        answer = command("train", FILE)
    check_answer(answer)
    assert (answer.code, answer.out) == (1, "")
    assert case.file in answer.err
    assert {path.name for path in tmp_path.iterdir()} <= {FILE}  # no run directory, and nothing was executed


WORDS = ["no", "yes", "off", "2020-01-01", "12:30:45", "0o17", "017", "1_000", "1e3", ".inf", "=", "<<", "~x", "für"]
ODD = ["true", "null", "7", "7.5", "a\tb", "a: b", "\x85", "a\u2028b", "\udcff", " x ", "'", "#", "\u202e", "\ufeff"]


@pytest.mark.parametrize("word", WORDS)
def test_a_plain_scalar_is_read_as_a_string(tmp_path: Path, word: str) -> None:
    (tmp_path / FILE).write_text(f"{VALID}output: {word}\n", encoding="utf-8")
    config = resolve_recipe(tmp_path / FILE)
    assert config.output == word
    write_yaml(config, tmp_path / "again.yaml")
    assert RunConfig.model_validate(read_yaml(tmp_path / "again.yaml")) == config


@pytest.mark.parametrize("word", ODD)
def test_a_written_recipe_is_read_back_unchanged(tmp_path: Path, word: str) -> None:
    config = RunConfig(model={"preset": "transformer-tiny"}, output=word)
    write_yaml(config, tmp_path / FILE)
    assert RunConfig.model_validate(read_yaml(tmp_path / FILE)) == config

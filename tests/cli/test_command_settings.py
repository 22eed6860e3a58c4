from __future__ import annotations

from typing import Any

import pytest

from saccade.cli.options.command import complete_json, split_dotted
from saccade.cli.options.settings import apply_settings, split_lists
from saccade.errors import SaccadeError, UsageError
from saccade.training.config import RunConfig


def test_dotted_settings_may_be_anywhere() -> None:
    arguments = ["--training.seed", "3", "recipe.yaml", "--data.joint", "--output", "a.b", "--model.norm=pre"]
    assert split_dotted(arguments) == (
        ["recipe.yaml", "--output", "a.b"],
        ["--training.seed", "3", "--data.joint", "--model.norm=pre"],
    )


def test_text_with_a_dot_is_not_a_setting() -> None:
    arguments = ["--target=3.5", "--well. yes", "--", "--decoding.beam", "3"]
    assert split_dotted(arguments) == (arguments, [])


def test_json_takes_a_file_only_if_its_name_ends_in_json() -> None:
    assert complete_json(["runs/x", "--json"]) == ["runs/x", "--json", "-"]
    assert complete_json(["--json", "runs/x"]) == ["--json", "-", "runs/x"]
    assert complete_json(["--json", "a.json", "runs/x"]) == ["--json", "a.json", "runs/x"]
    assert complete_json(["--json", "-"]) == ["--json", "-"]


def test_lists_are_split_at_commas() -> None:
    values: dict[str, Any] = {"training": {"metrics": "bleu,chrf", "seed": "3"}, "data": {"source": "a,b"}, "wrong": {}}
    split_lists(RunConfig, values)
    assert values == {
        "training": {"metrics": ["bleu", "chrf"], "seed": "3"},
        "data": {"source": ["a", "b"]},
        "wrong": {},
    }


def test_errors_caused_by_settings_are_usage_errors() -> None:
    def fails_with_settings(settings: Any) -> None:
        if settings:
            raise SaccadeError("broken by the settings")

    def fails_always(_: Any) -> None:
        raise SaccadeError("broken before")

    with pytest.raises(UsageError, match="broken by the settings"):
        apply_settings(fails_with_settings, {"a": 1})
    with pytest.raises(SaccadeError, match="broken before") as caught:
        apply_settings(fails_always, {"a": 1})
    assert caught.value.exit_code == 1

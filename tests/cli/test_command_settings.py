from __future__ import annotations

from typing import Any

import pytest

from saccade.cli.command import complete_json, separate
from saccade.cli.settings import apply_settings, split_lists
from saccade.errors import SaccadeError, UsageError
from saccade.training.config import RunConfig


def test_dotted_settings_may_stand_anywhere() -> None:
    arguments = ["--training.seed", "3", "recipe.yaml", "--data.joint", "--output", "a.b", "--model.norm=pre"]
    assert separate(arguments) == (
        ["recipe.yaml", "--output", "a.b"],
        ["--training.seed", "3", "--data.joint", "--model.norm=pre"],
    )


def test_text_is_no_setting() -> None:
    arguments = ["--target=3.5", "--well. yes", "--", "--decoding.beam", "3"]
    assert separate(arguments) == (arguments, [])


def test_json_takes_a_file_only_if_it_is_called_one() -> None:
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


def test_only_what_the_settings_break_is_faulty_usage() -> None:
    def sound(settings: Any) -> None:
        if settings:
            raise SaccadeError("broken by the settings")

    def broken(_: Any) -> None:
        raise SaccadeError("broken before")

    with pytest.raises(UsageError, match="broken by the settings"):
        apply_settings(sound, {"a": 1})
    with pytest.raises(SaccadeError, match="broken before") as caught:
        apply_settings(broken, {"a": 1})
    assert caught.value.exit_code == 1

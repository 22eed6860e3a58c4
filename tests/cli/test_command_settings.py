from __future__ import annotations

from typing import Any

import pytest

from saccade.cli.options.command import complete_json, split_dotted
from saccade.cli.options.settings import apply_settings, split_lists
from saccade.config import NoValue, build
from saccade.data.config import DataConfig
from saccade.decoding.config import DecodingConfig
from saccade.errors import InputFileError, SaccadeError, UsageError
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


def test_errors_in_files_that_settings_name_are_input_errors() -> None:
    def fails_on_a_file(settings: Any) -> None:
        if settings:
            raise InputFileError("no such file", where="a.en")

    with pytest.raises(InputFileError) as caught:
        apply_settings(fails_on_a_file, {"a": 1})
    assert caught.value.exit_code == 1


def test_advice_names_the_help_of_the_command() -> None:
    def fails(settings: Any) -> None:
        if settings:
            build(DecodingConfig, settings, where="test")

    with pytest.raises(UsageError) as caught:
        apply_settings(fails, {"beam": 0}, command="saccade translate")
    assert caught.value.hint == "see saccade translate --help-all"


@pytest.mark.parametrize("name", ["cache", "workers", "source", "max_length"])
def test_only_flags_may_lack_a_value(name: str) -> None:
    assert build(DataConfig, {"joint": NoValue("true")}, where="test").joint is True
    with pytest.raises(SaccadeError, match="needs a value"):
        build(DataConfig, {name: NoValue("true")}, where="test")

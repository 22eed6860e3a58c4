from __future__ import annotations

import pytest
from pydantic import Field, model_validator

from saccade.config import Config, build, merge, parse_overrides, read_yaml, write_yaml
from saccade.errors import SaccadeError, UsageError


class Inner(Config):
    learning_rate: float = Field(0.1, gt=0)
    """How fast."""
    names: tuple[str, ...] = ()

    @model_validator(mode="after")
    def fit_together(self) -> Inner:
        if self.learning_rate > 5 and self.names:
            raise ValueError("names are for slow learning: lower learning-rate, or leave names out")
        return self


class Outer(Config):
    training: Inner = Inner()
    size: int = 3
    """How big."""


def test_yaml_round_trip(tmp_path):
    config = Outer(training=Inner(learning_rate=7e-4, names=("a", "ü")), size=5)
    write_yaml(config, tmp_path / "config.yaml")
    assert build(Outer, read_yaml(tmp_path / "config.yaml"), where="x") == config


def test_hyphens_and_numbers_in_yaml(tmp_path):
    (tmp_path / "r.yaml").write_text("training: {learning-rate: 7e-4}\nsize: '4'\n", encoding="utf-8")
    config = build(Outer, read_yaml(tmp_path / "r.yaml"), where="r")
    assert config.training.learning_rate == 7e-4
    assert config.size == 4


def test_dotted_overrides():
    nested = parse_overrides(["--training.learning-rate", "7e-4", "--size=9", "--training.flag", "--a.b.c", "-1"])
    assert nested == {"training": {"learning_rate": "7e-4", "flag": "true"}, "size": "9", "a": {"b": {"c": "-1"}}}


@pytest.mark.parametrize("arguments", [["stray"], ["--"], ["--size", "3", "--size.inner", "4"]])
def test_invalid_overrides_are_usage_errors(arguments):
    with pytest.raises(UsageError):
        parse_overrides(arguments)


def test_merge_is_recursive():
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "e": 4}) == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({"sise": 3}, ["unknown setting 'sise'", "did you mean 'size'"]),
        (
            {"training": {"lerning_rate": 3}},
            ["unknown setting 'training.lerning-rate'", "did you mean 'learning-rate'"],
        ),
        ({"size": "many"}, ["setting 'size' cannot be 'many'"]),
        ({"training": {"learning_rate": -1}}, ["setting 'training.learning-rate' cannot be -1", "greater than 0"]),
        ({"training": 7}, ["setting 'training' cannot be 7"]),
    ],
)
def test_errors_name_the_key_and_the_nearest_valid_one(values, messages):
    with pytest.raises(SaccadeError) as caught:
        build(Outer, values, where="recipe.yaml")
    for message in ["recipe.yaml", *messages]:
        assert message in str(caught.value)


def test_a_conflict_of_settings_is_one_message():
    with pytest.raises(SaccadeError) as caught:
        build(Outer, {"training": {"learning_rate": 7, "names": ["a"]}}, where="recipe.yaml")
    assert caught.value.what == "'training': names are for slow learning: lower learning-rate, or leave names out"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1, 2", "line 1|line 2"),
        (b"- just\n- a list\n", "no settings"),
        (b"", "no settings"),
        (b"a: \xff\n", "not UTF-8"),
        (b"!!python/object/apply:os.system ['true']\n", "invalid YAML"),
    ],
)
def test_an_invalid_recipe_is_an_error(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(SaccadeError, match=message):
        read_yaml(path)


def test_a_missing_recipe_is_an_error(tmp_path):
    with pytest.raises(SaccadeError, match="No such file"):
        read_yaml(tmp_path / "absent.yaml")

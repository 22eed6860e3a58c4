from __future__ import annotations

import pytest
from typer.main import get_command

from saccade.cli.main import app
from saccade.cli.options.flags import FLAGS
from saccade.config_help import describe
from saccade.data.config import DataConfig
from saccade.decoding.config import DecodingConfig
from saccade.evaluation.metrics import METRICS
from saccade.models.registry import FAMILIES, load_family, presets
from saccade.toolkit_aliases import OPTIONS, VALUES, options_for_alias, value_for_alias
from saccade.training.config import TrainingConfig

BOTH_LAYERS = ["--model.encoder-layers", "--model.decoder-layers"]


def all_settings() -> dict[str, str]:
    """The type of every setting of every family, by name."""
    found = {f"model.{one.name}": one.type for name in FAMILIES for one in describe(load_family(name).config)}
    for prefix, kind in (("data.", DataConfig), ("training.", TrainingConfig), ("decoding.", DecodingConfig)):
        found |= {setting.name: setting.type for setting in describe(kind, prefix=prefix)}
    return found


def test_every_suggested_option_exists() -> None:
    plain = {
        option.removeprefix("--")
        for command in get_command(app).commands.values()
        for parameter in command.params
        for option in parameter.opts
    }
    known = {*plain, *all_settings(), *(flag.removeprefix("--") for flag in FLAGS)}
    assert {one for names in OPTIONS.values() for one in names} <= known


def test_every_suggested_value_exists() -> None:
    choices = {choice for shown in all_settings().values() for choice in shown.split("|")}
    choices |= {
        str(choice)
        for command in get_command(app).commands.values()
        for parameter in command.params
        for choice in parameter.type_descriptor.choices or ()
    }
    known = {*choices, *METRICS, *FAMILIES, *presets(), "perplexity", "loss"}
    assert {one for names in VALUES.values() for one in names} <= known


@pytest.mark.parametrize(
    ("name", "valid", "expected"),
    [
        ("--lr", ["--training.learning-rate", "--lrx"], ["--training.learning-rate"]),
        ("--training.lr", ["--training.learning-rate"], ["--training.learning-rate"]),
        ("--batch_size", ["--batch-tokens", "--decoding.batch-tokens"], ["--batch-tokens"]),
        ("--layers", BOTH_LAYERS, BOTH_LAYERS),
        ("--layers", ["--model.layers"], ["--model.layers"]),
        ("--lr", ["--output"], []),
        ("--nonsense", ["--output"], []),
    ],
)
def test_options_by_their_usual_name(name: str, valid: list[str], expected: list[str]) -> None:
    assert options_for_alias(name, valid) == expected


def test_values_by_their_usual_name() -> None:
    assert value_for_alias("AdamW", ["adam", "muon"]) == "adam"
    assert value_for_alias("BLEU", ["bleu"]) == "bleu"
    assert value_for_alias("fp16", ["float32", "bf16"]) == "bf16"
    assert value_for_alias("fp16", ["nothing"]) is None

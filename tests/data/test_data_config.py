from __future__ import annotations

from typing import Any

import pytest

from saccade.config import build
from saccade.config_help import describe
from saccade.data.config import DataConfig
from saccade.errors import SaccadeError


def test_defaults_share_one_bpe_vocabulary() -> None:
    config = DataConfig()
    assert config.shares_vocabulary
    assert (config.target_kind, config.target_size) == ("bpe", 8000)


@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        ({"tokenizer": "unigram"}, True),
        ({"tokenizer": "byte"}, True),
        ({"tokenizer": "word"}, False),
        ({"tokenizer": "char"}, False),
        ({"target_tokenizer": "char"}, False),
        ({"target_vocabulary": 4000}, False),
        ({"joint": False}, False),
        ({"tokenizer": "word", "joint": True}, True),
    ],
)
def test_default_of_joint(settings: dict[str, Any], shared: bool) -> None:
    assert build(DataConfig, settings, where="test").shares_vocabulary is shared


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": 4}, "vocabulary"),
        ({"batch_tokens": 0}, "batch-tokens"),
        ({"max_length": 0}, "max-length"),
        ({"min_frequency": 0}, "min-frequency"),
        ({"hold_out": -1}, "hold-out"),
        ({"max_ratio": float("nan")}, "max-ratio"),
        ({"max_ratio": 0.5}, "max-ratio"),
        ({"tokenizer": "sentences"}, "tokenizer"),
        ({"joint": True, "target_tokenizer": "char"}, "one vocabulary"),
        ({"target": "a.de"}, "without source"),
        ({"source": ["a", "b"], "target": "c"}, "2 source files but 1 target files"),
        ({"source": ["a", "b"], "weights": [1]}, "2 source files but 1 weights"),
        ({"source": ["a", "b"], "weights": [1, 0]}, "weights.1"),
        ({"source": ["a", "b"], "weights": [1, 2], "temperature": 5}, "give one of them"),
        ({"source": "a", "temperature": 0}, "temperature"),
        ({"source": ""}, "source.0"),
        ({"workers": 0}, "workers"),
        ({"tokenizer_pairs": 0}, "tokenizer-pairs"),
        ({"valid_target": "a.de"}, "without valid-source"),
        ({"batch_token": 5}, "did you mean 'batch-tokens'"),
    ],
)
def test_invalid_settings_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        build(DataConfig, settings, where="test")


@pytest.mark.parametrize("given", ["a.en", ["a.en"], ("a.en",)])
def test_single_path_becomes_a_tuple(given: Any) -> None:
    config = build(DataConfig, {"source": given, "target": given}, where="test")
    assert config.source == config.target == ("a.en",)
    assert build(DataConfig, config.model_dump(mode="json"), where="test") == config
    assert build(DataConfig, {"source": None}, where="test") == DataConfig() == DataConfig(source=())


def test_every_setting_has_help() -> None:
    assert all(setting.text for setting in describe(DataConfig))

from __future__ import annotations

from typing import Any

import pytest

from saccade.config import build, describe
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
def test_joint_is_resolved(settings: dict[str, Any], shared: bool) -> None:
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
        ({"max_ratio": 0.5}, "longer side over shorter"),
        ({"tokenizer": "sentences"}, "tokenizer"),
        ({"joint": True, "target_tokenizer": "char"}, "one vocabulary"),
        ({"target": "a.de"}, "without source"),
        ({"valid_target": "a.de"}, "without valid-source"),
        ({"batch_token": 5}, "did you mean 'batch-tokens'"),
    ],
)
def test_faulty_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        build(DataConfig, settings, where="test")


def test_every_setting_has_help() -> None:
    assert all(text for _, _, text in describe(DataConfig))

from __future__ import annotations

import pytest

from saccade.config import build
from saccade.config_help import describe
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError


def test_every_setting_has_a_help_text():
    rows = describe(DecodingConfig)
    assert [setting.name for setting in rows if not setting.text] == []


def test_the_defaults_are_valid_and_survive_a_round_trip():
    config = DecodingConfig()
    assert (config.beam, config.length_penalty, config.nbest, config.sample) == (5, "gnmt", 1, False)
    sampling = DecodingConfig(sample=True, nbest=20, temperature=0.7)
    for each in (config, sampling):
        assert build(DecodingConfig, each.model_dump(mode="json"), where="a test") == each


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"beam": 0}, "beam"),
        ({"nbest": 6}, "nbest"),
        ({"length_alpha": -1}, "length-alpha"),
        ({"length_alpha": float("inf")}, "length-alpha"),
        ({"length_penalty": "gmnt"}, "length-penalty"),
        ({"sample": True, "temperature": 0}, "temperature"),
        ({"sample": True, "top_p": 0}, "top-p"),
        ({"sample": True, "top_p": 1.1}, "top-p"),
        ({"temperature": 0.7}, "temperature"),
        ({"top_k": 10}, "top-k"),
        ({"top_p": 0.9}, "top-p"),
        ({"beam": 1, "coverage_beta": 0.2}, "coverage-beta"),
        ({"sample": True, "coverage_beta": 0.2}, "coverage-beta"),
        ({"min_length": 9, "max_length": 8}, "min-length"),
        ({"beams": 4}, "beams"),
    ],
)
def test_an_error_has_the_name_of_the_invalid_setting(values, name):
    with pytest.raises(SaccadeError) as error:
        build(DecodingConfig, values, where="a test")
    assert name in str(error.value)


def test_a_batch_has_more_sentences_with_one_hypothesis_each():
    beam, greedy = DecodingConfig(beam=5).tokens_at_once, DecodingConfig(beam=1).tokens_at_once
    assert greedy > beam
    assert DecodingConfig(sample=True).tokens_at_once == greedy
    assert DecodingConfig(sample=True, nbest=3).tokens_at_once == beam
    assert DecodingConfig(beam=1, batch_tokens=77).tokens_at_once == 77

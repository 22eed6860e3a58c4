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
    ("values", "message"),
    [
        ({"beam": 0}, "setting 'beam' cannot be 0"),
        ({"nbest": 6}, "a beam of 5 cannot give the 6 best: raise beam to 6, or lower nbest"),
        ({"length_alpha": -1}, "setting 'length-alpha' cannot be -1"),
        ({"length_alpha": float("inf")}, "setting 'length-alpha' cannot be inf"),
        ({"length_penalty": "gmnt"}, "setting 'length-penalty' cannot be 'gmnt'"),
        ({"sample": True, "temperature": 0}, "setting 'temperature' cannot be 0"),
        ({"sample": True, "top_p": 0}, "setting 'top-p' cannot be 0"),
        ({"sample": True, "top_p": 1.1}, "setting 'top-p' cannot be 1.1"),
        ({"temperature": 0.7}, "temperature only acts on sampling: set sample to true, or leave temperature out"),
        ({"top_k": 10}, "top-k only acts on sampling"),
        ({"top_p": 0.9}, "top-p only acts on sampling"),
        ({"beam": 1, "coverage_beta": 0.2}, "coverage-beta ranks the hypotheses of a beam"),
        ({"sample": True, "coverage_beta": 0.2}, "coverage-beta ranks the hypotheses of a beam"),
        ({"min_length": 9, "max_length": 8}, "min-length 9 is above max-length 8"),
        ({"beams": 4}, "unknown setting 'beams'"),
    ],
)
def test_an_invalid_setting_is_an_error(values, message):
    with pytest.raises(SaccadeError) as error:
        build(DecodingConfig, values, where="a test")
    assert message in str(error.value)


def test_a_batch_has_more_sentences_with_one_hypothesis_each():
    beam, greedy = DecodingConfig(beam=5).tokens_at_once, DecodingConfig(beam=1).tokens_at_once
    assert greedy > beam
    assert DecodingConfig(sample=True).tokens_at_once == greedy
    assert DecodingConfig(sample=True, nbest=3).tokens_at_once == beam
    assert DecodingConfig(beam=1, batch_tokens=77).tokens_at_once == 77

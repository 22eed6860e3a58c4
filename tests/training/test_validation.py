from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from saccade.data.reading.pair_files import Pair
from saccade.decoding.config import DecodingConfig
from saccade.training import validation
from saccade.training.validation import validate

PAIRS = [Pair("one", "eins"), Pair("two", "zwei"), Pair("one", "ein")]


class FakeTranslator:
    """A translator that echoes its input and keeps the decoding settings."""

    symbols = device = None
    model = SimpleNamespace(training=False, eval=lambda: None, train=lambda mode: None)

    def __init__(self, decoding: DecodingConfig) -> None:
        self.decoding = decoding
        self.used: DecodingConfig | None = None

    def stream(self, sources: list[str], settings: DecodingConfig) -> list[Any]:
        self.used = settings
        return [SimpleNamespace(text=source) for source in sources]


def settings_of_validation(decoding: DecodingConfig, monkeypatch: pytest.MonkeyPatch, **options: Any) -> DecodingConfig:
    """The decoding settings with which validation translates."""
    monkeypatch.setattr(validation, "sorted_batches", lambda corpus, tokens: [[0]])
    monkeypatch.setattr(validation, "collate", lambda *_: SimpleNamespace(to=lambda device: None))
    objective = SimpleNamespace(loss=lambda *_: SimpleNamespace(metrics={"nll": 6.0}, count=3))
    translator = FakeTranslator(decoding)
    corpus = cast(Any, SimpleNamespace(pairs=PAIRS))
    found = validate(
        cast(Any, translator),
        corpus,
        cast(Any, objective),
        metrics=("exact-match",),
        batch_tokens=100,
        sentences=5,
        samples=1,
        **options,
    )
    assert (found.loss, found.scores["exact-match"].value) == (2.0, 0.0)
    assert [(sample.source, sample.reference) for sample in found.samples] == [("one", "eins")]
    assert translator.used is not None
    return translator.used


def test_validation_is_greedy_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = DecodingConfig(beam=7, coverage_beta=0.2, length_alpha=0.3)
    used = settings_of_validation(decoding, monkeypatch)
    assert (used.beam, used.nbest, used.coverage_beta, used.length_alpha) == (1, 1, 0.0, 0.3)


def test_validation_with_a_beam_keeps_the_coverage_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding = DecodingConfig(sample=True, beam=7, temperature=0.5)
    used = settings_of_validation(decoding, monkeypatch, beam=4)
    assert (used.beam, used.sample) == (4, False)
    covered = settings_of_validation(DecodingConfig(beam=7, coverage_beta=0.2), monkeypatch, beam=4)
    assert covered.coverage_beta == 0.2

from __future__ import annotations

import threading

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import build_model
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.search import search
from saccade.errors import SaccadeError
from saccade.inference import translator as module
from saccade.inference.translator import Translator
from saccade.model_folder import vocabulary_sizes

TEXTS = ["ab cd", "", "ef", "ab ab cd ef gh", "gh", "cd ef ab", "  ", "ef gh"]


@pytest.fixture(scope="module")
def translator():
    pairs = [Pair("ab cd ef gh", "AB CD EF GH"), Pair("gh ab", "GH AB")] * 3
    tokenizers = train_tokenizers(pairs, DataConfig(tokenizer="char"))
    model = build_model(("transformer", {}), vocabulary_sizes(tokenizers))
    return Translator(model, tokenizers, DecodingConfig(beam=3, min_length=3, max_length=8))


def test_one_text_gives_one_text_and_many_give_many(translator):
    assert isinstance(translator.translate("ab"), str)
    assert translator.translate(["ab", "cd"]) == [translator.translate("ab"), translator.translate("cd")]


@pytest.mark.parametrize("changes", [{"beam": 1}, {"beam": 4}, {"sample": True, "seed": 5}])
@pytest.mark.parametrize("batch_tokens", [1, 7, 4096])
def test_outputs_do_not_depend_on_batch_size_and_window(translator, monkeypatch, changes, batch_tokens):
    expected = translator.translate(TEXTS, **changes)
    monkeypatch.setattr(module, "WINDOW", 3)
    assert translator.translate(TEXTS, batch_tokens=batch_tokens, **changes) == expected
    assert expected[1] == expected[6] == ""
    assert any(expected)


@pytest.mark.parametrize("changes", [{"beam": 1}, {"beam": 4, "nbest": 2}, {"sample": True, "seed": 5}])
def test_parallel_batches_give_the_outputs_of_sequential_ones(translator, monkeypatch, changes):
    expected = [line.text for line in translator.translate_window(TEXTS, translator.settings(changes))]
    monkeypatch.setattr("saccade.parallel_map.MIN_TOKENS", 7)
    monkeypatch.setattr("saccade.inference.engines.torch_engine.MIN_WORKER_TOKENS", 7)
    torch.set_num_threads(2)
    barrier = threading.Barrier(2, timeout=60)  # passed only by two threads at once
    shapes = []

    def recorded(model, request):
        shapes.append(request.given.mask.shape)
        if len(shapes) <= 2:
            barrier.wait()
        return search(model, request)

    monkeypatch.setattr("saccade.inference.engines.torch_engine.search", recorded)
    settings = translator.settings({"batch_tokens": 14, **changes})
    assert [line.text for line in translator.translate_window(TEXTS, settings)] == expected
    assert len(shapes) > 2
    assert all(sentences == 1 or sentences * (length - 1) <= 7 for sentences, length in shapes)
    assert torch.get_num_threads() == 2


def test_a_stream_reads_one_window_at_a_time(translator, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    read = []

    def lines():
        for number in range(100):
            read.append(number)
            yield "ab"

    next(translator.stream(lines()))
    assert len(read) == 2


def test_outputs_start_with_their_prefixes(translator):
    translations = list(translator.stream(["ab", "cd"], translator.decoding, ["GH", ""]))
    assert translations[0].text.startswith("GH")
    with pytest.raises(SaccadeError):
        list(translator.stream(["ab", "cd"], translator.decoding, ["GH"]))


def test_settings_of_the_last_call_are_reused(translator, monkeypatch):
    first = translator.settings({"beam": 2})
    assert translator.settings({"beam": 2}) is first
    assert translator.settings({"beam": 4}).beam == 4
    with pytest.raises(SaccadeError):
        translator.settings({"beam": True})  # equal to 1 in Python
    assert translator.settings({"beam": 1}).beam == 1
    with pytest.raises(SaccadeError):
        translator.settings({"beam": True})
    monkeypatch.setattr(translator, "decoding", DecodingConfig(beam=3, max_length=5))
    assert translator.settings({"beam": 1}).max_length == 5


def test_unknown_settings_are_errors(translator):
    with pytest.raises(SaccadeError) as caught:
        translator.translate("ab", beem=2)
    assert "'beam'" in str(caught.value)


def test_scores_are_those_of_the_search(translator):
    """The scores that a search reports equal those of forced decoding."""
    for translation in translator.stream(["ab cd", "ef", "gh gh gh"], translator.settings({"nbest": 2})):
        for candidate in translation.candidates:
            if len(candidate.token_log_probabilities) == len(candidate.pieces):
                continue  # cut off: it has no end symbol to score
            ids = [translator.tokenizers.target.encode(candidate.text).ids]
            if ids[0] and translator.tokenizers.target.pieces(ids[0]) == list(candidate.pieces):
                scored = translator.score([translation.source], [candidate.text])[0]
                assert scored.log_probability == pytest.approx(candidate.log_probability, abs=1e-4)
                assert scored.count == len(candidate.pieces) + 1


def test_scores_do_not_depend_on_the_batch(translator):
    sources, targets = ["ab cd", "ef", "", "gh"], ["AB", "EF GH", "AB", ""]
    batched = translator.score(sources, targets)
    alone = [translator.score([s], [t])[0] for s, t in zip(sources, targets, strict=True)]
    for first, second in zip(batched, alone, strict=True):
        assert first.log_probability == pytest.approx(second.log_probability, abs=1e-4)
        assert first.count == second.count
    with pytest.raises(SaccadeError):
        translator.score(sources, targets[:3])


def test_an_explanation_fits_its_texts(translator):
    explanation = translator.explain("ab cd")
    rows, columns = len(explanation.target_pieces), len(explanation.source_pieces)
    assert explanation.alignment.shape == (rows, columns)
    assert_close(explanation.alignment.sum(1), torch.ones(rows))
    assert {record.kind for record in explanation.attention} == {"encoder-self", "decoder-self", "cross"}
    assert explanation.target == translator.translate("ab cd")
    assert len(explanation.to_json()["alignment"]) == rows


def test_a_given_target_is_explained(translator):
    explanation = translator.explain("ab cd", target="AB CD")
    assert explanation.target == "AB CD"
    assert len(explanation.target_pieces) == 6
    with pytest.raises(SaccadeError):
        translator.explain("  ")

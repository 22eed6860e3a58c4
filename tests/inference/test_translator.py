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
def test_batch_size_and_windows_have_no_influence(translator, monkeypatch, changes, batch_tokens):
    expected = translator.translate(TEXTS, **changes)
    monkeypatch.setattr(module, "WINDOW", 3)
    assert translator.translate(TEXTS, batch_tokens=batch_tokens, **changes) == expected
    assert expected[1] == expected[6] == ""
    assert any(expected)


@pytest.mark.parametrize("changes", [{"beam": 1}, {"beam": 4, "nbest": 2}, {"sample": True, "seed": 5}])
def test_batches_side_by_side_give_what_one_after_another_give(translator, monkeypatch, changes):
    expected = [line.text for line in translator.translate_window(TEXTS, translator.settings(changes))]
    monkeypatch.setattr("saccade.parallel_map.MIN_TOKENS", 7)
    monkeypatch.setattr("saccade.inference.engine.LEAST_SHARE", 7)
    torch.set_num_threads(2)
    both = threading.Barrier(2, timeout=60)  # passed only by two threads at once
    rows = []

    def noted(model, source, *given, **options):
        rows.append(source.mask.shape)
        if len(rows) <= 2:
            both.wait()
        return search_source(model, source, *given, **options)

    monkeypatch.setattr("saccade.inference.engine.search_source", noted)
    settings = translator.settings({"batch_tokens": 14, **changes})
    assert [line.text for line in translator.translate_window(TEXTS, settings)] == expected
    assert len(rows) > 2
    assert all(sentences == 1 or sentences * (length - 1) <= 7 for sentences, length in rows)
    assert torch.get_num_threads() == 2


def test_the_stream_takes_no_more_than_a_window(translator, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    taken = []

    def lines():
        for number in range(100):
            taken.append(number)
            yield "ab"

    next(translator.stream(lines()))
    assert len(taken) == 2


def test_prefixes_are_kept(translator):
    found = list(translator.stream(["ab", "cd"], translator.decoding, ["GH", ""]))
    assert found[0].text.startswith("GH")
    with pytest.raises(SaccadeError, match="prefix"):
        list(translator.stream(["ab", "cd"], translator.decoding, ["GH"]))


def test_unknown_settings_are_refused(translator):
    with pytest.raises(SaccadeError, match="did you mean 'beam'"):
        translator.translate("ab", beem=2)


def test_scores_are_those_of_the_search(translator):
    """What the search reports for its own output is what forced decoding finds."""
    for translation in translator.stream(["ab cd", "ef", "gh gh gh"], translator.settings({"nbest": 2})):
        for candidate in translation.candidates:
            if len(candidate.token_log_probabilities) == len(candidate.pieces):
                continue  # cut off: it has no end to score
            ids = [translator.tokenizers.target.encode(candidate.text).ids]
            if ids[0] and translator.tokenizers.target.pieces(ids[0]) == list(candidate.pieces):
                scored = translator.score([translation.source], [candidate.text])[0]
                assert scored.log_probability == pytest.approx(candidate.log_probability, abs=1e-4)
                assert scored.count == len(candidate.pieces) + 1


def test_scores_do_not_depend_on_company(translator):
    sources, targets = ["ab cd", "ef", "", "gh"], ["AB", "EF GH", "AB", ""]
    together = translator.score(sources, targets)
    alone = [translator.score([s], [t])[0] for s, t in zip(sources, targets, strict=True)]
    for first, second in zip(together, alone, strict=True):
        assert first.log_probability == pytest.approx(second.log_probability, abs=1e-4)
        assert first.count == second.count
    with pytest.raises(SaccadeError, match="4 sources and 3 targets"):
        translator.score(sources, targets[:3])


def test_an_explanation_fits_its_texts(translator):
    found = translator.explain("ab cd")
    rows, columns = len(found.target_pieces), len(found.source_pieces)
    assert found.alignment.shape == (rows, columns)
    assert_close(found.alignment.sum(1), torch.ones(rows))
    assert {record.kind for record in found.attention} == {"encoder-self", "decoder-self", "cross"}
    assert found.target == translator.translate("ab cd")
    assert len(found.to_json()["alignment"]) == rows


def test_a_given_target_is_explained(translator):
    found = translator.explain("ab cd", target="AB CD")
    assert found.target == "AB CD"
    assert len(found.target_pieces) == 6
    with pytest.raises(SaccadeError, match="empty"):
        translator.explain("  ")

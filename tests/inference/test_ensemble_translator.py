from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import build_model, choice_of
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.inference.ensemble_translator import are_equal, check_equal_targets
from saccade.inference.loading import load
from saccade.inference.translator import Translator
from saccade.model_folder import ModelFolder, save_model_folder, vocabulary_sizes

SHALLOW = ("transformer", {})
DEEP = ("transformer", {"norm": "pre", "decoder_layers": 3, "width": 24, "heads": 3})
PAIRS = [Pair("ab cd ef gh", "AB CD EF GH"), Pair("gh ab", "GH AB")] * 3
TEXTS = ["ab cd", "", "ef", "ab ab cd ef gh", "gh", "cd ef ab"]
SEARCHES = [{"beam": 1}, {"beam": 4}, {"sample": True, "seed": 5}]
TARGETS = Tokenizer.train("char", [pair.target for pair in PAIRS], size=50)
LETTERS = Tokenizer.train("char", [pair.source for pair in PAIRS], size=50)
WORDS = Tokenizer.train("word", [pair.source for pair in PAIRS], size=50)


def save(path: Path, subject, source: Tokenizer, seed: int = 0, target: Tokenizer = TARGETS, **decoding) -> Path:
    tokenizers = Tokenizers(source, target)
    model = build_model(subject, vocabulary_sizes(tokenizers), seed)
    settings = DecodingConfig(**{"beam": 3, "min_length": 2, "max_length": 8, **decoding})
    save_model_folder(path, ModelFolder(model, choice_of(subject), tokenizers, settings.model_dump()))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("ensemble")
    return {
        "shallow": save(parent / "shallow", SHALLOW, LETTERS, length_alpha=0.5),
        "deep": save(parent / "deep", DEEP, LETTERS, seed=1),
        "words": save(parent / "words", DEEP, WORDS, seed=2),
    }


def mixed(folders: dict[str, Path], *names: str, **settings) -> Translator:
    return load([folders[name] for name in names], "cpu", **settings)


@pytest.mark.parametrize("changes", SEARCHES)
def test_a_model_with_itself_gives_its_own_outputs(folders, changes):
    alone = load(folders["deep"], "cpu").translate(TEXTS, **changes)
    assert mixed(folders, "deep").translate(TEXTS, **changes) == alone
    assert mixed(folders, "deep", "deep").translate(TEXTS, **changes) == alone


@pytest.mark.parametrize("changes", SEARCHES)
@pytest.mark.parametrize("names", [("shallow", "deep"), ("shallow", "words", "deep")])
@pytest.mark.parametrize("batch_tokens", [1, 7])
def test_outputs_do_not_depend_on_the_batch(folders, names, changes, batch_tokens):
    ensemble = mixed(folders, *names)
    expected = ensemble.translate(TEXTS, **changes)
    assert ensemble.translate(TEXTS, batch_tokens=batch_tokens, **changes) == expected
    assert expected[1] == ""
    assert any(expected)


def test_decoding_defaults_are_those_of_the_first_model(folders):
    assert mixed(folders, "shallow", "deep").decoding.length_alpha == 0.5
    assert mixed(folders, "deep", "shallow").decoding.length_alpha == 1.0


@pytest.mark.parametrize("names", [("shallow", "deep"), ("shallow", "words")])
@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_scores_are_those_of_the_search(folders, names, mean):
    ensemble = mixed(folders, *names, mean=mean, weights=[2, 1])
    compared = 0
    for translation in ensemble.stream(TEXTS[2:], ensemble.settings({"sample": True, "nbest": 40})):
        for candidate in translation.candidates:
            if len(candidate.token_log_probabilities) == len(candidate.pieces):
                continue  # cut off: it has no end symbol to score
            if tuple(ensemble.tokenizers.target.encode(candidate.text).ids) == candidate.tokens:
                [scored] = ensemble.score([translation.source], [candidate.text])
                assert scored.log_probability == pytest.approx(candidate.log_probability, abs=1e-4)
                compared += 1
    assert compared


def test_a_score_is_the_mean_of_the_members(folders):
    """The probability of the end symbol, computed by hand from the members."""
    names = ("shallow", "words")
    [combined] = mixed(folders, *names, weights=[3, 1]).score(["ab cd"], [""])
    one, two = (load(folders[name], "cpu").score(["ab cd"], [""])[0].log_probability for name in names)
    expected = torch.tensor([one, two]).exp() @ torch.tensor([0.75, 0.25])
    assert combined.log_probability == pytest.approx(expected.log().item(), abs=1e-5)
    assert combined.count == 1


def test_an_explanation_has_the_heads_of_all_members(folders):
    ensemble = mixed(folders, "shallow", "deep")
    explanation = ensemble.explain("ab cd", target="AB")
    assert explanation.alignment.shape == (len(explanation.target_pieces), len(explanation.source_pieces))
    assert_close(explanation.alignment.sum(1), torch.ones(3))
    crosses = {record.layer: record.weights for record in explanation.attention if record.kind == "cross"}
    assert {layer: weights.size(1) for layer, weights in crosses.items()} == {0: 3, 1: 5, 2: 5}
    alone = [load(folders[name], "cpu").explain("ab cd", target="AB") for name in ("shallow", "deep")]
    heads = [record.weights for each in alone for record in each.attention if record.kind == "cross"]
    assert_close(explanation.alignment, torch.cat(heads, dim=1).mean(1)[0])
    last = [max(each.attention, key=lambda record: (record.kind == "cross", record.layer)).weights for each in alone]
    assert_close(crosses[2], torch.cat(last, dim=1))
    [own] = ensemble.stream(["ab cd"])
    assert ensemble.explain("ab cd").target_pieces == (*own.candidates[0].pieces, "</s>")


def test_members_with_different_source_tokenizers_have_no_common_alignment(folders):
    ensemble = mixed(folders, "shallow", "words")
    with pytest.raises(SaccadeError):
        ensemble.explain("ab cd")
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        ensemble.source_batch([[4, 5]])
    outputs = ensemble.translate(TEXTS, coverage_beta=0.5)  # coverage of the first member's source tokens
    assert len(outputs) == len(TEXTS)


UPPER = [pair.target for pair in PAIRS]


@pytest.mark.parametrize(
    ("target", "difference"),
    [
        (Tokenizer.train("word", UPPER, size=50), "char tokens, not word"),
        (Tokenizer.train("char", [*UPPER, "XYZ"], size=50), "13 tokens, not 16"),
        (Tokenizer.train("char", UPPER, size=50, normalization="nfkc"), "text normalized by nfc, not nfkc"),
        (Tokenizer.train("char", [text.replace("A", "Z") for text in UPPER], size=50), "is 'A', not"),
    ],
    ids=["kind", "size", "normalization", "piece"],
)
def test_models_with_different_target_vocabularies_are_errors(folders, tmp_path, target, difference):
    other = save(tmp_path / "other", SHALLOW, LETTERS, target=target)
    with pytest.raises(SaccadeError, match=difference) as caught:
        load([other, folders["shallow"], folders["deep"]], "cpu")
    assert caught.value.where == str(folders["shallow"])


def test_errors_come_before_any_model_is_read(tmp_path):
    with pytest.raises(SaccadeError):
        load([tmp_path / "a", tmp_path / "b"], "cpu", weights=[1])
    with pytest.raises(SaccadeError):
        load([], "cpu")
    with pytest.raises(SaccadeError) as caught:
        load([tmp_path / "a", tmp_path / "b"], "cpu")
    assert caught.value.where == str(tmp_path / "a")


def test_a_saved_tokenizer_equals_the_original(tmp_path):
    for kind in ("bpe", "unigram", "char", "byte", "word"):
        tokenizers = train_tokenizers(PAIRS * 5, DataConfig(tokenizer=kind, vocabulary=60, min_frequency=1))
        tokenizers.source.save(tmp_path / "tokenizer.json")
        loaded = Tokenizer.load(tmp_path / "tokenizer.json")
        assert are_equal([tokenizers.source, loaded])
        check_equal_targets([tokenizers.source, loaded], ["one", "two"])
    assert not are_equal([LETTERS, WORDS])
    assert not are_equal([LETTERS, TARGETS])

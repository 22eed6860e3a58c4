from __future__ import annotations

from pathlib import Path

import pytest

from inference.small_models import PAIRS, TEXTS, save_model
from saccade.data.config import DataConfig
from saccade.data.lexicon.ibm_model_1 import learn_translations
from saccade.data.lexicon.lexicon_file import write_lexicon
from saccade.data.reading.pair_files import Pair
from saccade.data.reading.text_lines import FileError
from saccade.data.tokenizers.tokenizer_pair import PiecePairs, join_pieces, train_tokenizers
from saccade.errors import SaccadeError, UsageError
from saccade.inference import shortlist_file as module
from saccade.inference.loading import load
from saccade.inference.shortlist_file import read_shortlist
from saccade.inference.translator import Translator


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", {"norm": "pre"}, joint=False)


@pytest.fixture
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Translations of a, b and c; only the special symbols are always allowed."""
    monkeypatch.setattr(module, "ALWAYS_ALLOWED", 4)
    path = tmp_path / "few.tsv"
    path.write_text("a\tA\t0.9\na\tB\t0.1\n\nb\tB\nc\tK\t0.5\n", encoding="utf-8")
    return path


def letters(translator: Translator, text: str) -> set[str]:
    return set(translator.translate(text, min_length=3)) - {" "}


def test_outputs_consist_of_translations_of_the_source(folder, few):
    translator = load(folder, "cpu", shortlist=few)
    assert letters(translator, "a") <= {"A", "B"}
    assert letters(translator, "c") == {"K"}
    assert letters(translator, "ac") <= {"A", "B", "K"}
    assert translator.translate("p") == ""  # only the end symbol is allowed
    assert set(translator.explain("c", min_length=2).target) - {" "} == {"K"}


def test_a_joint_vocabulary_may_copy(tmp_path, few):
    joint = load(save_model(tmp_path / "joint", joint=True), "cpu", shortlist=few)
    assert letters(joint, "p") == {"p"}


def test_an_output_does_not_depend_on_the_batch(folder, few):
    translator = load(folder, "cpu", shortlist=few)
    batched = translator.translate(TEXTS)
    assert batched == [translator.translate(text) for text in TEXTS]
    assert batched != load(folder, "cpu").translate(TEXTS)


def test_a_shortlist_needs_the_torch_engine(folder, few):
    translator = load(folder, "cpu", shortlist=few)
    assert translator.engine(translator.decoding).name == "torch"
    required = load(folder, "cpu", engine="ctranslate2", shortlist=few)
    with pytest.raises(UsageError):
        required.translate("ab")


def test_sampling_with_a_shortlist_is_an_error(folder, few):
    with pytest.raises(SaccadeError):
        load(folder, "cpu", shortlist=few).translate("ab", sample=True)


def test_a_piece_of_another_model_is_named(folder, tmp_path):
    translator = load(folder, "cpu")
    for line, piece in (("a\tß", "'ß'"), ("A\tB", "'A'")):
        path = tmp_path / "other.tsv"
        path.write_text(f"a\tA\n{line}\n", encoding="utf-8")
        with pytest.raises(FileError, match=piece) as caught:
            read_shortlist(path, translator.tokenizers)
        assert caught.value.line == 2
        assert caught.value.kind == "pieces"


def test_pairs_become_pieces(folder):
    tokenizers = load(folder, "cpu").tokenizers
    [first, *_] = PiecePairs(PAIRS, tokenizers)
    assert first.source.split() == [*"abcdefghijklmnop"]
    assert join_pieces(tokenizers.target, ["AB"]) == ["A B"]


def test_words_spelled_like_symbols_are_in_the_shortlist(tmp_path):
    pairs = [Pair("<unk> <s> house", "<unk> <s> Haus"), Pair("the house", "das Haus")] * 3
    tokenizers = train_tokenizers(pairs, DataConfig(tokenizer="word", min_frequency=1))
    entries = learn_translations(PiecePairs(pairs, tokenizers), normalization=None).best(5, 0.0)
    write_lexicon(tmp_path / "pieces.tsv", entries)
    shortlist = read_shortlist(tmp_path / "pieces.tsv", tokenizers)
    [ids] = tokenizers.source.encode_batch(["<unk> <s> house"])
    assert set(ids) <= shortlist.translations.keys()

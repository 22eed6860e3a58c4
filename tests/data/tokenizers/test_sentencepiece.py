"""Tokenizers made of SentencePiece models, compared with the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece_models import MODELS, RARE, reference_processor, sentences, train_model

from saccade.data.config import DataConfig
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import SYMBOL_PIECES, Tokenizer
from saccade.data.tokenizers.tokenizer_pair import load_tokenizers, save_tokenizers, train_tokenizers
from saccade.errors import SaccadeError, UsageError
from saccade.symbols import Symbols


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model file of each kind."""
    folder = tmp_path_factory.mktemp("models")
    paths = {}
    for name, options in MODELS.items():
        paths[name] = folder / f"{name}.model"
        paths[name].write_bytes(train_model(sentences(1, 400), **options))
    return paths


def reference_pieces(processor: Any, text: str) -> list[str]:
    """The pieces of the package by their ids: those of unknown characters are <unk>."""
    return [processor.id_to_piece(index) for index in processor.encode(text, return_type=int)]


@pytest.mark.parametrize("name", MODELS)
class TestSegmentation:
    def test_pieces_equal_those_of_the_package(self, models: dict[str, Path], name: str) -> None:
        processor = reference_processor(models[name].read_bytes())
        tokenizer = Tokenizer.from_sentencepiece(models[name])
        lines = [*sentences(1, 50), *sentences(2, 300), *sentences(3, 300, rare=0.2), "", " ", "▁", "<s> </s> @@ <2de>"]
        normalized = [normalize(line, "nfc") for line in lines]
        expected = [reference_pieces(processor, line) for line in normalized]
        assert [tokenizer.pieces(ids) for ids in tokenizer.encode_batch(lines)] == expected
        assert [tokenizer.encode(line).pieces for line in lines] == expected
        assert sum(map(len, expected)) > 5000

    @settings(deadline=None, max_examples=60)
    @given(text=st.text(st.sampled_from("aabceé \u0301" + RARE)))
    def test_any_text(self, models: dict[str, Path], name: str, text: str) -> None:
        processor = reference_processor(models[name].read_bytes())
        tokenizer = Tokenizer.from_sentencepiece(models[name], "none")
        normalized = normalize(text, "none")
        encoding = tokenizer.encode(text)
        assert encoding.pieces == reference_pieces(processor, normalized)
        expected = processor.decode(processor.encode(normalized, return_type=int))
        assert tokenizer.decode(encoding.ids) == expected.replace(" ⁇ ", "<unk>")
        assert len(encoding.offsets) == len(encoding.ids)
        assert all(0 <= start <= end <= len(normalized) for start, end in encoding.offsets)

    def test_offsets_cover_the_text_in_order(self, models: dict[str, Path], name: str) -> None:
        tokenizer = Tokenizer.from_sentencepiece(models[name])
        text = "ein 漢字 und abc."
        offsets = tokenizer.encode(text).offsets
        assert offsets == sorted(offsets)
        covered = {position for start, end in offsets for position in range(start, end)}
        assert {position for position, character in enumerate(text) if character != " "} <= covered

    def test_ids_and_symbols(self, models: dict[str, Path], name: str) -> None:
        tokenizer = Tokenizer.from_sentencepiece(models[name])
        assert tokenizer.vocabulary[: len(SYMBOL_PIECES)] == SYMBOL_PIECES
        assert len(set(tokenizer.vocabulary)) == tokenizer.size
        ids = tokenizer.encode("<s> <pad> a </s> <unk> <2en>").ids
        assert not {Symbols.pad, Symbols.begin, Symbols.end} & set(ids)
        word = tokenizer.encode("abc").ids
        assert tokenizer.decode([Symbols.begin, *word, Symbols.end, Symbols.pad]).strip() == "abc"

    def test_saved_tokenizer_loads_equal(self, models: dict[str, Path], name: str, tmp_path: Path) -> None:
        tokenizer = Tokenizer.from_sentencepiece(models[name], "nfkc")
        tokenizer.save(tmp_path / "tokenizer.json")
        assert (tmp_path / "tokenizer.model").read_bytes() == models[name].read_bytes()
        loaded = Tokenizer.load(tmp_path / "tokenizer.json")
        assert (loaded.kind, loaded.normalization, loaded.size) == ("sentencepiece", "nfkc", tokenizer.size)
        assert loaded.document() == tokenizer.document()
        lines = sentences(4, 50, rare=0.1)
        assert loaded.encode_batch(lines) == tokenizer.encode_batch(lines)


def test_unknown_characters_are_one_symbol_or_bytes(models: dict[str, Path]) -> None:
    unknown = Tokenizer.from_sentencepiece(models["unigram"]).encode("漢字").ids
    assert unknown.count(Symbols.unknown) == 1
    with_bytes = Tokenizer.from_sentencepiece(models["unigram-bytes"])
    encoding = with_bytes.encode("a漢b")
    assert Symbols.unknown not in encoding.ids
    assert [encoding.offsets[encoding.pieces.index(byte)] for byte in ("<0xE6>", "<0xBC>", "<0xA2>")] == [(1, 2)] * 3
    assert with_bytes.decode(encoding.ids) == "a漢b"


def test_large_batch_is_encoded_by_threads(models: dict[str, Path]) -> None:
    tokenizer = Tokenizer.from_sentencepiece(models["unigram"])
    lines = sentences(5, 2000, rare=0.05)
    assert tokenizer.encode_batch(lines) == [tokenizer.encode(line).ids for line in lines]


class TestPair:
    PAIRS = (Pair("a dog", "ein Hund"),)

    def test_one_model_is_a_joint_vocabulary(self, models: dict[str, Path], tmp_path: Path) -> None:
        tokenizers = train_tokenizers(self.PAIRS, DataConfig(tokenizer=str(models["bpe"])))
        assert tokenizers.source is tokenizers.target
        save_tokenizers(tmp_path, tokenizers)
        assert {file.name for file in tmp_path.iterdir()} == {"tokenizer.json", "tokenizer.model"}
        loaded = load_tokenizers(tmp_path)
        assert loaded.source is loaded.target

    def test_two_models(self, models: dict[str, Path], tmp_path: Path) -> None:
        config = DataConfig(tokenizer=str(models["bpe"]), target_tokenizer=str(models["unigram"]))
        tokenizers = train_tokenizers(self.PAIRS, config)
        save_tokenizers(tmp_path, tokenizers)
        assert (tmp_path / "tokenizer.target.model").read_bytes() == models["unigram"].read_bytes()
        assert load_tokenizers(tmp_path).source.vocabulary == tokenizers.source.vocabulary

    def test_a_model_and_a_trained_tokenizer(self, models: dict[str, Path]) -> None:
        config = DataConfig(tokenizer=str(models["bpe"]), target_tokenizer="char")
        source, target = train_tokenizers(self.PAIRS, config)
        assert (source.kind, target.kind) == ("sentencepiece", "char")


class TestErrors:
    def test_kind_without_a_model(self) -> None:
        with pytest.raises(UsageError):
            train_tokenizers(TestPair.PAIRS, DataConfig(tokenizer="sentencepiece"))

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(SaccadeError) as caught:
            Tokenizer.from_sentencepiece(tmp_path / "no.model")
        assert caught.value.where == str(tmp_path / "no.model")

    def test_missing_package(self, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sentencepiece", None)
        with pytest.raises(SaccadeError) as caught:
            Tokenizer.from_sentencepiece(models["bpe"])
        assert caught.value.hint is not None
        assert "saccade[sentencepiece]" in caught.value.hint

    def test_old_package(self, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sentencepiece.__version__", "0.1.99")
        with pytest.raises(SaccadeError) as caught:
            Tokenizer.from_sentencepiece(models["bpe"])
        assert caught.value.hint is not None
        assert "--upgrade" in caught.value.hint

    def test_saved_model_was_exchanged(self, models: dict[str, Path], tmp_path: Path) -> None:
        Tokenizer.from_sentencepiece(models["bpe"]).save(tmp_path / "tokenizer.json")
        (tmp_path / "tokenizer.model").write_bytes(models["unigram"].read_bytes())
        with pytest.raises(SaccadeError):
            Tokenizer.load(tmp_path / "tokenizer.json")

    def test_saved_model_is_missing(self, models: dict[str, Path], tmp_path: Path) -> None:
        Tokenizer.from_sentencepiece(models["bpe"]).save(tmp_path / "tokenizer.json")
        (tmp_path / "tokenizer.model").unlink()
        with pytest.raises(SaccadeError):
            Tokenizer.load(tmp_path / "tokenizer.json")

    def test_tokenizer_file_with_another_kind(self, models: dict[str, Path], tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        Tokenizer.from_sentencepiece(models["bpe"]).save(path)
        document = json.loads(path.read_text())
        for change in ({"kind": "bpe"}, {"tokenizer": {"model": {}}}):
            path.write_text(json.dumps(document | change))
            with pytest.raises(SaccadeError):
                Tokenizer.load(path)

    def test_piece_with_the_name_of_a_symbol(self, tmp_path: Path) -> None:
        path = tmp_path / "clash.model"
        path.write_bytes(train_model(sentences(1, 100), bos_id=-1, user_defined_symbols=["<s>"]))
        with pytest.raises(SaccadeError):
            Tokenizer.from_sentencepiece(path)

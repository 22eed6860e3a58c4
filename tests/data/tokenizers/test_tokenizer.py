from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.config import TRAINABLE, DataConfig, TokenizerKind
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import SYMBOL_PIECES, Tokenizer
from saccade.data.tokenizers.tokenizer_pair import (
    Tokenizers,
    load_tokenizers,
    save_tokenizers,
    tokenizers_digest,
    train_tokenizers,
)
from saccade.errors import SaccadeError
from saccade.symbols import Symbols

KINDS: tuple[TokenizerKind, ...] = TRAINABLE
LOSSLESS: tuple[TokenizerKind, ...] = ("bpe", "unigram", "char", "byte")
SYMBOLS = "a <s> b </s> <pad> c <unk> <s><s> x</s> ▁ ▁x"
ALPHABET = "abcde ﬁäöüßÄÉ漢字ж.,!?-'\"0123456789()<s>/pad▁_☃ é\u200d👩"


def train(kind: TokenizerKind, texts: list[str], size: int = 400, min_frequency: int = 1) -> Tokenizer:
    return Tokenizer.train(kind, texts, size=size, min_frequency=min_frequency)


@pytest.fixture(scope="module")
def trained(texts: list[str]) -> dict[TokenizerKind, Tokenizer]:
    """A tokenizer of each kind, trained on sentences, symbol-like strings and unusual characters."""
    return {kind: train(kind, [*texts, SYMBOLS, ALPHABET, " ".join(ALPHABET)] * 2) for kind in KINDS}


class TestEncoding:
    @pytest.mark.parametrize("kind", LOSSLESS)
    @settings(deadline=None, max_examples=100)
    @given(text=st.text(ALPHABET + " "))
    def test_round_trip(self, trained: dict[TokenizerKind, Tokenizer], kind: TokenizerKind, text: str) -> None:
        tokenizer = trained[kind]
        assert tokenizer.decode(tokenizer.encode(text).ids) == normalize(text, "nfc")

    @settings(deadline=None, max_examples=200)
    @given(text=st.text(st.characters(exclude_categories=())))
    def test_byte_tokenizer_encodes_any_text(self, trained: dict[TokenizerKind, Tokenizer], text: str) -> None:
        tokenizer = trained["byte"]
        assert tokenizer.decode(tokenizer.encode(text).ids) == normalize(text, "nfc")
        assert tokenizer.size == 260

    def test_words_in_the_vocabulary_round_trip(
        self, trained: dict[TokenizerKind, Tokenizer], texts: list[str]
    ) -> None:
        tokenizer = trained["word"]
        for text in [*texts, "a <s> b </s> <pad> <unk> c"]:
            assert tokenizer.decode(tokenizer.encode(text).ids) == normalize(text, "nfc")

    @pytest.mark.parametrize("kind", KINDS)
    @settings(deadline=None, max_examples=50)
    @given(
        parts=st.lists(
            st.one_of(st.sampled_from([*SYMBOL_PIECES, "▁", " ", "\ufdd0", "\ufdd1s>"]), st.text(max_size=3))
        )
    )
    def test_text_produces_no_control_symbols(
        self, trained: dict[TokenizerKind, Tokenizer], kind: TokenizerKind, parts: list[str]
    ) -> None:
        for text in ("".join(parts), " ".join(parts)):
            encoding = trained[kind].encode(text)
            assert set(encoding.ids).isdisjoint({Symbols.pad, Symbols.begin, Symbols.end})
            assert trained[kind].encode_batch([text, "x"])[0] == encoding.ids

    @pytest.mark.parametrize("kind", KINDS)
    @settings(deadline=None, max_examples=50)
    @given(text=st.text(ALPHABET))
    def test_offsets_cover_the_normalized_text(
        self, trained: dict[TokenizerKind, Tokenizer], kind: TokenizerKind, text: str
    ) -> None:
        encoding = trained[kind].encode(text)
        normalized = normalize(text, "nfc")
        assert len(encoding.ids) == len(encoding.pieces) == len(encoding.offsets)
        covered = {position for start, end in encoding.offsets for position in range(start, end)}
        blanks = {position for position, character in enumerate(normalized) if character == " "}
        assert covered | blanks == set(range(len(normalized)))


class TestTraining:
    @pytest.mark.parametrize("kind", KINDS)
    def test_training_is_deterministic(self, tmp_path: Path, texts: list[str], kind: TokenizerKind) -> None:
        shuffled = random.Random(1).sample(texts, len(texts))
        for name, lines in (("once", texts), ("again", texts), ("shuffled", shuffled)):
            train(kind, lines, size=90).save(tmp_path / name)
        once = (tmp_path / "once").read_bytes()
        assert once == (tmp_path / "again").read_bytes() == (tmp_path / "shuffled").read_bytes()

    @pytest.mark.parametrize("kind", KINDS)
    def test_symbols_come_first(self, trained: dict[TokenizerKind, Tokenizer], kind: TokenizerKind) -> None:
        assert trained[kind].pieces(range(4)) == ["<pad>", "<s>", "</s>", "<unk>"]
        assert trained[kind].symbols == Symbols()
        assert trained[kind].kind == kind

    @pytest.mark.parametrize("kind", ["bpe", "unigram"])
    def test_punctuation_and_digits_are_separate_pieces(self, kind: TokenizerKind) -> None:
        tokenizer = train(kind, ["Der Mann. 1999 (Mann) Mann-Mann"] * 20)
        assert tokenizer.encode("Mann. Mann").pieces == ["▁Mann", ".", "▁Mann"]
        for index in range(4, tokenizer.size):
            piece = tokenizer.piece(index)
            assert re.fullmatch(r"▁?[A-Za-z]+|▁?[^A-Za-z]", piece), piece

    @pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
    @pytest.mark.parametrize("size", [5, 12, 30])
    def test_size_is_not_exceeded(self, texts: list[str], kind: TokenizerKind, size: int) -> None:
        tokenizer = train(kind, texts, size=size)
        assert tokenizer.size == size
        assert max(max(ids) for ids in tokenizer.encode_batch(texts)) < size

    @pytest.mark.parametrize("kind", KINDS)
    def test_little_text_gives_a_small_vocabulary(self, kind: TokenizerKind) -> None:
        tokenizer = train(kind, ["a"], size=8000)
        assert tokenizer.decode(tokenizer.encode("a").ids) == "a"
        assert tokenizer.size <= 260

    @pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
    def test_no_text_is_an_error(self, kind: TokenizerKind) -> None:
        with pytest.raises(SaccadeError, match=r"no text to train"):
            train(kind, ["", " \t"])

    def test_rare_words_are_unknown(self) -> None:
        tokenizer = train("word", ["often often rare"], min_frequency=2)
        assert tokenizer.encode("often rare never").ids == [4, 3, 3]
        assert tokenizer.decode([1, 4, 3, 2, 0]) == "often <unk>"
        with pytest.raises(SaccadeError, match=r"(?s)9 .*min-frequency"):
            train("word", ["often often rare"], min_frequency=9)

    def test_unknown_kind_and_too_small_size_are_errors(self) -> None:
        with pytest.raises(SaccadeError, match="did you mean 'bpe'"):
            train("bp", ["a"])  # type: ignore[arg-type]
        with pytest.raises(SaccadeError, match="vocabulary of"):
            train("bpe", ["a"], size=4)

    @pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
    def test_texts_are_iterated_again_not_stored(self, texts: list[str], kind: TokenizerKind, tmp_path: Path) -> None:
        class Stream:
            """Counts its iterations."""

            times = 0

            def __iter__(self) -> Iterator[str]:
                self.times += 1
                return iter(texts)

        stream = Stream()
        Tokenizer.train(kind, stream, size=90).save(tmp_path / "streamed")
        train(kind, texts, size=90).save(tmp_path / "listed")
        assert (tmp_path / "streamed").read_bytes() == (tmp_path / "listed").read_bytes()
        assert stream.times > 1
        with pytest.raises(TypeError, match="several times"):
            Tokenizer.train(kind, iter(texts), size=90)

    def test_error_while_reading_propagates(self) -> None:
        class Faulty:
            def __iter__(self) -> Iterator[str]:
                yield "a text"
                raise SaccadeError("line 2 is not UTF-8")

        with pytest.raises(SaccadeError, match="line 2"):
            Tokenizer.train("bpe", Faulty(), size=90)

    def test_nothing_is_printed(self, texts: list[str], capfd: pytest.CaptureFixture[str]) -> None:
        for kind in KINDS:
            train(kind, texts)
        assert capfd.readouterr() == ("", "")


class TestTokenizer:
    @pytest.mark.parametrize("kind", KINDS)
    def test_batch_equals_one_by_one(self, trained: dict[TokenizerKind, Tokenizer], kind: TokenizerKind) -> None:
        texts = ["a man walking.", "", "漢字 ☃ unseen Ω", SYMBOLS]
        assert trained[kind].encode_batch(texts) == [trained[kind].encode(text).ids for text in texts]
        assert trained[kind].encode_batch([]) == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_control_symbols_decode_to_nothing(
        self, trained: dict[TokenizerKind, Tokenizer], kind: TokenizerKind
    ) -> None:
        tokenizer = trained[kind]
        ids = tokenizer.encode("a man").ids
        assert tokenizer.decode([1, *ids, 2, 0, 0]) == "a man"
        assert tokenizer.decode([1, 2, 0]) == tokenizer.decode([]) == ""

    def test_unknown_characters(self, trained: dict[TokenizerKind, Tokenizer]) -> None:
        assert trained["bpe"].encode("aΩ").ids[-1] == trained["unigram"].encode("aΩ").ids[-1] == Symbols.unknown
        assert trained["bpe"].encode("aΩ").pieces[-1] == trained["unigram"].encode("aΩ").pieces[-1] == "<unk>"

    def test_id_outside_the_vocabulary(self, trained: dict[TokenizerKind, Tokenizer]) -> None:
        for token in (260, -1):
            with pytest.raises(IndexError, match=f"id {token} .*260"):
                trained["byte"].piece(token)

    def test_normalization_is_applied(self) -> None:
        tokenizer = Tokenizer.train("char", ["fi"], size=20, normalization="nfkc")
        assert tokenizer.decode(tokenizer.encode("ﬁ").ids) == "fi"

    def test_forked_process_tokenizes_without_warnings(self) -> None:
        script = (
            "import os\n"
            "from saccade.data.tokenizers.tokenizer import Tokenizer\n"
            "tokenizer = Tokenizer.train('byte', [], size=300)\n"
            "expected = tokenizer.encode_batch(['some text'] * 100)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    os._exit(tokenizer.encode_batch(['some text'] * 100) != expected)\n"
            "raise SystemExit(os.waitpid(child, 0)[1])\n"
        )
        result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


class TestFile:
    @pytest.mark.parametrize("kind", KINDS)
    def test_saved_tokenizer_loads_equal(
        self, trained: dict[TokenizerKind, Tokenizer], tmp_path: Path, texts: list[str], kind: TokenizerKind
    ) -> None:
        path = tmp_path / "tokenizer.json"
        original = trained[kind]
        original.save(path)
        loaded = Tokenizer.load(path)
        assert (loaded.kind, loaded.normalization, loaded.size) == (kind, original.normalization, original.size)
        lines = [*texts, SYMBOLS, ALPHABET]
        assert [loaded.encode(line) for line in lines] == [original.encode(line) for line in lines]
        assert [loaded.decode(ids) for ids in loaded.encode_batch(lines)] == [
            original.decode(ids) for ids in original.encode_batch(lines)
        ]
        loaded.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda document: document | {"format": "other"}, "not written by Saccade"),
            (lambda document: document | {"version": 99}, "format version 99"),
            (lambda document: document | {"kind": "psychic"}, "unknown kind 'psychic'"),
            (lambda document: document | {"normalization": []}, "unknown normalization"),
            (lambda document: document | {"tokenizer": {"model": 3}}, "no usable tokenizer"),
            (lambda document: {key: document[key] for key in document if key != "tokenizer"}, "has no tokenizer"),
            (lambda document: document["tokenizer"], "not written by Saccade"),
            (lambda document: [document], "not written by Saccade"),
        ],
    )
    def test_invalid_file_is_an_error(self, tmp_path: Path, change: object, message: str) -> None:
        path = tmp_path / "tokenizer.json"
        train("char", ["abc"]).save(path)
        assert callable(change)
        path.write_text(json.dumps(change(json.loads(path.read_text("utf-8")))), "utf-8")
        with pytest.raises(SaccadeError, match=f"(?s){re.escape(str(path))}.*{message}"):
            Tokenizer.load(path)

    def test_other_special_symbols_are_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        train("char", ["abc"]).save(path)
        path.write_text(path.read_text("utf-8").replace("</s>", "<end>"), "utf-8")
        with pytest.raises(SaccadeError, match="<pad>, <s>, </s>, <unk>"):
            Tokenizer.load(path)

    def test_truncated_file_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "tokenizer.json"
        train("char", ["abc"]).save(path)
        path.write_bytes(path.read_bytes()[:-50])
        with pytest.raises(SaccadeError, match=f"(?s){re.escape(str(path))}.*JSON"):
            Tokenizer.load(path)

    def test_missing_file_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(SaccadeError, match=re.escape(str(tmp_path))):
            Tokenizer.load(tmp_path / "tokenizer.json")


class TestTokenizerPair:
    def test_joint_vocabulary_is_one_object(self, tokenizers: Tokenizers, pairs: list[Pair]) -> None:
        assert tokenizers.source is tokenizers.target
        assert tokenizers.source.size == 120
        for pair in pairs:
            for text in pair:
                assert tokenizers.source.decode(tokenizers.source.encode(text).ids) == normalize(text, "nfc")

    def test_separate_kinds_and_sizes(self, pairs: list[Pair]) -> None:
        config = DataConfig(tokenizer="word", target_tokenizer="bpe", vocabulary=15, target_vocabulary=60)
        source, target = train_tokenizers(pairs, config)
        assert (source.kind, source.size, target.kind, target.size) == ("word", 15, "bpe", 60)
        assert target.decode(target.encode("ein Mann geht dort.").ids) == "ein Mann geht dort."
        assert Symbols.unknown in target.encode("walking").ids  # no w in these German sentences

    def test_saved_pair_loads_equal(self, tokenizers: Tokenizers, pairs: list[Pair], tmp_path: Path) -> None:
        separate = train_tokenizers(pairs, DataConfig(tokenizer="char", joint=False))
        for name, original in (("joint", tokenizers), ("separate", separate)):
            (tmp_path / name).mkdir()
            save_tokenizers(tmp_path / name, original)
            loaded = load_tokenizers(tmp_path / name)
            assert (loaded.source is loaded.target) == (name == "joint")
            assert tokenizers_digest(loaded) == tokenizers_digest(original)
        assert tokenizers_digest(tokenizers) != tokenizers_digest(separate)

    def test_torch_is_not_imported(self) -> None:
        modules = "saccade.data.tokenizers.tokenizer, saccade.data.chunk_jobs, saccade.workers.child"
        script = f"import sys; import {modules}; raise SystemExit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0

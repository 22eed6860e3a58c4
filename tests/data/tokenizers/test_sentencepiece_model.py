"""Untrusted SentencePiece models: models written by the package are read, all others raise ValueError."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from sentencepiece_models import MODELS, reference_processor, sentences, train_model

from saccade.data.tokenizers.sentencepiece_backend import length_delimited, load_processor
from saccade.data.tokenizers.sentencepiece_model import (
    MAX_MODEL_SIZE,
    MAX_PIECE_LENGTH,
    PieceType,
    parse_sentencepiece_model,
    read_sentencepiece_model,
)


@pytest.fixture(scope="module")
def serialized() -> bytes:
    return train_model(sentences(1, 200), normalization_rule_name="nmt_nfkc_cf", byte_fallback=True, vocab_size=450)


def piece(text: str | bytes, score: float = 0.0, kind: int = PieceType.NORMAL) -> bytes:
    """Serialize a piece."""
    raw = text.encode() if isinstance(text, str) else text
    return length_delimited(1, length_delimited(1, raw) + b"\x15" + struct.pack("<f", score) + bytes([0x18, kind]))


def normalizer(character_map: bytes) -> bytes:
    """Serialize a normalizer with a character map."""
    return length_delimited(3, length_delimited(2, character_map))


UNKNOWN = piece("<unk>", kind=PieceType.UNKNOWN)
SETTINGS = length_delimited(2, b"") + length_delimited(3, b"")
TRIE = bytes(4 * 256)


@pytest.mark.parametrize("name", MODELS)
def test_pieces_of_trained_models(name: str) -> None:
    serialized = train_model(sentences(1, 200), **MODELS[name])
    processor = reference_processor(serialized)
    pieces = parse_sentencepiece_model(serialized).pieces
    indices = range(processor.get_piece_size())
    assert [entry.text for entry in pieces] == [processor.id_to_piece(index) for index in indices]
    assert [entry.score for entry in pieces] == [processor.get_score(index) for index in indices]
    assert [entry.type == PieceType.CONTROL for entry in pieces] == [processor.is_control(index) for index in indices]


def test_smallest_model() -> None:
    assert len(parse_sentencepiece_model(UNKNOWN + piece("a") + SETTINGS).pieces) == 2
    assert parse_sentencepiece_model(UNKNOWN + piece("a") + SETTINGS + normalizer(b"\0\4\0\0" + TRIE + b"\0"))


@pytest.mark.parametrize(
    "content",
    {
        "empty": b"",
        "text": b"a small dog\nein kleiner Hund\n",
        "json": b'{"format": "saccade-tokenizer"}',
        "zeros": bytes(1000),
        "group": b"\x0b\x0c",
        "long-varint": b"\xff" * 20,
        "no-pieces": SETTINGS,
        "no-settings": UNKNOWN + piece("a"),
        "no-unknown": piece("a") + SETTINGS,
        "two-unknown": UNKNOWN + piece("b", kind=PieceType.UNKNOWN) + SETTINGS,
        "twice": UNKNOWN + piece("a") * 2 + SETTINGS,
        "empty-piece": UNKNOWN + piece("") + SETTINGS,
        "nul": UNKNOWN + piece("a\0b") + SETTINGS,
        "not-utf-8": UNKNOWN + piece(b"\xff\xfe") + SETTINGS,
        "long-piece": UNKNOWN + piece("a" * (MAX_PIECE_LENGTH + 1)) + SETTINGS,
        "nan": UNKNOWN + piece("a", float("nan")) + SETTINGS,
        "infinite": UNKNOWN + piece("a", float("inf")) + SETTINGS,
        "unknown-type": UNKNOWN + piece("a", kind=7) + SETTINGS,
        "one-byte": UNKNOWN + piece("<0x41>", kind=PieceType.BYTE) + SETTINGS,
        "short-map": UNKNOWN + piece("a") + SETTINGS + normalizer(b"\0\4\0"),
        "map-without-trie": UNKNOWN + piece("a") + SETTINGS + normalizer(b"\0\0\0\0abc\0"),
        "map-beyond-the-end": UNKNOWN + piece("a") + SETTINGS + normalizer(b"\xff\xff\xff\x7f" + TRIE + b"\0"),
        "map-without-replacements": UNKNOWN + piece("a") + SETTINGS + normalizer(b"\0\4\0\0" + TRIE),
        "map-with-a-far-offset": UNKNOWN
        + piece("a")
        + SETTINGS
        + normalizer(b"\0\4\0\0" + struct.pack("<I", 500 << 10) + TRIE[4:] + b"\0"),
        "map-with-a-far-replacement": UNKNOWN
        + piece("a")
        + SETTINGS
        + normalizer(b"\0\4\0\0" + struct.pack("<I", 1 << 31 | 9) + TRIE[4:] + b"\0"),
    }.items(),
    ids=lambda content: content[0],
)
def test_invalid_models(content: tuple[str, bytes]) -> None:
    with pytest.raises(ValueError, match=r"^(is|has|does) "):  # the subject is the file
        parse_sentencepiece_model(content[1])


def test_truncated_at_any_byte(serialized: bytes) -> None:
    chooser = random.Random(1)
    for length in (*range(200), *(chooser.randrange(len(serialized)) for _ in range(200)), len(serialized) - 1):
        with pytest.raises(ValueError, match=r"^(is|has) "):
            parse_sentencepiece_model(serialized[:length])


def test_mutated_models_are_rejected_or_usable(serialized: bytes) -> None:
    """A mutated model that the parser accepts does not crash the package."""
    chooser = random.Random(2)
    accepted = 0
    for _ in range(300):
        mutated = bytearray(serialized)
        for _ in range(chooser.choice((1, 1, 3, 20))):
            mutated[chooser.randrange(len(mutated))] = chooser.randrange(256)
        try:
            model = parse_sentencepiece_model(bytes(mutated))
            processor = load_processor(model.serialized, "<unk>")
        except ValueError:
            continue
        for line in sentences(3, 3, rare=0.3):
            assert isinstance(processor.decode(processor.encode(line, return_type=int)), str)
        accepted += 1
    assert 20 < accepted < 300


class TestFile:
    def test_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "large.model"
        path.write_bytes(b"\n")
        os.truncate(path, MAX_MODEL_SIZE + 1)
        with pytest.raises(ValueError, match="larger"):
            read_sentencepiece_model(path)

    def test_pipe_does_not_block(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.model")
        with pytest.raises(ValueError, match="regular file"):
            read_sentencepiece_model(tmp_path / "pipe.model")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="directory"):
            read_sentencepiece_model(tmp_path)

"""Reading and checking an untrusted SentencePiece model, before the sentencepiece package gets it.

A model is a protocol buffer (sentencepiece_model.proto). The package trusts its content, so sizes, pieces and the
tables of the text normalization are checked here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.untrusted_files import read_bytes, shown

MAX_MODEL_SIZE = 2**26  # bytes; models with 250,000 pieces have about 5 MB
MAX_PIECES = 999_996  # --data.vocabulary allows 1,000,000 tokens, four of which are the special symbols
MAX_PIECE_LENGTH = 1024  # bytes
MAX_FIELDS = 64 * MAX_PIECES
BLOCK = 256  # units of a double-array trie that a lookup may read from an offset

# Field numbers of sentencepiece_model.proto.
PIECES, TRAINER, NORMALIZER, DENORMALIZER = 1, 2, 3, 5  # of a model
PIECE, SCORE, TYPE = 1, 2, 3  # of a piece
CHARACTER_MAP = 2  # of a normalizer
UNKNOWN_SURFACE = 44  # of the trainer settings: the text that an unknown piece is decoded to

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class PieceType(IntEnum):
    """The type of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Piece(NamedTuple):
    """An entry of the vocabulary of a SentencePiece model."""

    text: str
    score: float
    type: PieceType


class SentencePieceModel(NamedTuple):
    """A checked SentencePiece model: its bytes, and its pieces by id."""

    serialized: bytes
    pieces: tuple[Piece, ...]


class TruncatedError(ValueError):
    """The data ends inside a field."""


def read_sentencepiece_model(path: str | Path) -> SentencePieceModel:
    """Read and check a model file; raises OSError if it cannot be read, and ValueError if it is not a valid model."""
    return parse_sentencepiece_model(read_bytes(path, MAX_MODEL_SIZE))


def parse_sentencepiece_model(serialized: bytes) -> SentencePieceModel:
    """Check a serialized model; raises ValueError if it is not valid."""
    pieces: list[Piece] = []
    found: set[int] = set()
    try:
        for number, value in fields(serialized):
            found.add(number)
            if number == PIECES:
                pieces.append(parse_piece(value))
            elif number in (NORMALIZER, DENORMALIZER):
                check_normalizer(value)
            elif number == TRAINER:
                for _ in fields(as_bytes(value)):
                    pass
            if len(pieces) > MAX_PIECES:
                raise ValueError(f"has more than {MAX_PIECES:,} pieces")
    except TruncatedError:
        raise ValueError("is truncated" if pieces else "is not a SentencePiece model") from None
    except UnicodeDecodeError:
        raise ValueError("has a piece that is not UTF-8") from None
    except ValueError:
        if not pieces:
            raise ValueError("is not a SentencePiece model") from None
        raise
    if not pieces:
        raise ValueError("is empty" if not serialized else "is not a SentencePiece model")
    if not found >= {TRAINER, NORMALIZER}:  # the package writes them after the pieces
        raise ValueError("is truncated: the settings after its pieces are missing")
    check_pieces(pieces)
    return SentencePieceModel(serialized, tuple(pieces))


def fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and the value of every field of a message; fixed-size values are yielded as bytes."""
    position = 0
    for _ in range(MAX_FIELDS):
        if position == len(message):
            return
        key, position = varint(message, position)
        number, wire_type = key >> 3, key & 7
        if not number:
            raise ValueError("has a field without a number")
        if wire_type == VARINT:
            value, position = varint(message, position)
            yield number, value
            continue
        if wire_type == BYTES:
            size, position = varint(message, position)
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"has a field of the unknown type {wire_type}")
        if size > len(message) - position:
            raise TruncatedError
        yield number, message[position : position + size]
        position += size
    raise ValueError(f"has more than {MAX_FIELDS:,} fields")


def varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length integer at a position, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise TruncatedError
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("has an integer of more than 64 bits")


def as_bytes(value: bytes | int) -> bytes:
    """Require a field that is not an integer."""
    if isinstance(value, int):
        raise ValueError("has an integer where a message belongs")
    return value


def parse_piece(value: bytes | int) -> Piece:
    """Parse and check one piece."""
    text, score, kind = "", 0.0, int(PieceType.NORMAL)
    try:
        for number, part in fields(as_bytes(value)):
            if number == PIECE:
                text = as_bytes(part).decode("utf-8")
            elif number == SCORE:
                [score] = struct.unpack("<f", as_bytes(part))
            elif number == TYPE:
                kind = part if isinstance(part, int) else 0
    except (TruncatedError, struct.error):
        raise ValueError("has a damaged piece") from None
    if not text or "\0" in text or len(text.encode()) > MAX_PIECE_LENGTH:
        raise ValueError(f"has the piece {shown(text)}: empty, with NUL, or longer than {MAX_PIECE_LENGTH} bytes")
    if not math.isfinite(score):
        raise ValueError(f"has the piece {shown(text)} without a finite score")
    if kind not in set(PieceType):
        raise ValueError(f"has the piece {shown(text)} of the unknown type {kind}")
    return Piece(text, score, PieceType(kind))


def check_pieces(pieces: list[Piece]) -> None:
    """Raise ValueError for a duplicate piece, missing or duplicate unknown pieces, and an incomplete set of bytes."""
    seen: set[str] = set()
    for piece in pieces:
        if piece.text in seen:
            raise ValueError(f"has the piece {shown(piece.text)} twice")
        seen.add(piece.text)
    if sum(piece.type == PieceType.UNKNOWN for piece in pieces) != 1:
        raise ValueError("does not have exactly one unknown piece")
    byte_pieces = {piece.text for piece in pieces if piece.type == PieceType.BYTE}
    if byte_pieces and byte_pieces != {f"<0x{byte:02X}>" for byte in range(256)}:
        raise ValueError("does not have all of the 256 byte pieces")


def check_normalizer(value: bytes | int) -> None:
    """Raise ValueError if a lookup in the character map of a normalizer could leave its tables.

    The map is the size of a trie, the trie (a double array of 32-bit units, as in darts-clone), and the replacements,
    each of which ends with NUL. A lookup in an inner node at index i reads the block of `i ^ offset`; the value of a
    leaf is the position of a replacement.
    """
    for number, part in fields(as_bytes(value)):
        if number != CHARACTER_MAP:
            continue
        blob = as_bytes(part)
        if not blob:
            continue  # no character map: the text is not changed
        size = int.from_bytes(blob[:4], "little")
        replacements = blob[4 + size :]
        if len(blob) < 8 or size % 4 or not 4 * BLOCK <= size <= len(blob) - 4 or replacements[-1:] != b"\0":
            raise ValueError("has a damaged character map")
        units = np.frombuffer(blob, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
        is_leaf = units >> 31 == 1
        offsets = (units >> 10) << ((units >> 6) & 8)
        blocks = (np.arange(len(units)) ^ offsets) | (BLOCK - 1)
        values = units & 0x7FFFFFFF
        if (blocks[~is_leaf] >= len(units)).any() or (values[is_leaf] >= len(replacements)).any():
            raise ValueError("has a damaged character map")

"""Tokenization with a SentencePiece model, by the optional sentencepiece package.

Ids are those of Saccade: the four special symbols, then the pieces of the model in their order. Its control pieces,
such as <s> and </s>, and its unused pieces are left out, because no text produces them.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from saccade.data.tokenizers.sentencepiece_model import (
    TRAINER,
    UNKNOWN_SURFACE,
    PieceType,
    SentencePieceModel,
    read_sentencepiece_model,
)
from saccade.errors import SaccadeError
from saccade.symbols import Symbols
from saccade.untrusted_files import shown

OLDEST = (0, 2, 3)  # version of the package: the first one with offsets without the protobuf package
USED = (PieceType.NORMAL, PieceType.USER_DEFINED, PieceType.BYTE)
MIN_PARALLEL = 256  # texts: a thread pool for fewer costs more time than it saves


class SentencePieceEncoding(NamedTuple):
    """The tokens of a text; offsets are character positions in the text."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class SentencePieceBackend:
    """A SentencePiece model with the methods of `tokenizers.Tokenizer` that `Tokenizer` calls."""

    def __init__(self, model: SentencePieceModel, symbol_pieces: Sequence[str]) -> None:
        self.serialized = model.serialized
        kept = [(index, piece) for index, piece in enumerate(model.pieces) if piece.type in USED]
        clashes = [piece.text for _, piece in kept if piece.text in symbol_pieces]
        if clashes:
            raise ValueError(f"has the ordinary piece {shown(clashes[0])}, which is the name of a special symbol")
        if not kept:
            raise ValueError("has no pieces for text")
        first = len(symbol_pieces)
        unknown = next(index for index, piece in enumerate(model.pieces) if piece.type == PieceType.UNKNOWN)
        self._vocabulary = [*symbol_pieces, *(piece.text for _, piece in kept)]
        self._ids = {index: token for token, (index, _) in enumerate(kept, first)} | {unknown: Symbols.unknown}
        self._indices = {token: index for index, token in self._ids.items()}
        self._bytes = {token for token, (_, piece) in enumerate(kept, first) if piece.type == PieceType.BYTE}
        self._processor = load_processor(model.serialized, symbol_pieces[Symbols.unknown])

    @property
    def digest(self) -> str:
        """The SHA-256 of the model file."""
        return hashlib.sha256(self.serialized).hexdigest()

    def get_vocab_size(self) -> int:
        """Return the vocabulary size, special symbols included."""
        return len(self._vocabulary)

    def get_vocab(self) -> dict[str, int]:
        """Return the id of every piece."""
        return {piece: token for token, piece in enumerate(self._vocabulary)}

    def encode(self, text: str, *, add_special_tokens: bool) -> SentencePieceEncoding:
        """Return ids and offsets of a text; special symbols are never added."""
        [found] = self._processor.encode([text], return_type="offset_mapping", num_threads=1)
        ids = [self._ids[index] for index in found["ids"]]
        offsets = [(int(start), int(end)) for start, end in found["offsets"]]
        for position in reversed(range(len(ids) - 1)):
            start, end = offsets[position]
            # The package gives the span of a character to the last one of its bytes.
            if start == end and ids[position] in self._bytes and ids[position + 1] in self._bytes:
                offsets[position] = offsets[position + 1]
        return SentencePieceEncoding(ids, offsets)

    def encode_batch_fast(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[SentencePieceEncoding]:
        """Return the ids of texts, without offsets; special symbols are never added."""
        found = self._processor.encode(list(texts), return_type=int, num_threads=threads_for(texts))
        return [SentencePieceEncoding([self._ids[index] for index in ids], []) for ids in found]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of ids; the unknown symbol gives its piece, bytes that are not UTF-8 give U+FFFD."""
        return str(self._processor.decode([self._indices[token] for token in ids]))

    def to_str(self) -> str:
        """Return the part of the tokenizer file that identifies the model."""
        return json.dumps({"model": {"type": "SentencePiece", "sha256": self.digest}})


def threads_for(texts: Sequence[str]) -> int:
    """Return the number of threads for a batch; -1 means one per core."""
    return -1 if len(texts) >= MIN_PARALLEL else 1


def load_backend(path: str | Path, symbol_pieces: Sequence[str]) -> SentencePieceBackend:
    """Load a model file; an error says what is wrong with it, or which package is missing."""
    model = load_model(path)
    try:
        return SentencePieceBackend(model, symbol_pieces)
    except ValueError as error:
        raise invalid_model(path, error) from None


def model_digest(path: str) -> str:
    """Return the SHA-256 of a model file, which is checked first."""
    return hashlib.sha256(load_model(path).serialized).hexdigest()


def load_model(path: str | Path) -> SentencePieceModel:
    """Read and check a model file; an error says what is wrong with it."""
    try:
        return read_sentencepiece_model(path)
    except OSError as error:
        raise SaccadeError(
            f"cannot be read: {error.strerror}", where=str(path), hint="give a SentencePiece model, FILE.model"
        ) from None
    except ValueError as error:
        raise invalid_model(path, error) from None


def invalid_model(path: str | Path, error: ValueError) -> SaccadeError:
    """Return the error for a file that is not a valid model."""
    return SaccadeError(str(error), where=str(path), hint="give a complete .model file, as spm_train writes it")


def load_processor(serialized: bytes, unknown_surface: str) -> Any:
    """Load a checked model into the package; an unknown piece is decoded to `unknown_surface`."""
    package = import_package()
    processor = package.SentencePieceProcessor()
    # Serialized messages are merged by concatenation.
    surface = length_delimited(UNKNOWN_SURFACE, unknown_surface.encode())
    try:
        processor.LoadFromSerializedProto(serialized + length_delimited(TRAINER, surface))
    except Exception as error:  # RuntimeError, and other classes in other versions
        raise ValueError(f"is refused by the sentencepiece package: {shown(str(error))}") from None
    return processor


def length_delimited(number: int, value: bytes) -> bytes:
    """Return a field of a protocol buffer; number and length are small."""
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def encode_varint(value: int) -> bytes:
    """Return an integer in the variable-length encoding of protocol buffers."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def import_package() -> Any:
    """Import sentencepiece; a missing or an old package is an error with the command that installs it."""
    try:
        package = importlib.import_module("sentencepiece")
    except ImportError:
        raise SaccadeError(
            "SentencePiece models need the package sentencepiece, which is not installed",
            hint="pip install 'saccade[sentencepiece]'",
        ) from None
    version = str(getattr(package, "__version__", "0"))
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < OLDEST:
        raise SaccadeError(
            f"the package sentencepiece {version} is too old",
            hint="pip install --upgrade 'saccade[sentencepiece]'",
        )
    return package

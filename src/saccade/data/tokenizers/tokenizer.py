"""Tokenizers: BPE or unigram subwords, characters, bytes or words, saved as one self-contained JSON file.

A SentencePiece model is a tokenizer too; it is saved unchanged beside the JSON file, which contains its SHA-256.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args

import numpy as np
import tokenizers as rust
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from saccade.data.config import SENTENCEPIECE, TRAINABLE, Normalization, TokenizerKind
from saccade.data.reading.normalization import normalize
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.sentencepiece_backend import SentencePieceBackend, load_backend
from saccade.data.tokenizers.unigram_training import train_unigram
from saccade.data.tokenizers.vocabulary_file import Vocabulary, check_pipeline, read_vocabulary
from saccade.errors import SaccadeError, did_you_mean
from saccade.symbols import Symbols
from saccade.untrusted_files import parse_json, read_text, shown

SYMBOL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")  # the piece of id 0, 1, 2, 3
UNKNOWN = SYMBOL_PIECES[Symbols.unknown]
SPACE = "▁"
# A "▁" in the user's text is escaped as a noncharacter, which `normalize` removes from texts.
ESCAPED_SPACE = "\ufdd0"
ESCAPES = {" ": SPACE, SPACE: ESCAPED_SPACE}
# Pre-tokens are words or single other characters, each with the space before it: "mann." is never a piece.
SUBWORD_BOUNDS = Regex(rf"{SPACE}?[\p{{L}}\p{{M}}]+|{SPACE}?[^\p{{L}}\p{{M}}{SPACE}]|{SPACE}")
# In the word tokenizer, a word of the user's text that is spelt like a symbol gets an escaped "<".
ESCAPED_BRACKET = "\ufdd1"
SYMBOL_WORD_START = Regex(r"(?<!\S)<(?=(?:pad|s|/s|unk)>(?!\S))")
ANY_CHARACTER = Regex(r"(?m).")
FORMAT = "saccade-tokenizer"
VERSION = 1
CHUNK_LINES = 10_000  # lines processed together: enough to keep all cores busy
MAX_FILE_SIZE = 2**27  # bytes; a vocabulary entry takes about 25

# The Rust batch calls use a thread pool, which does not survive a fork: switch it off in child processes. Without these
# lines the library prints a warning in every forked process.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=lambda: os.environ.update(TOKENIZERS_PARALLELISM="false"))


class Encoding(NamedTuple):
    """The tokens of a text; offsets are character positions in the normalized text."""

    ids: list[int]
    pieces: list[str]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """Encodes text to ids and back; ids 0 to 3 are the special symbols, and no text can produce pad, begin or end."""

    def __init__(
        self, backend: rust.Tokenizer | SentencePieceBackend, *, kind: TokenizerKind, normalization: Normalization
    ) -> None:
        self._backend = backend
        self._controls = frozenset({Symbols.pad, Symbols.begin, Symbols.end})
        self.kind: TokenizerKind = kind
        self.normalization: Normalization = normalization
        self.symbols = Symbols()

    @classmethod
    def train(
        cls,
        kind: TokenizerKind,
        texts: Iterable[str],
        *,
        size: int,
        min_frequency: int = 1,
        normalization: Normalization = "nfc",
    ) -> Tokenizer:
        """Learn at most `size` pieces (byte: always 260) from texts, deterministically.

        `texts` is iterated several times and never held in memory: pass a list or a re-iterable.
        """
        if size <= len(SYMBOL_PIECES):
            raise SaccadeError(
                f"a vocabulary of {size} is too small for the special symbols", hint="raise --data.vocabulary"
            )
        lines = NormalizedTexts(texts, normalization)
        if kind != "byte" and not any(True for _ in lines):
            raise SaccadeError("there is no text to train a tokenizer on", hint="check that the data is not blank")
        if kind == "bpe":
            backend = _train_bpe(lines, size, min_frequency)
        elif kind == "unigram":
            backend = _train_unigram(lines, size)
        elif kind == "char":
            backend = _train_words(_character_pipeline(), lines, size, min_frequency=1)
        elif kind == "byte":
            backend = _byte_pipeline()
        elif kind == "word":
            backend = _train_words(_word_pipeline(), lines, size, min_frequency)
        else:
            raise SaccadeError(f"no tokenizer of the kind '{kind}' can be trained", hint=did_you_mean(kind, TRAINABLE))
        if backend.get_vocab_size() == len(SYMBOL_PIECES):
            raise SaccadeError(
                f"no {kind} occurs {min_frequency} times, so the vocabulary is empty", hint="lower --data.min-frequency"
            )
        return cls(backend, kind=kind, normalization=normalization)

    @classmethod
    def from_sentencepiece(cls, path: str | Path, normalization: Normalization = "nfc") -> Tokenizer:
        """Make a tokenizer of a SentencePiece model file."""
        return cls(load_backend(path, SYMBOL_PIECES), kind=SENTENCEPIECE, normalization=normalization)

    @property
    def model_bytes(self) -> bytes | None:
        """The file of the SentencePiece model; None for the other kinds."""
        return self._backend.serialized if isinstance(self._backend, SentencePieceBackend) else None

    @property
    def model_digest(self) -> str | None:
        """The SHA-256 of the SentencePiece model; None for the other kinds."""
        return self._backend.digest if isinstance(self._backend, SentencePieceBackend) else None

    @property
    def size(self) -> int:
        """The vocabulary size, special symbols included."""
        return int(self._backend.get_vocab_size())

    def encode(self, text: str) -> Encoding:
        """Return the ids, pieces and offsets of a text."""
        encoding = self._backend.encode(normalize(text, self.normalization), add_special_tokens=False)
        return Encoding(encoding.ids, self.pieces(encoding.ids), encoding.offsets)

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of texts, encoded on all cores."""
        lines = [normalize(text, self.normalization) for text in texts]
        return [encoding.ids for encoding in self._backend.encode_batch_fast(lines, add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text; pad, begin and end are skipped."""
        kept = [int(token) for token in ids if int(token) not in self._controls]
        return str(self._backend.decode(kept, skip_special_tokens=False))

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The piece of every id."""
        pieces = {token: piece for piece, token in self._backend.get_vocab().items()}
        return tuple(pieces[token] for token in range(self.size))

    def piece(self, token: int) -> str:
        """Return the piece of an id."""
        if not 0 <= token < len(self.vocabulary):
            raise IndexError(f"id {token} is not in a vocabulary of {self.size}")
        return self.vocabulary[token]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the pieces of ids."""
        return [self.piece(token) for token in ids]

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Merges of a bpe vocabulary in order of priority."""
        merges = json.loads(self._backend.to_str())["model"].get("merges", [])
        return [(first, second) for first, second in merges]

    def document(self) -> str:
        """Return the content of the tokenizer file, as JSON."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "normalization": self.normalization,
            "tokenizer": json.loads(self._backend.to_str()),
        }
        return json.dumps(document, ensure_ascii=False, indent=1) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file; a SentencePiece model goes beside it, with the suffix .model."""
        Path(path).write_text(self.document(), encoding="utf-8")
        if self.model_bytes is not None:
            model_path(path).write_bytes(self.model_bytes)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a file written by `save`; only its vocabulary is used, the pipeline is rebuilt for its kind."""
        document = _read_document(path)
        if document["kind"] == SENTENCEPIECE:
            backend = load_backend(model_path(path), SYMBOL_PIECES)
            if document["tokenizer"] != json.loads(backend.to_str()):
                raise _invalid_file(path, f"belongs to another file than {model_path(path).name}")
            return cls(backend, kind=SENTENCEPIECE, normalization=document["normalization"])
        try:
            rebuilt = _rebuild(document["kind"], document["tokenizer"])
        except Exception as error:  # the library raises no narrower class
            raise _invalid_file(path, f"has no usable tokenizer: {error}") from None
        return cls(rebuilt, kind=document["kind"], normalization=document["normalization"])


def model_path(path: str | Path) -> Path:
    """Return the path of the SentencePiece model of a tokenizer file."""
    return Path(path).with_suffix(".model")


def _read_document(path: str | Path) -> dict[str, Any]:
    try:
        document = parse_json(read_text(path, MAX_FILE_SIZE))
    except OSError as error:
        raise SaccadeError(
            f"cannot be read: {error.strerror}", where=str(path), hint="give a tokenizer.json written by Saccade"
        ) from None
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise _invalid_file(path, f"is not JSON ({what})") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _invalid_file(path, "was not written by Saccade")
    if document.get("version") != VERSION:
        raise _invalid_file(path, f"has format version {shown(document.get('version'))}, this version reads {VERSION}")
    if document.get("kind") not in get_args(TokenizerKind):
        raise _invalid_file(path, f"has the unknown kind {shown(document.get('kind'))}")
    if document.get("normalization") not in get_args(Normalization):
        raise _invalid_file(path, f"has the unknown normalization {shown(document.get('normalization'))}")
    if not isinstance(document.get("tokenizer"), dict):
        raise _invalid_file(path, "has no tokenizer")
    if unknown := document.keys() - {"format", "version", "kind", "normalization", "tokenizer"}:
        raise _invalid_file(path, f"has the unknown key {shown(min(unknown))}")
    return document


def _invalid_file(path: str | Path, what: str) -> SaccadeError:
    return SaccadeError(what, where=str(path), hint="use an unmodified copy of the model's tokenizer.json")


def _rebuild(kind: TokenizerKind, saved: Mapping[str, Any]) -> rust.Tokenizer:
    """Rebuild a tokenizer from the vocabulary of a file; an invalid file raises ValueError."""
    vocabulary = read_vocabulary(saved.get("model"), scored=kind == "unigram")
    if tuple(vocabulary.pieces[: len(SYMBOL_PIECES)]) != SYMBOL_PIECES:
        raise ValueError(f"ids 0 to 3 are not {', '.join(SYMBOL_PIECES)}")
    empty = _assemble(kind, Vocabulary(list(SYMBOL_PIECES), [], [0.0] * len(SYMBOL_PIECES)))
    check_pipeline(saved, json.loads(empty.to_str()))
    backend = _assemble(kind, vocabulary)
    if kind == "byte" and backend.get_vocab() != {piece: index for index, piece in enumerate(vocabulary.pieces)}:
        raise ValueError("its vocabulary is not the 256 bytes")
    return backend


def _assemble(kind: TokenizerKind, vocabulary: Vocabulary) -> rust.Tokenizer:
    """Build the tokenizer of a kind with a vocabulary."""
    ids = {piece: index for index, piece in enumerate(vocabulary.pieces)}
    if kind == "bpe":
        return _subword_pipeline(models.BPE(ids, vocabulary.merges, unk_token=UNKNOWN, fuse_unk=True))
    if kind == "unigram":
        scored = list(zip(vocabulary.pieces, vocabulary.scores, strict=True))
        return _subword_pipeline(models.Unigram(scored, unk_id=Symbols.unknown, byte_fallback=False))
    if kind == "byte":
        return _byte_pipeline()
    backend = _character_pipeline() if kind == "char" else _word_pipeline()
    backend.model = models.WordLevel(ids, unk_token=UNKNOWN)
    return backend


def _subword_pipeline(model: models.Model) -> rust.Tokenizer:
    """Build a lossless subword pipeline: every space becomes the first character of the piece after it."""
    backend = rust.Tokenizer(model)
    backend.normalizer = normalizers.Replace(SPACE, ESCAPED_SPACE)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=False),
            pre_tokenizers.Split(SUBWORD_BOUNDS, behavior="isolated"),
        ]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Metaspace(SPACE, prepend_scheme="always"), decoders.Replace(ESCAPED_SPACE, SPACE)]
    )
    return backend


def _train_bpe(lines: Iterable[str], size: int, min_frequency: int) -> rust.Tokenizer:
    backend = _subword_pipeline(models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    alphabet = _alphabet(lines, size - len(SYMBOL_PIECES))
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(SYMBOL_PIECES),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    return _without_special_tokens(backend)


def _train_unigram(lines: Iterable[str], size: int) -> rust.Tokenizer:
    pieces = train_unigram(_count_words(lines), size - len(SYMBOL_PIECES))
    vocabulary = [(symbol, 0.0) for symbol in SYMBOL_PIECES] + [(entry.piece, entry.score) for entry in pieces]
    return _subword_pipeline(models.Unigram(vocabulary, unk_id=Symbols.unknown, byte_fallback=False))


def _count_words(lines: Iterable[str]) -> dict[str, int]:
    """Count the pre-tokens of the subword pipeline."""
    counter = _train_words(_subword_pipeline(models.WordLevel(unk_token=UNKNOWN)), lines, size=2**31, min_frequency=1)
    counts: Counter[int] = Counter()
    for chunk in _chunks(lines):
        for encoding in counter.encode_batch_fast(chunk, add_special_tokens=False):
            counts.update(encoding.ids)
    return {word: counts[token] for word, token in counter.get_vocab().items() if token in counts}


def _character_pipeline() -> rust.Tokenizer:
    """Build a pipeline in which every character is a token, including the space."""
    backend = rust.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(ANY_CHARACTER, behavior="isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _byte_pipeline() -> rust.Tokenizer:
    """Build a pipeline of UTF-8 bytes: no character is in the vocabulary, so each falls back to its bytes."""
    pieces = [*SYMBOL_PIECES, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = rust.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Split(ANY_CHARACTER, behavior="isolated")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _word_pipeline() -> rust.Tokenizer:
    """Build a pipeline in which every whitespace-separated word is a token."""
    backend = rust.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    backend.normalizer = normalizers.Replace(SYMBOL_WORD_START, ESCAPED_BRACKET)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    # This decoder joins pieces with spaces unless a piece starts with the prefix; no piece starts with a noncharacter.
    joined = decoders.WordPiece(prefix=ESCAPED_SPACE, cleanup=False)
    backend.decoder = decoders.Sequence([joined, decoders.Replace(ESCAPED_BRACKET, "<")])
    return backend


def _train_words(backend: rust.Tokenizer, lines: Iterable[str], size: int, min_frequency: int) -> rust.Tokenizer:
    trainer = trainers.WordLevelTrainer(
        vocab_size=size, min_frequency=min_frequency, special_tokens=list(SYMBOL_PIECES), show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    return _without_special_tokens(backend)


def _without_special_tokens(backend: rust.Tokenizer) -> rust.Tokenizer:
    """Remove the special tokens, so that the tokenizer does not match them in the user's text."""
    document = json.loads(backend.to_str())
    document["added_tokens"] = []
    return rust.Tokenizer.from_str(json.dumps(document))


def _alphabet(lines: Iterable[str], limit: int) -> list[str]:
    """Return the `limit` most frequent characters, escaped as in the subword pipeline."""
    frequencies = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    for chunk in _chunks(lines):
        text = " ".join(["", *chunk])  # Metaspace prepends a space to each line
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
        frequencies += np.bincount(codes, minlength=len(frequencies))
    order = np.argsort(-frequencies, kind="stable")[: min(limit, np.count_nonzero(frequencies))]
    return [ESCAPES.get(character, character) for character in map(chr, sorted(order.tolist()))]


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(lines)
    while chunk := list(islice(iterator, CHUNK_LINES)):
        yield chunk


class NormalizedTexts:
    """A re-iterable over normalized, non-empty texts."""

    def __init__(self, texts: Iterable[str], normalization: Normalization) -> None:
        self._texts = require_reiterable(texts)
        self._normalization = normalization

    def __iter__(self) -> Iterator[str]:
        return (line for text in self._texts if (line := normalize(text, self._normalization)))


class PairTexts:
    """A re-iterable over the texts of pairs: of one side, or of both sides alternately."""

    def __init__(self, pairs: Iterable[Pair], sides: tuple[int, ...]) -> None:
        self._pairs = require_reiterable(pairs)
        self._sides = sides

    def __iter__(self) -> Iterator[str]:
        return (pair[side] for pair in self._pairs for side in self._sides)


T = TypeVar("T")


def require_reiterable(items: Iterable[T]) -> Iterable[T]:
    """Return `items`; an iterator, which can be iterated only once, raises TypeError."""
    if iter(items) is items:
        raise TypeError("the items are iterated several times: pass a list, not an iterator")
    return items

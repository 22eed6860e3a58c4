"""The source and target tokenizers: trained, saved and loaded together."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from saccade.data.config import SENTENCEPIECE, DataConfig, kind_of, require_model_file
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import CHUNK_LINES, PairTexts, Tokenizer
from saccade.folder import damaged

JOINT, SOURCE, TARGET = "tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"


class Tokenizers(NamedTuple):
    """The source and target tokenizers; one object if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer


def train_tokenizers(pairs: Iterable[Pair], config: DataConfig) -> Tokenizers:
    """Train the tokenizers that the config describes; SentencePiece models are loaded.

    `pairs` is iterated several times and never held in memory.
    """

    def make(setting: str, size: int, *sides: int) -> Tokenizer:
        kind = kind_of(setting)
        if kind == SENTENCEPIECE:
            return Tokenizer.from_sentencepiece(require_model_file(setting), config.normalization)
        texts = PairTexts(pairs, sides)
        return Tokenizer.train(
            kind, texts, size=size, min_frequency=config.min_frequency, normalization=config.normalization
        )

    if config.shares_vocabulary:
        joint = make(config.tokenizer, config.vocabulary, 0, 1)
        return Tokenizers(joint, joint)
    return Tokenizers(
        source=make(config.tokenizer, config.vocabulary, 0),
        target=make(config.target_setting, config.target_size, 1),
    )


def save_tokenizers(folder: Path, tokenizers: Tokenizers) -> None:
    """Save the tokenizers: one file for a joint vocabulary, else two."""
    if tokenizers.source is tokenizers.target:
        tokenizers.source.save(folder / JOINT)
    else:
        tokenizers.source.save(folder / SOURCE)
        tokenizers.target.save(folder / TARGET)


def load_tokenizers(folder: Path, names: Collection[str] | None = None) -> Tokenizers:
    """Load the files of `save_tokenizers`; `names` are the files to consider, by default those in the folder."""
    names = {file.name for file in folder.glob("tokenizer*.json")} if names is None else names
    for name in (SOURCE, TARGET):
        if (name in names) == (JOINT in names):
            raise damaged(folder / name, f"must be in the folder, or {JOINT} instead of both files")
    if JOINT in names:
        joint = Tokenizer.load(folder / JOINT)
        return Tokenizers(joint, joint)
    return Tokenizers(Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET))


def tokenizers_digest(tokenizers: Tokenizers) -> str:
    """Return the SHA-256 of the saved form of both tokenizers."""
    digest = hashlib.sha256(b"joint" if tokenizers.source is tokenizers.target else b"separate")
    for tokenizer in tokenizers:
        digest.update(tokenizer.document().encode("utf-8"))
    return digest.hexdigest()


class PiecePairs:
    """A re-iterable over pairs as space-separated pieces, for learning a lexicon of pieces."""

    def __init__(self, pairs: Iterable[Pair], tokenizers: Tokenizers) -> None:
        self.pairs = pairs
        self.tokenizers = tokenizers

    def __iter__(self) -> Iterator[Pair]:
        pairs = iter(self.pairs)
        while chunk := list(islice(pairs, CHUNK_LINES)):
            sources = join_pieces(self.tokenizers.source, [pair.source for pair in chunk])
            targets = join_pieces(self.tokenizers.target, [pair.target for pair in chunk])
            yield from map(Pair, sources, targets)


def join_pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[str]:
    """Return each text as its pieces, separated by spaces."""
    return [" ".join(tokenizer.pieces(ids)) for ids in tokenizer.encode_batch(texts)]

"""The tokenizers of both sides of the data: trained, written and read together."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from saccade.data.config import DataConfig, TokenizerKind
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer import Texts, Tokenizer
from saccade.folder import damaged

JOINT, SOURCE, TARGET = "tokenizer.json", "tokenizer.source.json", "tokenizer.target.json"


class Tokenizers(NamedTuple):
    """The tokenizers of both sides; one and the same if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer


def train_tokenizers(pairs: Iterable[Pair], config: DataConfig) -> Tokenizers:
    """Learn the vocabularies that the settings ask for; the pairs are gone through several times and never held."""

    def train(kind: TokenizerKind, size: int, *sides: int) -> Tokenizer:
        texts = Texts(pairs, sides)
        return Tokenizer.train(
            kind, texts, size=size, min_frequency=config.min_frequency, normalization=config.normalization
        )

    if config.shares_vocabulary:
        joint = train(config.tokenizer, config.vocabulary, 0, 1)
        return Tokenizers(joint, joint)
    return Tokenizers(
        source=train(config.tokenizer, config.vocabulary, 0),
        target=train(config.target_kind, config.target_size, 1),
    )


def save_tokenizers(folder: Path, tokenizers: Tokenizers) -> None:
    """One file for a joint vocabulary, two for separate ones."""
    if tokenizers.source is tokenizers.target:
        tokenizers.source.save(folder / JOINT)
    else:
        tokenizers.source.save(folder / SOURCE)
        tokenizers.target.save(folder / TARGET)


def load_tokenizers(folder: Path, names: Collection[str] | None = None) -> Tokenizers:
    """What `save_tokenizers` wrote, if `names` has it; a joint vocabulary is one object for both sides."""
    names = {file.name for file in folder.glob("tokenizer*.json")} if names is None else names
    for name in (SOURCE, TARGET):
        if (name in names) == (JOINT in names):
            raise damaged(folder / name, "should stand in the folder, or tokenizer.json instead of both")
    if JOINT in names:
        joint = Tokenizer.load(folder / JOINT)
        return Tokenizers(joint, joint)
    return Tokenizers(Tokenizer.load(folder / SOURCE), Tokenizer.load(folder / TARGET))


def tokenizers_digest(tokenizers: Tokenizers) -> str:
    """A hash of everything in the tokenizers."""
    digest = hashlib.sha256(b"joint" if tokenizers.source is tokenizers.target else b"separate")
    for tokenizer in tokenizers:
        digest.update(tokenizer.document().encode("utf-8"))
    return digest.hexdigest()

"""The data of a run: read, split, tokenised, and what it asks of the model and of the search."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.checkpoint import load_tokenizers
from saccade.data.config import DataConfig
from saccade.data.corpus import Corpus, build_corpus, hold_out
from saccade.data.files import Pair, read_pairs
from saccade.data.tokenizer import Tokenizers, train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.interface import Decodes
from saccade.training.tracking import Tracker


class Data(NamedTuple):
    """All that the loop learns from and is judged by."""

    tokenizers: Tokenizers
    train: Corpus
    valid: Corpus | None


def load_data(config: DataConfig, saved: Path | None, tracker: Tracker) -> Data:
    """Read the files, train or load the tokenizers, tokenise, filter, and say what became of it."""
    pairs = list(pairs_of(config, config.source, config.target))
    valid: list[Pair] = []
    if config.valid_source:
        valid = list(pairs_of(config, config.valid_source, config.valid_target))
    elif config.hold_out:
        pairs, valid = hold_out(pairs, config.hold_out)
    if not pairs:
        raise SaccadeError("holds no pairs", where=str(config.source), do="give a file with at least one pair")
    tokenizers = load_tokenizers(saved) if saved else train_tokenizers(pairs, config)
    corpus = build_corpus(pairs, tokenizers, config)
    tracker.say(f"training data: {len(corpus):,} pairs, {corpus.dropped}")
    if len(corpus) == 0:
        raise SaccadeError("no pair is left after the filters", where=str(config.source), do="raise --data.max-length")
    source, target = tokenizers
    sizes = f"{source.size:,} {source.kind} tokens"
    if source is not target:
        sizes += f" to {target.size:,} {target.kind} tokens"
    tracker.say(f"vocabulary: {sizes}{' for both sides' if source is target else ''}")
    kept = build_corpus(valid, tokenizers, config, keep_text=True, filtered=False) if valid else None
    if kept is None:
        tracker.say("no validation data: the last model counts as the best (give --valid-source or --data.hold-out)")
    return Data(tokenizers, corpus, kept)


def pairs_of(config: DataConfig, source: str | None, target: str | None) -> Iterator[Pair]:
    """The pairs of one or two files."""
    assert source is not None
    return read_pairs(source, target, source_column=config.source_column, target_column=config.target_column)


def check_lengths(model: Decodes, data: Data) -> None:
    """Refuse a model that cannot hold its data."""
    lengths = [int(corpus.longer_lengths.max()) for corpus in data[1:] if corpus is not None and len(corpus)]
    if model.longest is not None and max(lengths) > model.longest:
        raise SaccadeError(
            f"the longest example has {max(lengths)} tokens, the model {model.longest} positions",
            do="raise --model.max-positions, or lower --data.max-length (validation data is never filtered)",
        )


def fit_length_limit(decoding: DecodingConfig, corpus: Corpus) -> DecodingConfig:
    """Allow outputs a quarter longer, for their input, than nearly all of the training data."""
    ratio = float(np.quantile(corpus.target_lengths / corpus.source_lengths, 0.999))
    factor = max(decoding.max_length_factor, math.ceil(12.5 * ratio) / 10)
    return decoding.model_copy(update={"max_length_factor": factor})

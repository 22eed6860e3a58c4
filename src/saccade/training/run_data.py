"""The data of a run: found in the token cache or built there, and what it asks of the model and of the search."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple, Protocol

from saccade.data.audit.report import DataReport
from saccade.data.cache.corpus import Corpus, build_corpus
from saccade.data.cache.corpus_statistics import ALLOWANCE
from saccade.data.cache.token_cache import CachedData, open_cache
from saccade.data.config import DataConfig
from saccade.data.sampling.mixture import find_quotas
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.distributed.group import ALONE, Group
from saccade.errors import SaccadeError
from saccade.interface import Decodes


class Listener(Protocol):
    """Whoever wants to know how the data comes along; a tracker does."""

    def say(self, message: str) -> None:
        """Tell the user something."""
        ...

    def progress(self, what: str, done: int, total: int | None) -> None:
        """How far a long task is; `done` equal to `total` ends it."""
        ...


class Data(NamedTuple):
    """All that the loop learns from and is judged by."""

    tokenizers: Tokenizers
    train: Corpus
    valid: Corpus | None
    digest: str  # of the content of the input files and of the settings that shape tokens
    report: DataReport


def load_data(
    config: DataConfig, tracker: Listener, *, tokenizers_folder: Path | None = None, group: Group = ALONE
) -> Data:
    """The tokens of the files from the cache, built there if need be, and a word about them.

    A resumed run names the folder of its tokenizers: these are used, whatever the cache holds. The first process of a
    group builds; the others wait until it is done.
    """
    tokenizers = load_tokenizers(tokenizers_folder) if tokenizers_folder and tokenizers_folder.exists() else None

    def first_process_has_the_lock() -> None:
        if group.rank == 0:
            group.totals([0.0])

    if group.rank != 0:
        group.totals([0.0])  # all processes meet here: none of the others can be the first to build
    cached = open_cache(
        config,
        tokenizers=tokenizers,
        say=tracker.say,
        progress=tracker.progress,
        locked=first_process_has_the_lock,
    )
    describe(config, cached, tracker)
    valid = None
    if cached.valid:
        valid = build_corpus(cached.valid, cached.tokenizers, config, keep_text=True, filtered=False)
    else:
        tracker.say("no validation data: the last model counts as the best (give --valid-source or --data.hold-out)")
    # The tokenizers of a resumed run are handed back as they came: those of the entry are their equals.
    return Data(tokenizers or cached.tokenizers, cached.train, valid, cached.digest, cached.report)


def describe(config: DataConfig, cached: CachedData, tracker: Listener) -> None:
    """Say where the tokens are, how many pairs there are, and how large the vocabulary is."""
    how = "reused" if cached.seconds is None else f"built in {cached.seconds:.0f} s"
    tracker.say(f"token cache: {cached.path}, {how}")
    corpus = cached.train
    tracker.say(f"training data: {len(corpus):,} pairs, {corpus.dropped}")
    if len(corpus.parts) > 1:
        quotas = find_quotas(corpus.parts, config.weights, config.temperature)
        for path, size, quota in zip(config.source, corpus.parts, quotas, strict=True):
            tracker.say(f"  {path}: {size:,} pairs, {quota / len(corpus):.1%} of the examples")
    source, target = cached.tokenizers
    sizes = f"{source.size:,} {source.kind} tokens"
    if source is not target:
        sizes += f" to {target.size:,} {target.kind} tokens"
    tracker.say(f"vocabulary: {sizes}{' for both sides' if source is target else ''}")


def check_lengths(model: Decodes, data: Data) -> None:
    """Refuse a model that cannot hold its data."""
    known = [corpus.statistics for corpus in (data.train, data.valid) if corpus is not None]
    longest = max(max(one.longest_source, one.longest_target) for one in known)
    if model.longest is not None and longest > model.longest:
        raise SaccadeError(
            f"the longest example has {longest} tokens, the model {model.longest} positions",
            do="raise --model.max-positions, or lower --data.max-length (validation data is never filtered)",
        )


def fit_length_limit(decoding: DecodingConfig, corpus: Corpus) -> DecodingConfig:
    """Allow outputs that grow a tenth more with their input than those of nearly all of the training data.

    Not more than that: a beam is searched until nothing could still win, and what is allowed could.
    """
    if decoding.max_length_factor is not None:
        return decoding
    # The data was measured with an allowance a target; a user who allows less gets that much more a source token.
    missing = max(0, ALLOWANCE - decoding.max_length_offset)
    factor = max(1.0, math.ceil(11 * corpus.statistics.growth) / 10) + missing
    return decoding.model_copy(update={"max_length_factor": factor})

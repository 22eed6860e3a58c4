"""The data of a run: loaded from the token cache, and the limits it sets for the model and the search."""

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
from saccade.distributed.group import SINGLE_PROCESS, Group
from saccade.errors import SaccadeError
from saccade.interface import Decoder

MIN_SOURCE_LIMIT = 64  # tokens: a toy corpus of short sources does not split normal sentences


class ProgressListener(Protocol):
    """Receives messages and progress while the data is prepared; every tracker is one."""

    def log(self, message: str) -> None:
        """Show a message to the user."""
        ...

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Report progress of a long task; it ends when `done` equals `total`."""
        ...


class RunData(NamedTuple):
    """Tokenizers, training data and validation data of a run."""

    tokenizers: Tokenizers
    train: Corpus
    valid: Corpus | None
    digest: str  # of the content of the input files and of the tokenizer settings
    report: DataReport
    valid_report: DataReport  # of the validation files; empty without them


def load_data(
    config: DataConfig,
    tracker: ProgressListener,
    *,
    tokenizers_folder: Path | None = None,
    group: Group = SINGLE_PROCESS,
) -> RunData:
    """Load the tokenized data from the token cache, which is built if needed, and log its statistics.

    A resumed run passes the folder of its tokenizers; these take precedence over the cache. Rank 0 builds the cache;
    the other processes wait for it.
    """
    tokenizers = load_tokenizers(tokenizers_folder) if tokenizers_folder and tokenizers_folder.exists() else None

    def rank_zero_has_the_lock() -> None:
        if group.rank == 0:
            group.barrier()

    if group.rank != 0:
        group.barrier()  # pass only when rank 0 holds the lock, so that no other rank builds the cache
    cached = open_cache(
        config,
        tokenizers=tokenizers,
        log=tracker.log,
        progress=tracker.progress,
        on_lock=rank_zero_has_the_lock,
    )
    log_statistics(config, cached, tracker)
    valid = None
    if cached.valid:
        valid = build_corpus(cached.valid, cached.tokenizers, config, keep_text=True, filtered=False)
    else:
        tracker.log("no validation data: the last model counts as the best (give --valid-source or --data.hold-out)")
    # The tokenizers of a resumed run equal those of the cache entry; return the objects that were passed in.
    return RunData(
        tokenizers or cached.tokenizers, cached.train, valid, cached.digest, cached.report, cached.valid_report
    )


def log_statistics(config: DataConfig, cached: CachedData, tracker: ProgressListener) -> None:
    """Log the path of the cache, the number of pairs and the vocabulary sizes."""
    how = "reused" if cached.seconds is None else f"built in {cached.seconds:.0f} s"
    tracker.log(f"token cache: {cached.path}, {how}")
    corpus = cached.train
    tracker.log(f"training data: {len(corpus):,} pairs, {corpus.dropped}")
    if len(corpus.parts) > 1:
        quotas = find_quotas(corpus.parts, config.weights, config.temperature)
        for path, size, quota in zip(config.source, corpus.parts, quotas, strict=True):
            tracker.log(f"  {path}: {size:,} pairs, {quota / len(corpus):.1%} of the examples")
    source, target = cached.tokenizers
    sizes = f"{source.size:,} {source.kind} tokens"
    if source is not target:
        sizes += f" to {target.size:,} {target.kind} tokens"
    tracker.log(f"vocabulary: {sizes}{' for both sides' if source is target else ''}")


def check_lengths(model: Decoder, data: RunData) -> None:
    """Raise an error if an example is longer than the model's maximum number of positions."""
    statistics = [corpus.statistics for corpus in (data.train, data.valid) if corpus is not None]
    longest = max(max(one.longest_source, one.longest_target) for one in statistics)
    if model.max_target_positions is not None and longest > model.max_target_positions:
        raise SaccadeError(
            f"the longest example has {longest} tokens, the model {model.max_target_positions} positions",
            hint="raise --model.max-positions, or lower --data.max-length (validation data is never filtered)",
        )


def fit_source_limit(decoding: DecodingConfig, corpus: Corpus) -> DecodingConfig:
    """Set the maximum source length to that of the training data: a model has not learned what lies beyond."""
    if decoding.max_source is not None:
        return decoding
    longest = corpus.statistics.longest_source - 1  # without the end symbol
    return decoding.model_copy(update={"max_source": max(MIN_SOURCE_LIMIT, longest)})


def fit_length_limit(decoding: DecodingConfig, corpus: Corpus) -> DecodingConfig:
    """Set the maximum output length per source token to 1.1 times that of nearly all training examples.

    A larger limit would make beam search slower: it continues while a longer hypothesis could still win.
    """
    if decoding.max_length_factor is not None:
        return decoding
    # The growth was measured with a constant allowance per target; a smaller offset is made up for by the factor.
    missing = max(0, ALLOWANCE - decoding.max_length_offset)
    factor = max(1.0, math.ceil(11 * corpus.statistics.growth) / 10) + missing
    return decoding.model_copy(update={"max_length_factor": factor})

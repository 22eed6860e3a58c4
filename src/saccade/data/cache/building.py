"""From input files to a folder of tokens: examine, learn the vocabulary, encode; each a stream over the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.data.audit.examination import Examination, Findings
from saccade.data.audit.report import DataReport
from saccade.data.cache.corpus_files import StoreWriter
from saccade.data.cache.length_filters import Dropped
from saccade.data.config import DataConfig
from saccade.data.reading.hold_out import HoldOut, Keys, are_held
from saccade.data.reading.pair_files import Pair
from saccade.data.reading.pair_stream import training_chunks, validation_pairs
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, save_tokenizers, train_tokenizers
from saccade.data.workers.jobs import Encode, Examine
from saccade.data.workers.pool import map_chunks
from saccade.errors import SaccadeError
from saccade.folder import write_json

Report = Callable[[str, int, int | None], None]
"""Told what is being done, how much of it is done, and how much there is (None: nobody knows)."""

REPORT = "report.json"
VALID = "valid.jsonl"


def build_tokens(folder: Path, config: DataConfig, tokenizers: Tokenizers | None, progress: Report) -> Tokenizers:
    """Fill a folder with tokenizers, tokens, validation texts and the report; `tokenizers` are learnt if not given."""
    valid = list(validation_pairs(config))
    examined = examine(config, valid, progress)
    write_json(folder / REPORT, examined.report.to_json())
    if tokenizers is None:
        tokenizers = train_tokenizers(VocabularyPairs(config, examined, progress), config)
        progress("learning the vocabulary", examined.pairs, examined.pairs)
    save_tokenizers(folder, tokenizers)
    held = encode(folder, config, tokenizers, examined, progress)
    write_pairs(folder / VALID, valid or held)
    return tokenizers


class Examined(NamedTuple):
    """What the first pass found: how many pairs, what is remarkable about them, and which are to be held out."""

    pairs: int
    report: DataReport
    held: Keys


def examine(config: DataConfig, valid: list[Pair], progress: Report) -> Examined:
    """Look at all training pairs once."""
    pairs = [0] * len(config.source)
    holding = config.hold_out if config.valid_source is None else 0
    hold_out = HoldOut(holding)
    examination = Examination(config.source, valid)
    with closing(map_chunks(training_chunks(config), Examine(keys=holding > 0), config.workers)) as answers:
        for chunk, answer in answers:
            examination.add(chunk.corpus, Findings.from_bytes(answer.arrays["findings"].tobytes()))
            hold_out.add(answer.arrays["keys"])
            pairs[chunk.corpus] += len(chunk.pairs)
            progress("examining", sum(pairs), None)
    for source, count in zip(config.source, pairs, strict=True):
        if not count:
            raise SaccadeError("holds no pairs", where=source, do="give a file with at least one pair")
    progress("examining", sum(pairs), sum(pairs))
    return Examined(sum(pairs), examination.finish(), hold_out.choose())


class VocabularyPairs:
    """The training pairs that the vocabulary is learnt from, read anew whenever they are asked for."""

    def __init__(self, config: DataConfig, examined: Examined, progress: Report) -> None:
        self._config = config
        self._examined = examined
        self._progress = progress

    def __iter__(self) -> Iterator[Pair]:
        total, before = self._examined.pairs, 0
        wanted = min(self._config.tokenizer_pairs, total)
        for chunk in training_chunks(self._config):
            places = np.arange(before, before + len(chunk.pairs) + 1)
            before += len(chunk.pairs)
            taken = np.diff(places * wanted // total) > 0  # every pair if all are wanted, else evenly spread
            pairs = [chunk.pairs[place] for place in np.flatnonzero(taken)]
            for place in np.flatnonzero(~are_held(pairs, self._examined.held)):
                yield pairs[place]
            self._progress("learning the vocabulary", before, None)


def encode(
    folder: Path, config: DataConfig, tokenizers: Tokenizers, examined: Examined, progress: Report
) -> list[Pair]:
    """Write the tokens of all training pairs; returns the pairs that are held out."""
    parts = [0] * len(config.source)
    dropped = Dropped(max_length=config.max_length, max_ratio=config.max_ratio)
    held: list[Pair] = []
    done = 0
    job = Encode(folder, max_length=config.max_length, max_ratio=config.max_ratio, held=examined.held)
    sizes = {"source_vocabulary": tokenizers.source.size, "target_vocabulary": tokenizers.target.size}
    with (
        StoreWriter(folder, **sizes) as store,
        closing(map_chunks(training_chunks(config), job, config.workers)) as answers,
    ):
        for chunk, answer in answers:
            arrays, values = answer.arrays, answer.values
            store.append(
                arrays["source_ids"],
                arrays["source_lengths"],
                arrays["target_ids"],
                arrays["target_lengths"],
                unknown_source=values["unknown_source"],
                unknown_target=values["unknown_target"],
            )
            dropped.add(Dropped(**values["dropped"]))
            held += [chunk.pairs[place] for place in np.flatnonzero(arrays["held"])]
            parts[chunk.corpus] += len(arrays["source_lengths"])
            done += len(chunk.pairs)
            progress("tokenising", done, max(done, examined.pairs))
        store.finish(tuple(parts), dropped)
    for source, count in zip(config.source, parts, strict=True):
        if not count:
            raise SaccadeError(
                "no pair is left after the filters", where=source, do=f"raise --data.max-length; {dropped}"
            )
    return held


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as one JSON list a line: texts may hold anything, line feeds too."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)


def read_saved_pairs(path: Path) -> list[Pair]:
    """What `write_pairs` wrote."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [Pair(*json.loads(line)) for line in file]

"""Building an entry of the token cache: examine, train the tokenizers, encode; each step streams over the files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saccade.data.audit.examination import Examination, Findings, examine_chunk
from saccade.data.audit.report import DataReport
from saccade.data.cache.corpus_files import CorpusWriter
from saccade.data.cache.length_filters import DroppedPairs
from saccade.data.chunk_jobs import EncodeJob, ExamineJob, map_chunks
from saccade.data.config import DataConfig
from saccade.data.reading.hold_out import HoldOutSelector, Keys, held_out_mask
from saccade.data.reading.pair_files import Pair
from saccade.data.reading.pair_stream import training_chunks, validation_pairs
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, save_tokenizers, train_tokenizers
from saccade.errors import SaccadeError
from saccade.folder import write_json

ProgressCallback = Callable[[str, int, int | None], None]
"""Called with the name of the task, the number of pairs done, and the total (None if unknown)."""

REPORT = "report.json"
VALID = "valid.jsonl"
VALID_REPORT = "valid-report.json"


def build_tokens(
    folder: Path, config: DataConfig, tokenizers: Tokenizers | None, progress: ProgressCallback
) -> Tokenizers:
    """Write tokenizers, tokens, validation texts and the data report to a folder; train `tokenizers` if not given."""
    valid = list(validation_pairs(config))
    examined = examine(config, valid, progress)
    write_json(folder / REPORT, examined.report.to_json())
    write_json(folder / VALID_REPORT, examine_validation(config, valid).to_json())
    if tokenizers is None:
        tokenizers = train_tokenizers(VocabularyPairs(config, examined, progress), config)
        progress("learning the vocabulary", examined.pairs, examined.pairs)
    save_tokenizers(folder, tokenizers)
    held_out = encode(folder, config, tokenizers, examined, progress)
    write_pairs(folder / VALID, valid or held_out)
    return tokenizers


class ExaminationResult(NamedTuple):
    """Result of the first pass: the number of pairs, the data report, and the source keys of the held-out pairs."""

    pairs: int
    report: DataReport
    held_out: Keys


def examine(config: DataConfig, valid: list[Pair], progress: ProgressCallback) -> ExaminationResult:
    """Examine all training pairs: the first pass over the files."""
    pairs = [0] * len(config.source)
    held_count = config.hold_out if config.valid_source is None else 0
    hold_out = HoldOutSelector(held_count)
    examination = Examination(config.source, valid)
    with closing(map_chunks(training_chunks(config), ExamineJob(keys=held_count > 0), config.workers)) as results:
        for chunk, result in results:
            examination.add(chunk.corpus, Findings.from_bytes(result.arrays["findings"].tobytes()))
            hold_out.add(result.arrays["keys"])
            pairs[chunk.corpus] += len(chunk.pairs)
            progress("examining", sum(pairs), None)
    for source, count in zip(config.source, pairs, strict=True):
        if not count:
            raise SaccadeError("has no pairs", where=source, hint="give a file with at least one pair")
    progress("examining", sum(pairs), sum(pairs))
    return ExaminationResult(sum(pairs), examination.finish(), hold_out.choose())


def examine_validation(config: DataConfig, valid: list[Pair]) -> DataReport:
    """Examine the pairs of the validation files, if any."""
    examination = Examination([", ".join(path for path in (config.valid_source, config.valid_target) if path)])
    if valid:
        examination.add(0, examine_chunk(valid, 1))
    return examination.finish()


class VocabularyPairs:
    """A re-iterable over the training pairs that the tokenizers are trained on."""

    def __init__(self, config: DataConfig, examined: ExaminationResult, progress: ProgressCallback) -> None:
        self._config = config
        self._examined = examined
        self._progress = progress

    def __iter__(self) -> Iterator[Pair]:
        total, before = self._examined.pairs, 0
        wanted = min(self._config.tokenizer_pairs, total)
        for chunk in training_chunks(self._config):
            numbers = np.arange(before, before + len(chunk.pairs) + 1)
            before += len(chunk.pairs)
            taken = np.diff(numbers * wanted // total) > 0  # evenly spaced; all pairs if wanted == total
            pairs = [chunk.pairs[index] for index in np.flatnonzero(taken)]
            for index in np.flatnonzero(~held_out_mask(pairs, self._examined.held_out)):
                yield pairs[index]
            self._progress("learning the vocabulary", before, None)


def encode(
    folder: Path, config: DataConfig, tokenizers: Tokenizers, examined: ExaminationResult, progress: ProgressCallback
) -> list[Pair]:
    """Write the tokens of all training pairs; return the held-out pairs."""
    parts = [0] * len(config.source)
    dropped = DroppedPairs(max_length=config.max_length, max_ratio=config.max_ratio)
    held_out: list[Pair] = []
    done = 0
    job = EncodeJob(folder, max_length=config.max_length, max_ratio=config.max_ratio, held_out=examined.held_out)
    sizes = {"source_vocabulary": tokenizers.source.size, "target_vocabulary": tokenizers.target.size}
    with (
        CorpusWriter(folder, **sizes) as writer,
        closing(map_chunks(training_chunks(config), job, config.workers)) as results,
    ):
        for chunk, result in results:
            arrays, values = result.arrays, result.values
            writer.append(
                arrays["source_ids"],
                arrays["source_lengths"],
                arrays["target_ids"],
                arrays["target_lengths"],
                unknown_source=values["unknown_source"],
                unknown_target=values["unknown_target"],
            )
            dropped.add(DroppedPairs(**values["dropped"]))
            held_out += [chunk.pairs[index] for index in np.flatnonzero(arrays["held_out"])]
            parts[chunk.corpus] += len(arrays["source_lengths"])
            done += len(chunk.pairs)
            progress("tokenizing", done, max(done, examined.pairs))
        writer.finish(tuple(parts), dropped)
    for source, count in zip(config.source, parts, strict=True):
        if not count:
            raise SaccadeError(
                "all pairs were dropped by the filters", where=source, hint=f"raise --data.max-length; {dropped}"
            )
    return held_out


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as JSON, one [source, target] list per line; JSON escapes line feeds in the texts."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)


def read_saved_pairs(path: Path) -> list[Pair]:
    """Read pairs written by `write_pairs`."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return [Pair(*json.loads(line)) for line in file]

"""Inspection of a run before it starts: settings, files, texts, tokens, batches, model, memory and disk.

Errors are collected, not raised. All files are read to the end; the inspection continues with tokens, batches and the
model only if they have no errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.audit.examination import Examination, Findings
from saccade.data.audit.report import KINDS, OVERLAPS, SEVERITIES, DataReport, percentage
from saccade.data.cache.corpus import Corpus
from saccade.data.chunk_jobs import Examine, map_chunks
from saccade.data.reading.pair_files import FileError, Pair, read_pairs
from saccade.data.reading.pair_stream import Chunk, chunked
from saccade.data.sampling.batch_sampler import BatchSampler
from saccade.errors import SaccadeError
from saccade.model_folder import vocabulary_sizes
from saccade.training.checkpoints.start_from_model import (
    StartModel,
    copy_start_weights,
    find_start_folder,
    load_start_model,
)
from saccade.training.compute_settings import (
    check_disk,
    choose_precision,
    configure_process,
    estimate_disk_bytes,
    existing_parent,
    make_autocast,
)
from saccade.training.config import RunConfig
from saccade.training.objectives.factory import make_objective
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.preflight.forecast import forecast
from saccade.training.preflight.inspection import QUANTILES, Input, Inspection, Remark, SideStatistics, TokenStatistics
from saccade.training.run import check_config
from saccade.training.runs.data import ProgressListener, RunData, check_lengths, load_data
from saccade.training.stopping import equivalent_updates, planned_updates

SHOWN_ERRORS = 5  # of one kind per file
QUANTILE_SAMPLE = 1_000_000  # pairs
MAX_UNKNOWN = 0.01  # fraction of unknown tokens without a warning
MAX_DROPPED = 0.1  # fraction of dropped pairs without a warning


def inspect(
    config: RunConfig,
    listener: ProgressListener,
    *,
    test_source: str | None = None,
    test_target: str | None = None,
    with_model: bool = True,
) -> Inspection:
    """Inspect a run before it starts; `config` is resolved, but may lack the output directory."""
    inspector = Inspector(config, listener)
    device = inspector.check_settings()
    start = inspector.load_start()
    valid = inspector.examine_texts(test_source, test_target)
    data = inspector.load_data() if valid and (start is not None or config.training.start is None) else None
    if data is not None:
        inspector.count_tokens(data)
        order = inspector.plan_batches(data)
        if with_model and device is not None:
            inspector.check_model(data, order, device, start)
    return inspector.result()


@dataclass
class Inspector:
    """An inspection in progress."""

    config: RunConfig
    listener: ProgressListener
    inputs: list[Input] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    reports: dict[str, DataReport] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)  # the other fields of the inspection

    def add_error(self, error: SaccadeError) -> None:
        """Record an error that would stop the run."""
        what = error.what if error.where is None else f"{error.where}: {error.what}"
        self.remarks.append(Remark("error", what, do=error.do))

    def check_settings(self) -> torch.device | None:
        """Check settings and output directory, and return the device; None if it is not available."""
        if self.config.output is not None:
            output = Path(self.config.output)
            parent = existing_parent(output)
            what = None
            if output.exists() and (not output.is_dir() or any(output.iterdir())):
                what = "already exists and is not empty"
            elif not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                what = f"cannot be created in {parent}"
            if what is not None:
                self.add_error(SaccadeError(what, where=str(output), do="choose another --output"))
        try:
            return check_config(self.config)
        except SaccadeError as error:
            self.add_error(error)
            return None

    def load_start(self) -> StartModel | None:
        """Load and verify the start model, if any."""
        if self.config.training.start is None:
            return None
        try:
            return load_start_model(self.config.training.start, self.config.choice())
        except SaccadeError as error:
            self.add_error(error)
            return None

    def examine_texts(self, test_source: str | None, test_target: str | None) -> bool:
        """Read all files to the end and examine their texts; return whether there are no errors."""
        data = self.config.data
        before = len(self.remarks)
        valid = self.examine_held_out("validation", data.valid_source, data.valid_target)
        test = self.examine_held_out("test", test_source, test_target)
        examination = Examination(data.source, valid, test=test)
        pairs = [0] * len(data.source)
        errors = FileErrors()
        targets = data.target or (None,) * len(data.source)
        chunks = self.read_chunks(list(zip(data.source, targets, strict=True)), errors)
        with closing(map_chunks(chunks, Examine(keys=False), data.workers)) as answers:
            for chunk, answer in answers:
                examination.add(chunk.corpus, Findings.from_bytes(answer.arrays["findings"].tobytes()))
                pairs[chunk.corpus] += len(chunk.pairs)
                self.listener.progress("examining", sum(pairs), None)
        self.listener.progress("examining", sum(pairs), sum(pairs))
        self.inputs[:0] = [
            Input("training", source, target, count)
            for source, target, count in zip(data.source, targets, pairs, strict=True)
        ]
        self.add_report("training", examination.finish(), errors)
        if not sum(pairs) and not errors:
            self.add_error(SaccadeError("contains no pairs", where=", ".join(data.source), do="name files with pairs"))
        return all(remark.severity != "error" for remark in self.remarks[before:])

    def examine_held_out(self, use: str, source: str | None, target: str | None) -> list[Pair]:
        """Examine validation or test files and return their pairs."""
        if source is None:
            return []
        errors = FileErrors()
        name = source if target is None else f"{source}, {target}"
        examination = Examination([name])
        pairs: list[Pair] = []
        for chunk in self.read_chunks([(source, target)], errors):
            answer = Examine(keys=False).run(chunk)
            examination.add(0, Findings.from_bytes(answer.arrays["findings"].tobytes()))
            pairs += chunk.pairs
        self.inputs.append(Input(use, source, target, len(pairs)))
        self.add_report(use, examination.finish(), errors)
        return pairs

    def read_chunks(self, corpora: Sequence[tuple[str, str | None]], errors: FileErrors) -> Iterator[Chunk]:
        """Yield all readable pairs, corpus by corpus; record the errors of the others."""
        columns = {"source_column": self.config.data.source_column, "target_column": self.config.data.target_column}
        for corpus, (source, target) in enumerate(corpora):
            special = [path for path in (source, target) if path is not None and is_special(path)]
            for path in special:
                errors.add(FileError("unreadable", "not a regular file", file=path, do="write it to a file first"))
            if special:
                continue  # a pipe may never end, and cannot be read twice
            first = 1
            for pairs in chunked(read_pairs(source, target, **columns, on_error=errors.add)):
                yield Chunk(corpus, first, pairs)
                first += len(pairs)

    def add_report(self, use: str, report: DataReport, errors: FileErrors) -> None:
        """Record a data report, and remarks on the errors of files and texts."""
        self.reports[use] = report
        self.remarks += errors.remarks()
        if errors and report.faults:
            self.remarks.append(Remark("information", f"{use} data: pairs are counted without the invalid lines"))
        for fault in report.faults:
            advice = None if fault.severity == "information" else KINDS[fault.kind].do
            places = tuple(str(place) for place in fault.places)
            about = "" if fault.kind in OVERLAPS else f"{use} data: "
            self.remarks.append(Remark(fault.severity, f"{about}{fault}", places, advice))

    def load_data(self) -> RunData | None:
        """Load the tokenized data as training does."""
        try:
            start = self.config.training.start
            folder = find_start_folder(start) if start else None
            return load_data(self.config.data, self.listener, tokenizers_folder=folder)
        except SaccadeError as error:
            self.add_error(error)
            return None

    def count_tokens(self, data: RunData) -> None:
        """Record lengths in tokens, unknown tokens and dropped pairs."""
        tokens = [token_statistics("training", data.train)]
        if data.valid is not None:
            tokens.append(token_statistics("validation", data.valid))
        for one in tokens:
            for name, side in (("source", one.source), ("target", one.target)):
                if side.unknown_share > MAX_UNKNOWN:
                    what = f"{percentage(side.unknown_share)} of the tokens of the {one.use} {name} are unknown"
                    do = "raise --data.vocabulary, lower --data.min-frequency, or take --data.tokenizer byte"
                    self.remarks.append(Remark("warning", what, do=do))
        dropped = data.train.dropped
        if dropped.seen and dropped.total / dropped.seen > MAX_DROPPED:
            what = f"{percentage(dropped.total / dropped.seen)} of the training pairs are dropped"
            self.remarks.append(Remark("warning", what, do=f"{dropped}; see --data.max-length, --data.max-ratio"))
        source, target = data.tokenizers
        sizes = f"{source.size:,} {source.kind} tokens"
        sizes += " for both sides" if source is target else f" to {target.size:,} {target.kind} tokens"
        self.found.update(tokens=tuple(tokens), filters=str(dropped), vocabulary=sizes)

    def plan_batches(self, data: RunData) -> BatchSampler:
        """Record the number of batches and their padding."""
        order = BatchSampler.from_config(data.train, self.config.data, self.config.training.seed)
        self.found.update(batches=order.batches_per_epoch, padding=order.padding)
        return order

    def check_model(self, data: RunData, order: BatchSampler, device: torch.device, start: StartModel | None) -> None:
        """Build the model, run its longest batch, and forecast memory, time and disk space."""
        training = self.config.training
        configure_process(training)
        sizes = vocabulary_sizes(data.tokenizers)
        choice = self.config.choice()
        try:
            torch.manual_seed(training.seed)
            model = choice.build(sizes).to(device)
            copy_start_weights(model, start, choice)
            check_lengths(model, data)
            parameters = sum(parameter.numel() for parameter in model.parameters())
            self.found["model"] = f"{choice.family}, {parameters:,} parameters, on {device}"
            self.check_disk(estimate_disk_bytes(model, training))
            found = forecast(
                model,
                make_objective(training, choice, data.tokenizers.target, dry_run=True),
                data.train.statistics,
                batch_tokens=self.config.data.batch_tokens,
                accumulate=training.accumulate,
                device=device,
                symbols=data.tokenizers.target.symbols,
                sizes=sizes,
                batches_an_epoch=order.batches_per_epoch,
                total_updates=equivalent_updates(training, planned_updates(training, order.batches_per_epoch)),
                valid=None if data.valid is None else data.valid.statistics,
                validation_objective=Likelihood(training.label_smoothing),
                autocast=make_autocast(device, choose_precision(device, training.precision)),
            )
        except SaccadeError as error:
            self.add_error(error)
            return
        self.found["forecast"] = found
        self.remarks += [Remark("warning", warning.removeprefix("warning: ")) for warning in found.warnings()]

    def check_disk(self, needed: int) -> None:
        """Record the disk space that the run needs, and an error if there is too little."""
        self.found["disk_bytes"] = needed
        if self.config.output is not None:
            try:
                check_disk(Path(self.config.output), needed)
            except SaccadeError as error:
                self.add_error(error)

    def result(self) -> Inspection:
        """Return the inspection, with the most severe remarks first."""
        remarks = sorted(self.remarks, key=lambda remark: SEVERITIES.index(remark.severity))
        return Inspection(tuple(self.inputs), tuple(remarks), self.reports, **self.found)


class FileErrors:
    """Errors in files: all are counted, the first of each kind in each file are kept."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._kept: dict[tuple[str, str], list[FileError]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, error: FileError) -> None:
        """Record an error."""
        key = error.file, error.kind
        self._counts[key] = self._counts.get(key, 0) + 1
        kept = self._kept.setdefault(key, [])
        if len(kept) < SHOWN_ERRORS:
            kept.append(error)

    def remarks(self) -> list[Remark]:
        """Return one remark for each kind of error in each file."""
        found: list[Remark] = []
        for key, (first, *others) in self._kept.items():
            places = [f"{other.where}: {other.what}" for other in others]
            more = self._counts[key] - 1 - len(others)
            if more:
                places.append(f"and {more:,} more of this kind in this file")
            found.append(Remark("error", f"{first.where}: {first.what}", tuple(places), first.do))
        return found


def is_special(path: str) -> bool:
    """Return whether a path is a pipe, a device or another special file."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def token_statistics(use: str, corpus: Corpus) -> TokenStatistics:
    """Return the token statistics of a corpus; quantiles are from an evenly spaced sample."""
    statistics = corpus.statistics
    rows = np.unique(np.linspace(0, max(0, len(corpus) - 1), min(len(corpus), QUANTILE_SAMPLE)).astype(np.int64))

    def side(tokens: int, unknown: int, longest: int, lengths: Callable[[Any], Any]) -> SideStatistics:
        found = np.quantile(lengths(rows) - 1, QUANTILES, method="inverted_cdf") if len(rows) else [0] * len(QUANTILES)
        quantiles = tuple(int(figure) for figure in found)
        return SideStatistics(tokens - statistics.pairs, unknown, quantiles, max(0, longest - 1))  # without end symbols

    return TokenStatistics(
        use,
        statistics.pairs,
        side(statistics.source_tokens, statistics.unknown_source, statistics.longest_source, corpus.source_lengths),
        side(statistics.target_tokens, statistics.unknown_target, statistics.longest_target, corpus.target_lengths),
    )

"""Everything that could stop a run or spoil it, looked for before it starts.

Faults are collected, not raised: the files are read to their end, and only if they are sound does the inspection go on
to tokens, batches and the model.
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
from saccade.data.reading.pair_files import FileError, Pair, read_pairs
from saccade.data.reading.pair_stream import Chunk, chunked
from saccade.data.sampling.batch_sampler import Order
from saccade.data.workers.jobs import Examine
from saccade.data.workers.pool import map_chunks
from saccade.errors import SaccadeError
from saccade.model_folder import vocabulary_sizes
from saccade.training.checkpoints.start_from_model import Start, load_start, put_start, start_folder
from saccade.training.compute_settings import (
    autocast_for,
    check_disk,
    choose_precision,
    disk_needed,
    existing_parent,
    prepare_machine,
)
from saccade.training.config import RunConfig
from saccade.training.objectives.factory import make_objective
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.preflight.forecast import forecast
from saccade.training.preflight.inspection import QUANTILES, Input, Inspection, Remark, Side, Tokens
from saccade.training.run import check
from saccade.training.run_data import Data, Listener, check_lengths, load_data
from saccade.training.stopping import planned_updates, work_of

SHOWN = 5  # faults of one kind shown of each file
SAMPLE = 1_000_000  # pairs that the quantiles of the lengths are taken from
UNKNOWN = 0.01  # a larger share of unknown tokens deserves a warning
DROPPED = 0.1  # so does a larger share of dropped pairs


def inspect(
    config: RunConfig,
    listener: Listener,
    *,
    test_source: str | None = None,
    test_target: str | None = None,
    with_model: bool = True,
) -> Inspection:
    """Look at all of a run that can be looked at before it starts; `config` is complete but for its output."""
    inspector = Inspector(config, listener)
    device = inspector.settings()
    start = inspector.start()
    sound = inspector.texts(test_source, test_target)
    data = inspector.load() if sound and (start is not None or config.training.start is None) else None
    if data is not None:
        inspector.vocabulary(data)
        order = inspector.batches(data)
        if with_model and device is not None:
            inspector.model(data, order, device, start)
    return inspector.finish()


@dataclass
class Inspector:
    """An inspection under way."""

    config: RunConfig
    listener: Listener
    inputs: list[Input] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    reports: dict[str, DataReport] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)  # the other fields of the inspection

    def refuse(self, error: SaccadeError) -> None:
        """Note an error that would stop the run."""
        what = error.what if error.where is None else f"{error.where}: {error.what}"
        self.remarks.append(Remark("error", what, do=error.do))

    def settings(self) -> torch.device | None:
        """Settings that do not fit together, a device that is not there, a place that cannot be written."""
        if self.config.output is not None:
            output = Path(self.config.output)
            parent = existing_parent(output)
            what = None
            if output.exists() and (not output.is_dir() or any(output.iterdir())):
                what = "already exists and is not empty"
            elif not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                what = f"cannot be made in {parent}"
            if what is not None:
                self.refuse(SaccadeError(what, where=str(output), do="choose another --output"))
        try:
            return check(self.config)
        except SaccadeError as error:
            self.refuse(error)
            return None

    def start(self) -> Start | None:
        """The model to start from, verified, if the settings name one."""
        if self.config.training.start is None:
            return None
        try:
            return load_start(self.config.training.start, self.config.choice())
        except SaccadeError as error:
            self.refuse(error)
            return None

    def texts(self, test_source: str | None, test_target: str | None) -> bool:
        """Read all files to their end, examine their texts, and say whether they are sound."""
        data = self.config.data
        before = len(self.remarks)
        valid = self.held_out("validation", data.valid_source, data.valid_target)
        test = self.held_out("test", test_source, test_target)
        examination = Examination(data.source, valid, test=test)
        pairs = [0] * len(data.source)
        faults = FaultList()
        targets = data.target or (None,) * len(data.source)
        chunks = self.chunks(list(zip(data.source, targets, strict=True)), faults)
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
        self.add_report("training", examination.finish(), faults)
        if not sum(pairs) and not faults:
            self.refuse(SaccadeError("holds no pairs", where=", ".join(data.source), do="name files with pairs"))
        return all(remark.severity != "error" for remark in self.remarks[before:])

    def held_out(self, use: str, source: str | None, target: str | None) -> list[Pair]:
        """The pairs of validation or test files, examined by themselves."""
        if source is None:
            return []
        faults = FaultList()
        name = source if target is None else f"{source}, {target}"
        examination = Examination([name])
        pairs: list[Pair] = []
        for chunk in self.chunks([(source, target)], faults):
            answer = Examine(keys=False).do(chunk)
            examination.add(0, Findings.from_bytes(answer.arrays["findings"].tobytes()))
            pairs += chunk.pairs
        self.inputs.append(Input(use, source, target, len(pairs)))
        self.add_report(use, examination.finish(), faults)
        return pairs

    def chunks(self, corpora: Sequence[tuple[str, str | None]], faults: FaultList) -> Iterator[Chunk]:
        """All pairs that can be read, corpus after corpus; the faults of the others are noted."""
        columns = {"source_column": self.config.data.source_column, "target_column": self.config.data.target_column}
        for corpus, (source, target) in enumerate(corpora):
            special = [path for path in (source, target) if path is not None and is_special(path)]
            for path in special:
                faults.add(FileError("unreadable", "is no regular file", file=path, do="write it to a file first"))
            if special:
                continue  # reading a pipe may take forever, and a second time it is empty
            first = 1
            for pairs in chunked(read_pairs(source, target, **columns, faults=faults.add)):
                yield Chunk(corpus, first, pairs)
                first += len(pairs)

    def add_report(self, use: str, report: DataReport, faults: FaultList) -> None:
        """Keep a report, and make remarks of the faults of the files and of the texts."""
        self.reports[use] = report
        self.remarks += faults.remarks()
        if faults and report.faults:
            self.remarks.append(Remark("information", f"{use} data: pairs are counted without the faulty lines"))
        for fault in report.faults:
            advice = None if fault.severity == "information" else KINDS[fault.kind].do
            places = tuple(str(place) for place in fault.places)
            about = "" if fault.kind in OVERLAPS else f"{use} data: "
            self.remarks.append(Remark(fault.severity, f"{about}{fault}", places, advice))

    def load(self) -> Data | None:
        """The tokens of the data, as training will have them."""
        try:
            start = self.config.training.start
            return load_data(self.config.data, self.listener, tokenizers_folder=start_folder(start) if start else None)
        except SaccadeError as error:
            self.refuse(error)
            return None

    def vocabulary(self, data: Data) -> None:
        """How long the texts are in tokens, what the vocabulary does not know, and what the filters drop."""
        tokens = [count_tokens("training", data.train)]
        if data.valid is not None:
            tokens.append(count_tokens("validation", data.valid))
        for one in tokens:
            for name, side in (("source", one.source), ("target", one.target)):
                if side.unknown_share > UNKNOWN:
                    what = f"{percentage(side.unknown_share)} of the tokens of the {one.use} {name} are unknown"
                    do = "raise --data.vocabulary, lower --data.min-frequency, or take --data.tokenizer byte"
                    self.remarks.append(Remark("warning", what, do=do))
        dropped = data.train.dropped
        if dropped.seen and dropped.total / dropped.seen > DROPPED:
            what = f"{percentage(dropped.total / dropped.seen)} of the training pairs are dropped"
            self.remarks.append(Remark("warning", what, do=f"{dropped}; see --data.max-length, --data.max-ratio"))
        source, target = data.tokenizers
        sizes = f"{source.size:,} {source.kind} tokens"
        sizes += " for both sides" if source is target else f" to {target.size:,} {target.kind} tokens"
        self.found.update(tokens=tuple(tokens), filters=str(dropped), vocabulary=sizes)

    def batches(self, data: Data) -> Order:
        """How the data is cut into batches."""
        order = Order.of(data.train, self.config.data, self.config.training.seed)
        self.found.update(batches=order.batches_an_epoch, padding=order.padding)
        return order

    def model(self, data: Data, order: Order, device: torch.device, start: Start | None) -> None:
        """Build the model, run its longest batch, and reckon what the run will need."""
        training = self.config.training
        prepare_machine(training)
        sizes = vocabulary_sizes(data.tokenizers)
        choice = self.config.choice()
        try:
            torch.manual_seed(training.seed)
            model = choice.build(sizes).to(device)
            put_start(model, start, choice)
            check_lengths(model, data)
            parameters = sum(parameter.numel() for parameter in model.parameters())
            self.found["model"] = f"{choice.family}, {parameters:,} parameters, on {device}"
            self.disk(disk_needed(model, training))
            found = forecast(
                model,
                make_objective(training, choice, data.tokenizers.target, rehearsed=True),
                data.train.statistics,
                batch_tokens=self.config.data.batch_tokens,
                accumulate=training.accumulate,
                device=device,
                symbols=data.tokenizers.target.symbols,
                sizes=sizes,
                batches_an_epoch=order.batches_an_epoch,
                total_updates=work_of(training, planned_updates(training, order.batches_an_epoch)),
                valid=None if data.valid is None else data.valid.statistics,
                judge=Likelihood(training.label_smoothing),
                autocast=autocast_for(device, choose_precision(device, training.precision)),
            )
        except SaccadeError as error:
            self.refuse(error)
            return
        self.found["forecast"] = found
        self.remarks += [Remark("warning", warning.removeprefix("warning: ")) for warning in found.attention()]

    def disk(self, needed: int) -> None:
        """Whether the disk has room for what the run will keep."""
        self.found["disk_bytes"] = needed
        if self.config.output is not None:
            try:
                check_disk(Path(self.config.output), needed)
            except SaccadeError as error:
                self.refuse(error)

    def finish(self) -> Inspection:
        """All that was found, the worst first."""
        remarks = sorted(self.remarks, key=lambda remark: SEVERITIES.index(remark.severity))
        return Inspection(tuple(self.inputs), tuple(remarks), self.reports, **self.found)


class FaultList:
    """Faults of files: all are counted, the first of each kind in each file are kept."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._kept: dict[tuple[str, str], list[FileError]] = {}

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, fault: FileError) -> None:
        """Note a fault."""
        key = fault.file, fault.kind
        self._counts[key] = self._counts.get(key, 0) + 1
        kept = self._kept.setdefault(key, [])
        if len(kept) < SHOWN:
            kept.append(fault)

    def remarks(self) -> list[Remark]:
        """One error for each kind of fault in each file."""
        found: list[Remark] = []
        for key, (first, *others) in self._kept.items():
            places = [f"{other.where}: {other.what}" for other in others]
            more = self._counts[key] - 1 - len(others)
            if more:
                places.append(f"and {more:,} more of this kind in this file")
            found.append(Remark("error", f"{first.where}: {first.what}", tuple(places), first.do))
        return found


def is_special(path: str) -> bool:
    """Whether a path is a pipe, a device or the like."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def count_tokens(use: str, corpus: Corpus) -> Tokens:
    """The figures of tokenised data; the quantiles are those of an even sample of a large corpus."""
    statistics = corpus.statistics
    rows = np.unique(np.linspace(0, max(0, len(corpus) - 1), min(len(corpus), SAMPLE)).astype(np.int64))

    def side(tokens: int, unknown: int, longest: int, lengths: Callable[[Any], Any]) -> Side:
        found = np.quantile(lengths(rows) - 1, QUANTILES, method="inverted_cdf") if len(rows) else [0] * len(QUANTILES)
        quantiles = tuple(int(figure) for figure in found)
        return Side(tokens - statistics.pairs, unknown, quantiles, max(0, longest - 1))  # without the end symbols

    return Tokens(
        use,
        statistics.pairs,
        side(statistics.source_tokens, statistics.unknown_source, statistics.longest_source, corpus.source_lengths),
        side(statistics.target_tokens, statistics.unknown_target, statistics.longest_target, corpus.target_lengths),
    )

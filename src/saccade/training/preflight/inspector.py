"""Inspection of a run before it starts: settings, files, texts, tokens, batches, model, memory and disk.

Errors are collected, not raised. All files are read to the end; the inspection continues with tokens, batches and the
model only if they have no errors.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.data.audit.report import SEVERITIES
from saccade.data.cache.corpus import Corpus
from saccade.data.sampling.batch_sampler import BatchSampler
from saccade.errors import SaccadeError
from saccade.model_folder import vocabulary_sizes
from saccade.training.checkpoints.start_from_model import StartModel, copy_start_weights, load_start_model
from saccade.training.checkpoints.start_settings import find_start_folder
from saccade.training.compute_settings import ComputeSettings, configure_process, resolve_compute
from saccade.training.config import RunConfig
from saccade.training.config_resolution import check_complete
from saccade.training.objectives.factory import make_objective
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.preflight.data_findings import token_findings
from saccade.training.preflight.disk_space import check_disk, estimate_disk_bytes, existing_parent
from saccade.training.preflight.file_examination import examine_files
from saccade.training.preflight.inspection_report import QUANTILES, Finding, Inspection, SideStatistics, TokenStatistics
from saccade.training.preflight.memory_and_time_forecast import forecast
from saccade.training.runs.data import ProgressListener, RunData, check_lengths, load_data
from saccade.training.stopping import equivalent_updates, planned_updates

QUANTILE_SAMPLE = 1_000_000  # pairs


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
    compute = inspector.check_settings()
    start = inspector.load_start()
    files = examine_files(config.data, listener, test_source=test_source, test_target=test_target)
    inspector.findings += files.findings
    ready = not files.has_errors and (start is not None or config.training.start is None)
    data = inspector.load_data() if ready else None
    if data is not None:
        inspector.count_tokens(data)
        sampler = inspector.plan_batches(data)
        if with_model and compute is not None:
            inspector.check_model(data, sampler, compute, start)
    # The most severe findings come first.
    findings = sorted(inspector.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return Inspection(tuple(files.inputs), tuple(findings), files.reports, **inspector.found)


@dataclass
class Inspector:
    """An inspection in progress."""

    config: RunConfig
    listener: ProgressListener
    findings: list[Finding] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)  # the other fields of the inspection

    def add_error(self, error: SaccadeError) -> None:
        """Record an error that would stop the run."""
        what = error.what if error.where is None else f"{error.where}: {error.what}"
        self.findings.append(Finding("error", what, hint=error.hint))

    def check_settings(self) -> ComputeSettings | None:
        """Check settings and output directory; return device and precision, None after an error."""
        if self.config.output is not None:
            output = Path(self.config.output)
            parent = existing_parent(output)
            what = None
            if output.exists() and (not output.is_dir() or any(output.iterdir())):
                what = "already exists and is not empty"
            elif not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
                what = f"cannot be created in {parent}"
            if what is not None:
                self.add_error(SaccadeError(what, where=str(output), hint="choose another --output"))
        try:
            check_complete(self.config)
            return resolve_compute(self.config.training)
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
        self.findings += token_findings(data)
        source, target = data.tokenizers
        sizes = f"{source.size:,} {source.kind} tokens"
        sizes += " for both sides" if source is target else f" to {target.size:,} {target.kind} tokens"
        self.found.update(tokens=tuple(tokens), filters=str(data.train.dropped), vocabulary=sizes)

    def plan_batches(self, data: RunData) -> BatchSampler:
        """Record the number of batches and their padding."""
        sampler = BatchSampler.from_config(data.train, self.config.data, self.config.training.seed)
        self.found.update(batches=sampler.batches_per_epoch, padding=sampler.padding)
        return sampler

    def check_model(
        self, data: RunData, sampler: BatchSampler, compute: ComputeSettings, start: StartModel | None
    ) -> None:
        """Build the model, run its longest batch, and forecast memory, time and disk space."""
        training = self.config.training
        device = compute.device
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
                batches_an_epoch=sampler.batches_per_epoch,
                total_updates=equivalent_updates(training, planned_updates(training, sampler.batches_per_epoch)),
                valid=None if data.valid is None else data.valid.statistics,
                validation_objective=Likelihood(training.label_smoothing),
                autocast=compute.autocast,
            )
        except SaccadeError as error:
            self.add_error(error)
            return
        self.found["forecast"] = found
        self.findings += [Finding("warning", warning) for warning in found.warnings()]

    def check_disk(self, needed: int) -> None:
        """Record the disk space that the run needs, and an error if there is too little."""
        self.found["disk_bytes"] = needed
        if self.config.output is not None:
            try:
                check_disk(Path(self.config.output), needed)
            except SaccadeError as error:
                self.add_error(error)


def token_statistics(use: str, corpus: Corpus) -> TokenStatistics:
    """Return the token statistics of a corpus; quantiles are from an evenly spaced sample."""
    statistics = corpus.statistics
    indices = np.unique(np.linspace(0, max(0, len(corpus) - 1), min(len(corpus), QUANTILE_SAMPLE)).astype(np.int64))

    def side(tokens: int, unknown: int, longest: int, lengths: Callable[[Any], Any]) -> SideStatistics:
        found = (
            np.quantile(lengths(indices) - 1, QUANTILES, method="inverted_cdf")
            if len(indices)
            else [0] * len(QUANTILES)
        )
        quantiles = tuple(int(figure) for figure in found)
        return SideStatistics(tokens - statistics.pairs, unknown, quantiles, max(0, longest - 1))  # without end symbols

    return TokenStatistics(
        use,
        statistics.pairs,
        side(statistics.source_tokens, statistics.unknown_source, statistics.longest_source, corpus.source_lengths),
        side(statistics.target_tokens, statistics.unknown_target, statistics.longest_target, corpus.target_lengths),
    )

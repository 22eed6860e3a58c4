"""Scores of each model, in total and by length, and its difference from a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saccade.data.reading.pair_files import read_lines
from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import Comparison, Interval, interval, paired_bootstrap
from saccade.evaluation.length_buckets import Bucket, length_buckets, long_sentences
from saccade.evaluation.metrics import bleu, chrf
from saccade.models.family import Costs
from saccade.models.registry import presets
from saccade.plots.model_comparison import ScoreCurve
from saccade.plots.training_curves import points_of
from saccade.studies.comparison.notes import make_notes
from saccade.studies.comparison.request import Entry, Request
from saccade.studies.comparison.results import (
    Alignment,
    Result,
    outputs_path,
    read_alignment,
    read_result,
    run_path,
)
from saccade.studies.comparison.shared_settings import FREE_DATA_SETTINGS
from saccade.training.runs.csv_log import read_rows
from saccade.training.runs.directory import RunDirectory

BASELINE = "seq2seq"  # the family without attention, if it is compared


@dataclass(frozen=True)
class Row:
    """One row of the report: a model, without scores if it failed."""

    entry: Entry
    costs: Costs
    result: Result
    bleu: Interval | None = None
    chrf: float | None = None
    by_length: tuple[Interval, ...] = ()  # one per bucket
    curve: ScoreCurve | None = None  # validation BLEU over minutes of training
    alignment: Alignment | None = None  # for the sentence of the comparison


@dataclass(frozen=True)
class Difference:
    """The difference of one model from the baseline, on long sentences."""

    name: str
    test: Comparison


@dataclass(frozen=True)
class Scores:
    """The scores of all models."""

    rows: tuple[Row, ...]
    buckets: tuple[Bucket, ...]
    sentences: int
    long_sentences: int
    baseline: str | None
    differences: tuple[Difference, ...]
    signatures: tuple[str, ...]
    notes: tuple[str, ...]


def score_models(request: Request) -> Scores:
    """Score the outputs of all models."""
    sources, references = request.sources(), request.references()
    buckets = length_buckets(sources)
    rows: list[Row] = []
    outputs: dict[str, list[str]] = {}
    signatures: list[str] = []
    for entry in request.entries:
        result = read_result(request.output, entry.name) or Result(entry.name, "failed", reason="it has no result")
        costs = presets()[entry.preset].costs()
        curve = read_curve(run_path(request.output, entry.name), result.early_end)
        if result.status != "done":
            rows.append(Row(entry, costs, result, curve=curve))
            continue
        texts = read_outputs(request.output, entry.name, len(sources))
        outputs[entry.name] = texts
        total_chrf = chrf(texts, references)
        signatures = [f"{score.name} {score.signature}" for score in (bleu(texts, references), total_chrf)]
        parts = [
            interval(
                "bleu", [texts[index] for index in bucket.indices], [references[index] for index in bucket.indices]
            )
            for bucket in buckets
        ]
        total = interval("bleu", texts, references)
        sentence = request.plotted_sentence()
        alignment = read_alignment(request.output, entry.name, sentence) if entry.has_cross_attention else None
        rows.append(Row(entry, costs, result, total, total_chrf.value, tuple(parts), curve, alignment))
    check_same_data(rows)
    long = long_sentences(sources)
    baseline = find_baseline(rows)
    differences: list[Difference] = []
    if long and baseline is not None:
        long_references = [references[index] for index in long]
        long_outputs = {name: [texts[index] for index in long] for name, texts in outputs.items()}
        differences = [
            Difference(name, paired_bootstrap("bleu", long_outputs[baseline], texts, long_references))
            for name, texts in long_outputs.items()
            if name != baseline
        ]
    return Scores(
        rows=tuple(rows),
        buckets=tuple(buckets),
        sentences=len(sources),
        long_sentences=len(long),
        baseline=baseline,
        differences=tuple(differences),
        signatures=tuple(signatures),
        notes=tuple(make_notes(rows, buckets, len(long))),
    )


def read_outputs(output: Path, name: str, expected: int) -> list[str]:
    """Read the translations of a model."""
    path = outputs_path(output, name)
    texts = list(read_lines(path))
    if len(texts) != expected:
        raise SaccadeError(
            f"has {len(texts):,} lines for {expected:,} sentences",
            where=str(path),
            hint="run the same command again: it translates again",
        )
    return texts


def find_baseline(rows: Sequence[Row]) -> str | None:
    """Return the first model without attention, otherwise the one with the lowest BLEU; None if no other is scored."""
    scored = [(row.bleu.value, row) for row in rows if row.bleu is not None]
    if len(scored) < 2:
        return None
    plain = [row.entry.name for _, row in scored if row.entry.family == BASELINE]
    return plain[0] if plain else min(scored, key=lambda pair: pair[0])[1].entry.name


def check_same_data(rows: Sequence[Row]) -> None:
    """Raise an error if models with equal data settings were trained on different data."""
    digests: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.result.trained is None or row.result.config is None:
            continue
        settings = {name: value for name, value in row.result.config["data"].items() if name not in FREE_DATA_SETTINGS}
        first, digest = digests.setdefault(repr(sorted(settings.items())), (row.entry.name, row.result.trained.data))
        if digest != row.result.trained.data:
            raise SaccadeError(
                f"{first} and {row.entry.name} were not trained on the same data",
                hint="restore the files, and compare with another --output",
            )


def read_curve(run: Path, early_end: str | None) -> ScoreCurve | None:
    """Read validation BLEU over minutes of training; None if the files of the run lack one of them."""
    directory = RunDirectory(run)
    if not (directory.metrics.exists() and directory.timing.exists()):
        return None
    scores = points_of(read_rows(directory.metrics), "valid_bleu")
    clock = points_of(read_rows(directory.timing), "seconds")
    if not scores.steps or not clock.steps:
        return None
    steps, seconds = [0.0, *clock.steps], [0.0, *clock.values]
    minutes = [float(np.interp(step, steps, seconds)) / 60 for step in scores.steps]
    return ScoreCurve(minutes, scores.values, early_end)

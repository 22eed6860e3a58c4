"""The figures of the table: each model's scores, by length too, and its differences from a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saccade.data.reading.pair_files import read_lines
from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import Comparison, Interval, interval, paired_bootstrap
from saccade.evaluation.length_buckets import Bucket, length_buckets, long_rows
from saccade.evaluation.metrics import bleu, chrf
from saccade.models.family import Costs
from saccade.models.registry import presets
from saccade.plots.training_curves import points_of
from saccade.studies.comparison.alignments import Alignment, read_alignment
from saccade.studies.comparison.entries import Entry
from saccade.studies.comparison.identity import PLACES
from saccade.studies.comparison.notes import notes_on
from saccade.studies.comparison.request import Request
from saccade.studies.comparison.result import Result, outputs_path, read_result, run_path
from saccade.training.runs.csv_log import read_rows
from saccade.training.runs.directory import RunDirectory

BASELINE = "seq2seq"  # the family without attention, if it takes part


@dataclass(frozen=True)
class Curve:
    """Validation BLEU against minutes of training."""

    minutes: list[float]
    values: list[float]


@dataclass(frozen=True)
class Row:
    """One model; without scores if it failed."""

    entry: Entry
    costs: Costs
    result: Result
    bleu: Interval | None = None
    chrf: float | None = None
    by_length: tuple[Interval, ...] = ()  # one a bucket
    curve: Curve | None = None
    alignment: Alignment | None = None  # in the sentence of the comparison


@dataclass(frozen=True)
class Difference:
    """One model against the baseline, on long sentences."""

    name: str
    found: Comparison


@dataclass(frozen=True)
class Standings:
    """The whole comparison."""

    rows: tuple[Row, ...]
    buckets: tuple[Bucket, ...]
    sentences: int
    long_sentences: int
    baseline: str | None
    differences: tuple[Difference, ...]
    signatures: tuple[str, ...]
    notes: tuple[str, ...]


def standings_of(request: Request) -> Standings:
    """Score what the models of a comparison wrote."""
    sources, references = request.sources(), request.references()
    buckets = length_buckets(sources)
    rows: list[Row] = []
    outputs: dict[str, list[str]] = {}
    signatures: list[str] = []
    for entry in request.entries:
        result = read_result(request.output, entry.name) or Result(
            entry.name, "failed", reason="nothing is known of it"
        )
        costs = presets()[entry.preset].costs()
        if result.status != "done":
            rows.append(Row(entry, costs, result))
            continue
        texts = read_outputs(request.output, entry.name, len(sources))
        outputs[entry.name] = texts
        found = chrf(texts, references)
        signatures = [f"{one.name} {one.signature}" for one in (bleu(texts, references), found)]
        parts = [
            interval("bleu", [texts[row] for row in bucket.rows], [references[row] for row in bucket.rows])
            for bucket in buckets
        ]
        curve = curve_of(run_path(request.output, entry.name))
        total = interval("bleu", texts, references)
        shown = read_alignment(request.output, entry.name, request.drawn_sentence()) if entry.attends else None
        rows.append(Row(entry, costs, result, total, found.value, tuple(parts), curve, shown))
    check_same_data(rows)
    far = long_rows(sources)
    baseline = find_baseline(rows)
    differences: list[Difference] = []
    if far and baseline is not None:
        answers = [references[row] for row in far]
        chosen = {name: [texts[row] for row in far] for name, texts in outputs.items()}
        differences = [
            Difference(name, paired_bootstrap("bleu", chosen[baseline], texts, answers))
            for name, texts in chosen.items()
            if name != baseline
        ]
    return Standings(
        rows=tuple(rows),
        buckets=tuple(buckets),
        sentences=len(sources),
        long_sentences=len(far),
        baseline=baseline,
        differences=tuple(differences),
        signatures=tuple(signatures),
        notes=tuple(notes_on(rows, buckets, len(far))),
    )


def read_outputs(output: Path, name: str, expected: int) -> list[str]:
    """The translations of a model."""
    path = outputs_path(output, name)
    texts = list(read_lines(path))
    if len(texts) != expected:
        raise SaccadeError(
            f"has {len(texts):,} lines for {expected:,} sentences",
            where=str(path),
            do="run the same command again, which makes it anew",
        )
    return texts


def find_baseline(rows: Sequence[Row]) -> str | None:
    """The first model without attention, or else the one with the lowest score; nobody if it would be alone."""
    scored = [(row.bleu.value, row) for row in rows if row.bleu is not None]
    if len(scored) < 2:
        return None
    plain = [row.entry.name for _, row in scored if row.entry.family == BASELINE]
    return plain[0] if plain else min(scored, key=lambda one: one[0])[1].entry.name


def check_same_data(rows: Sequence[Row]) -> None:
    """Refuse a table of models that asked for the same tokens and did not get them."""
    digests: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.result.trained is None or row.result.config is None:
            continue
        asked = {name: value for name, value in row.result.config["data"].items() if name not in PLACES}
        first, digest = digests.setdefault(repr(sorted(asked.items())), (row.entry.name, row.result.trained.data))
        if digest != row.result.trained.data:
            raise SaccadeError(
                f"{first} and {row.entry.name} were not trained on the same data",
                do="restore the files, and compare with another --output",
            )


def curve_of(run: Path) -> Curve | None:
    """Validation BLEU of a run by the minutes that had passed, if it has both."""
    directory = RunDirectory(run)
    if not (directory.metrics.exists() and directory.timing.exists()):
        return None
    scores = points_of(read_rows(directory.metrics), "valid_bleu")
    clock = points_of(read_rows(directory.timing), "seconds")
    if not scores.steps or not clock.steps:
        return None
    steps, seconds = [0.0, *clock.steps], [0.0, *clock.values]
    minutes = [float(np.interp(step, steps, seconds)) / 60 for step in scores.steps]
    return Curve(minutes, scores.values)

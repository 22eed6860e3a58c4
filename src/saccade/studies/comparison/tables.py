"""The tables of a comparison as cells for the terminal, Markdown and HTML, and its unrounded figures as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import Any

from saccade.evaluation.bootstrap import Interval
from saccade.evaluation.length_buckets import LONG
from saccade.studies.comparison.scores import Row, Scores
from saccade.training.units import format_bytes

MISSING = "–"


@dataclass(frozen=True)
class Table:
    """A caption and cells; the first row is the header, and all columns except those in `left` hold numbers."""

    caption: str
    cells: list[list[str]]
    left: tuple[str, ...] = ("model",)

    @property
    def right(self) -> tuple[str, ...]:
        """The columns that hold numbers."""
        return tuple(name for name in self.cells[0] if name not in self.left)


def make_tables(scores: Scores) -> list[Table]:
    """Return all tables in the order of the report."""
    tables = [quality_table(scores), cost_table(scores), length_table(scores)]
    return [*tables, difference_table(scores)] if scores.differences else tables


def split_table(table: Table, width: int) -> list[Table]:
    """Split a table into parts of at most `width` characters, if possible; each repeats the first column."""
    widths = [max(len(row[column]) for row in table.cells) + 2 for column in range(len(table.cells[0]))]
    parts: list[list[int]] = [[]]
    for column in range(1, len(widths)):
        if parts[-1] and sum(widths[index] for index in (0, *parts[-1], column)) - 2 > width:
            parts.append([])
        parts[-1].append(column)
    return [
        Table(table.caption, [[row[column] for column in (0, *part)] for row in table.cells], table.left)
        for part in parts
    ]


def quality_table(scores: Scores) -> Table:
    """Make the table of scores and training costs."""
    header = ["model", "preset", "BLEU", "95 % interval", "chrF", "parameters", "FLOPs", "updates", "minutes"]
    cells = [header]
    for row in scores.rows:
        trained = row.result.trained
        cells.append(
            [
                row.entry.name,
                row.entry.preset,
                "failed" if row.bleu is None else f"{row.bleu.value:.2f}",
                MISSING if row.bleu is None else format_bounds(row.bleu),
                MISSING if row.chrf is None else f"{row.chrf:.2f}",
                f"{row.result.parameters:,}" if row.result.parameters else MISSING,
                f"{trained.flops:.2e}" if trained else MISSING,
                f"{trained.updates:,}" if trained else MISSING,
                f"{trained.seconds / 60:.1f}" if trained else MISSING,
            ]
        )
    return Table(f"Scores on {scores.sentences:,} test sentences", cells, ("model", "preset"))


def cost_table(scores: Scores) -> Table:
    """Make the table of speed, memory and complexity."""
    header = ["model", "training tok/s", "decoding tok/s", "sentences/s", "peak memory", "sequential", "longest path"]
    cells = [header]
    for row in scores.rows:
        trained, decoded = row.result.trained, row.result.decoded
        cells.append(
            [
                row.entry.name,
                f"{trained.tokens_a_second:,.0f}" if trained else MISSING,
                f"{decoded.tokens / decoded.seconds:,.0f}" if decoded else MISSING,
                f"{decoded.sentences / decoded.seconds:,.1f}" if decoded else MISSING,
                format_bytes(row.result.peak_memory) if trained else MISSING,
                row.costs.sequential,
                row.costs.path,
            ]
        )
    caption = (
        "Speed and memory on this machine; sequential operations of a layer and longest path between two positions"
    )
    return Table(caption, cells, ("model", "sequential", "longest path"))


def length_table(scores: Scores) -> Table:
    """Make the table of BLEU by source length."""
    cells = [["model", *(f"{bucket} words" for bucket in scores.buckets)]]
    cells += [
        [row.entry.name, *(f"{bleu.value:.1f} [{bleu.low:.1f}, {bleu.high:.1f}]" for bleu in row.by_length)]
        for row in scores.rows
        if row.bleu is not None
    ]
    cells.append(["sentences", *(f"{len(bucket.indices):,}" for bucket in scores.buckets)])
    return Table("BLEU by the number of source words, with 95 % intervals", cells)


def difference_table(scores: Scores) -> Table:
    """Make the table of differences from the baseline on long sentences."""
    cells = [["model", "BLEU", "difference", "95 % interval", "p"]]
    for difference in scores.differences:
        result = difference.test
        texts = [f"{result.system.value:.2f}", f"{result.difference.value:+.2f}", format_bounds(result.difference)]
        cells.append([difference.name, *texts, f"{result.p_value:.3f}"])
    baseline = scores.differences[0].test.baseline.value
    caption = f"{scores.long_sentences:,} sentences of more than {LONG} words"
    return Table(f"{caption}, against {scores.baseline} ({baseline:.2f}): paired bootstrap", cells)


def format_bounds(interval: Interval) -> str:
    """Format the bounds of an interval."""
    return f"[{interval.low:.2f}, {interval.high:.2f}]"


def csv_text(scores: Scores) -> str:
    """Format CSV with one line of unrounded figures per model."""
    rows = [row_figures(row, scores) for row in scores.rows]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def row_figures(row: Row, scores: Scores) -> dict[str, Any]:
    """Return all figures of one model by name; missing ones are None."""
    result = row.result
    trained, decoded = result.trained, result.decoded
    values: dict[str, Any] = {
        "model": row.entry.name,
        "family": row.entry.family,
        "preset": row.entry.preset,
        "status": result.status,
        "reason": result.reason or "",
        **interval_figures("bleu", row.bleu),
        "chrf": row.chrf,
        "parameters": result.parameters or None,
        "planned_updates": result.plan.updates if result.plan else None,
        "updates": trained.updates if trained else None,
        "training_flops": trained.flops if trained else None,
        "training_target_tokens": trained.target_tokens if trained else None,
        "training_minutes": trained.seconds / 60 if trained else None,
        "training_tokens_a_second": trained.tokens_a_second if trained else None,
        "decoding_tokens_a_second": decoded.tokens / decoded.seconds if decoded else None,
        "decoding_sentences_a_second": decoded.sentences / decoded.seconds if decoded else None,
        "peak_memory_bytes": result.peak_memory or None,
        "operations_a_layer": row.costs.operations,
        "sequential_operations_a_layer": row.costs.sequential,
        "longest_path": row.costs.path,
    }
    for bucket, part in zip(scores.buckets, row.by_length or [None] * len(scores.buckets), strict=True):
        high = "or_more" if bucket.high is None else f"to_{bucket.high}"
        values |= interval_figures(f"bleu_{bucket.low}_{high}_words", part)
    tests = [difference.test for difference in scores.differences if difference.name == row.entry.name]
    values |= interval_figures(f"difference_over_{LONG}_words", tests[0].difference if tests else None)
    values[f"p_over_{LONG}_words"] = tests[0].p_value if tests else None
    return values


def interval_figures(name: str, interval: Interval | None) -> dict[str, float | None]:
    """Return a figure and the bounds of its interval."""
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}

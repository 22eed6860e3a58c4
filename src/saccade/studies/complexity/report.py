"""The findings as tables for the terminal and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from saccade.studies.complexity.findings import Findings, Growth
from saccade.studies.complexity.layers import LAYERS
from saccade.studies.complexity.measurement import Measurement

Cell = Callable[[Measurement], str]

MISSING = "-"
COLUMNS = (
    *("layer", "width", "length", "forward_seconds", "forward_spread", "backward_seconds", "backward_spread"),
    *("repeats", "forward_memory", "backward_memory", "kept_memory", "input_bytes", "left_out", "threads"),
)


class Section(NamedTuple):
    """One table: a title, rows with a header row first, and the names of right-aligned columns."""

    title: str
    rows: list[list[str]]
    right: list[str]
    notes: list[str]


def sections(findings: Findings) -> Iterator[Section]:
    """Yield all tables in the order of the report."""
    for width in findings.plan.widths:
        yield time_table(findings, width)
        yield memory_table(findings, width)
    yield growth_in_length(findings)
    if len(findings.plan.widths) > 1:
        yield growth_in_width(findings)
    yield step_table(findings)
    yield path_table(findings)


def time_table(findings: Findings, width: int) -> Section:
    """Make the table of milliseconds by length and layer."""

    def cell(found: Measurement) -> str:
        return MISSING if found.seconds is None else format_milliseconds(found.seconds)

    spreads = [
        timing.spread
        for found in findings.measurements
        if found.width == width
        for timing in (found.forward, found.backward)
        if timing is not None
    ]
    notes = []
    if spreads:
        notes.append(
            f"median of the repeats; interquartile range {median(spreads):.0%} of the median in half of these figures, "
            f"{max(spreads):.0%} at most"
        )
    return by_length(findings, width, f"milliseconds, forward and backward, d = {width}", cell, notes)


def memory_table(findings: Findings, width: int) -> Section:
    """Make the table of peak megabytes by length and layer."""

    def cell(found: Measurement) -> str:
        return MISSING if found.memory is None else f"{found.memory / 1e6:,.1f}"

    first: dict[str, Measurement] = {}
    for found in findings.left_out():
        if found.width == width:
            first.setdefault(found.layer, found)
    notes = [
        f"{name} from {found.length:,} positions on is left out: {found.left_out}" for name, found in first.items()
    ]
    return by_length(findings, width, f"peak MB above weights and input, d = {width}", cell, notes)


def by_length(findings: Findings, width: int, title: str, cell: Cell, notes: list[str]) -> Section:
    """Make a table with one row per length and one column per layer."""
    layers = list(findings.plan.layers)
    cells = {(found.layer, found.length): cell(found) for found in findings.measurements if found.width == width}
    rows = [
        [f"{length:,}", *(cells.get((layer, length), MISSING) for layer in layers)]
        for length in sorted(findings.plan.lengths)
    ]
    return Section(title, [["n", *layers], *rows], ["n", *layers], notes)


def growth_in_length(findings: Findings) -> Section:
    """Make the table of exponents of n, measured and counted."""
    header = ["layer", "paper", "d", "forward", "backward", "both", "counted", "memory", "expected", "over n"]
    rows = [
        [
            name,
            LAYERS[name].complexity,
            str(width),
            *exponents(growth := findings.growth_in_length(name, width)),
            str(LAYERS[name].memory),
            interval(growth),
        ]
        for name in findings.plan.layers
        for width in findings.plan.widths
    ]
    notes = [
        "counted: the exponent of the layer's multiplications, projections included, over the same lengths",
        "expected: the theoretical exponent of n in peak memory",
    ]
    right = [name for name in header if name not in ("layer", "paper", "over n")]
    return Section("exponents of n: time and peak memory over the last three octaves", [header, *rows], right, notes)


def growth_in_width(findings: Findings) -> Section:
    """Make the table of exponents of d, measured and counted."""
    header = ["layer", "paper", "n", "forward", "backward", "both", "counted", "memory", "over d"]
    rows = []
    for name in findings.plan.layers:
        length, growth = findings.growth_in_width(name)
        rows.append([name, LAYERS[name].complexity, format_count(length), *exponents(growth), interval(growth)])
    right = [name for name in header if name not in ("layer", "paper", "over d")]
    return Section("exponents of d", [header, *rows], right, [])


def step_table(findings: Findings) -> Section:
    """Make the table of sequential operations of one layer by number of positions."""
    lengths = sorted({length for found in findings.steps.values() for length in found})
    header = ["layer", "paper", *(f"n = {length:,}" for length in lengths)]
    rows = [
        [name, f"O({LAYERS[name].sequential})", *(format_count(found.get(length)) for length in lengths)]
        for name, found in findings.steps.items()
    ]
    return Section("sequential operations of a layer, counted in its autograd graph", [header, *rows], header[2:], [])


def path_table(findings: Findings) -> Section:
    """Make the table of maximum path lengths, measured and by the formula."""
    lengths = sorted({length for found in findings.paths.values() for length in found})
    header = ["layer", "paper", *(f"n = {length:,}" for length in lengths)]
    rows = []
    for name, found in findings.paths.items():
        layer = LAYERS[name]
        cells = [f"{format_count(found.get(n))} ({layer.path_length(n, findings.plan.sizes):,})" for n in lengths]
        rows.append([name, f"O({layer.path})", *cells])
    sizes = findings.plan.sizes
    notes = [
        f"in brackets the formula, with kernel {sizes.kernel} and radius {sizes.radius}; a recurrent layer counts its "
        "steps, and its outputs do not depend on later inputs",
        *(f"{name}: the search for the longest path failed: {error}" for name, error in findings.path_faults.items()),
    ]
    return Section("longest path between two positions, by gradients", [header, *rows], header[2:], notes)


def format_count(count: int | None) -> str:
    """Format a count, or a dash."""
    return MISSING if count is None else f"{count:,}"


def exponents(growth: Growth) -> list[str]:
    """Format the five exponents, or dashes."""
    figures = (growth.forward, growth.backward, growth.both, growth.counted, growth.memory)
    return [MISSING if figure is None else f"{figure:.2f}" for figure in figures]


def interval(growth: Growth) -> str:
    """Format the smallest and the largest size."""
    return f"{growth.sizes[0]:,} to {growth.sizes[-1]:,}" if growth.sizes else MISSING


def format_milliseconds(value: float) -> str:
    """Format seconds as milliseconds, with three significant digits or as an integer."""
    thousandths = 1000 * value
    return f"{thousandths:,.0f}" if thousandths >= 100 else f"{thousandths:.3g}"


def write_csv(findings: Findings, path: Path) -> None:
    """Write one row per measurement, in seconds and bytes."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(csv_row(found) for found in findings.measurements)


def csv_row(found: Measurement) -> list[str | int | float | None]:
    """Return the values of a measurement in the order of COLUMNS; missing ones are None."""
    forward, backward = found.forward, found.backward
    return [
        found.layer,
        found.width,
        found.length,
        None if forward is None else forward.median,
        None if forward is None else forward.spread,
        None if backward is None else backward.median,
        None if backward is None else backward.spread,
        found.repeats,
        found.forward_memory,
        found.backward_memory,
        found.kept_memory,
        found.input_bytes,
        found.left_out,
        found.threads,
    ]

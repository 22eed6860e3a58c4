"""Results as Markdown: one table per series, and the systems that could not be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.comparison import Comparison, Series
from bench.spread import Spread


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns except the first and the last are right-aligned."""
    lines = ["| " + " | ".join(header) + " |"]
    lines.append("|" + "|".join(["---", *["---:"] * (len(header) - 2), "---"][: len(header)]) + "|")
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def series_table(series: Series, comparison: Comparison) -> str:
    """A table of all systems: value, speed ratio of Saccade, and share of the machine limit."""
    rows = []
    for name in series.values:
        spread = series.spread(name)
        if spread is None:
            continue
        advantage = series.advantage(name)
        row = [name, spread.text(0 if spread.median >= 100 else 1 if spread.median >= 10 else 2)]
        row.append("1" if name == series.reference else advantage.text(2) if advantage else "")
        if advantage and series.reference_of(name) != series.reference:
            row[-1] += " (int8)"
        row.append(share_of_limit(series, comparison, name))
        row.append(f"{series.scores[name]:.1f}" if name in series.scores else "")
        row.append(series.notes.get(name, ""))
        rows.append(row)
    limit = "of memory bandwidth" if series.bytes_per_unit else "of matmul rate"
    header = ["", series.unit, "Saccade is faster by", limit, "BLEU", "with"]
    kept = [column for column in range(len(header)) if column in (0, 1, 2, 5) or any(row[column] for row in rows)]
    return markdown_table([header[column] for column in kept], [[row[column] for column in kept] for row in rows])


def share_of_limit(series: Series, comparison: Comparison, name: str) -> str:
    """FLOP/s or bandwidth that the model needs for this speed, as a share of the machine limit at the same time."""
    values = series.values[name]
    shares = []
    for value, limits in zip(values, comparison.limits.get(name, []), strict=False):
        if value is None or limits is None:
            continue
        units = value if series.more_is_better else 1000 / value
        if series.flops_per_unit:
            shares.append(100 * units * series.flops_per_unit / limits["flops"])
        elif series.bytes_per_unit:
            weight = series.bytes_per_unit / 4 if "int8" in name else series.bytes_per_unit
            shares.append(100 * units * weight / limits["bytes"])
    return Spread.of(shares).text(1) + " %" if shares else ""


def comparison_text(comparison: Comparison) -> str:
    """The section of a comparison: remarks, machine limits, tables, and failed systems."""
    parts = [f"## {comparison.title[0].upper()}{comparison.title[1:]}"]
    if comparison.remarks:
        parts.append(" ".join(f"{remark[0].upper()}{remark[1:]}." for remark in comparison.remarks))
    flops, memory = comparison.limit("flops"), comparison.limit("bytes")
    if flops and memory:
        parts.append(
            f"Machine limits over {flops.count} measurements: matrix product {scaled(flops)} GFLOP/s, memory "
            f"{scaled(memory)} GB/s."
        )
    for series in comparison.series:
        if series.values:
            parts += [f"### {series.title[0].upper()}{series.title[1:]}", series_table(series, comparison)]
    if comparison.reasons:
        parts.append("### Not measured")
        parts.append(markdown_table(["", "why"], [[name, reason] for name, reason in comparison.reasons.items()]))
    return "\n\n".join(parts)


def scaled(spread: Spread) -> str:
    """Median and range divided by 10^9."""
    return Spread(spread.median / 1e9, spread.low / 1e9, spread.high / 1e9, spread.count).text(1)


def report(found: dict[str, Any]) -> str:
    """The full report."""
    machine = found["machine"]
    cores = f"{machine['cores']} {'core' if machine['cores'] == 1 else 'cores'}"
    parts = [
        f"# Benchmarks of {found['date']}",
        f"{machine['cpu']}, {cores}, {machine['memory_gigabytes']} GB; {machine['system']}, Python "
        f"{machine['python']}, torch {machine['versions']['torch']}; Saccade {machine['saccade']}, commit "
        f"{machine['commit']}. Alternating rounds; medians with the range in brackets.",
    ]
    parts += [comparison_text(Comparison.from_json(comparison)) for comparison in found["comparisons"]]
    return "\n\n".join(parts) + "\n"

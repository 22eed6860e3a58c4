"""The result of an inspection, as text and as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from saccade.data.audit.report import SEVERITIES, DataReport, Severity, percentage
from saccade.training.preflight.memory_and_time_forecast import Forecast
from saccade.training.units import format_bytes

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Finding:
    """A finding, its occurrences in the files, and the advice."""

    severity: Severity
    what: str
    occurrences: tuple[str, ...] = ()
    hint: str | None = None

    def lines(self) -> list[str]:
        """Format the finding as text."""
        advice = [f"    {self.hint}"] if self.hint else []
        return [f"{self.severity}: {self.what}", *(f"      {one}" for one in self.occurrences), *advice]

    @property
    def one_line(self) -> str:
        """The finding in one line, with its first occurrence."""
        first = f" (first: {self.occurrences[0]})" if self.occurrences else ""
        return f"{self.what}{first}" + (f"; {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Input:
    """The files of one corpus."""

    use: str  # training, validation or test
    source: str
    target: str | None
    pairs: int

    def __str__(self) -> str:
        files = self.source if self.target is None else f"{self.source}, {self.target}"
        return f"{self.use}: {files}: {self.pairs:,} pairs"


@dataclass(frozen=True)
class SideStatistics:
    """Token statistics of the source or the target side."""

    tokens: int  # without end symbols
    unknown: int
    quantiles: tuple[int, ...]  # of the lengths, at `QUANTILES`
    longest: int

    @property
    def unknown_share(self) -> float:
        """Fraction of unknown tokens."""
        return self.unknown / self.tokens if self.tokens else 0.0


@dataclass(frozen=True)
class TokenStatistics:
    """Token statistics of the training, validation or test data."""

    use: str
    pairs: int
    source: SideStatistics
    target: SideStatistics


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection; a part that was not reached is None."""

    inputs: tuple[Input, ...]
    findings: tuple[Finding, ...]
    reports: Mapping[str, DataReport]
    tokens: tuple[TokenStatistics, ...] = ()
    vocabulary: str | None = None
    filters: str | None = None
    batches: int | None = None  # per epoch
    padding: float | None = None
    model: str | None = None
    forecast: Forecast | None = None
    disk_bytes: int | None = None  # for checkpoints and models

    @property
    def has_errors(self) -> bool:
        """Whether there is an error that would stop training or make it useless."""
        return any(finding.severity == "error" for finding in self.findings)

    def lines(self) -> list[str]:
        """Format the inspection as text."""
        lines = [str(given) for given in self.inputs]
        for severity in SEVERITIES:
            for finding in self.findings:
                if finding.severity == severity:
                    lines += finding.lines()
        if self.tokens:
            lines += lengths_table(self.tokens)
        if self.vocabulary:
            lines.append(f"vocabulary: {self.vocabulary}")
        for one in self.tokens:
            shares = f"{percentage(one.source.unknown_share)} of the source, {percentage(one.target.unknown_share)}"
            lines.append(f"unknown tokens, {one.use}: {shares} of the target")
        if self.filters:
            lines.append(f"filters: {self.filters}")
        if self.batches is not None and self.padding is not None:
            lines.append(f"batches: {self.batches:,} per epoch, {percentage(self.padding)} padding")
        if self.model:
            lines.append(f"model: {self.model}")
        if self.forecast:
            lines += self.forecast.lines()
        if self.disk_bytes is not None:
            lines.append(f"disk: {format_bytes(self.disk_bytes)} for checkpoints and models")
        counts = {severity: sum(one.severity == severity for one in self.findings) for severity in SEVERITIES}
        lines.append(f"{plural(counts['error'], 'error')}, {plural(counts['warning'], 'warning')}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the inspection as plain data."""
        tokens = []
        for one in self.tokens:
            sides = {
                name: {**asdict(side), "unknown_share": side.unknown_share}
                for name, side in (("source", one.source), ("target", one.target))
            }
            tokens.append({"use": one.use, "pairs": one.pairs, **sides})
        return {
            "has_errors": self.has_errors,
            "inputs": [asdict(given) for given in self.inputs],
            "findings": [asdict(finding) for finding in self.findings],
            "reports": {use: report.to_json() for use, report in self.reports.items()},
            "quantiles": list(QUANTILES),
            "tokens": tokens,
            "vocabulary": self.vocabulary,
            "filters": self.filters,
            "batches": self.batches,
            "padding": self.padding,
            "model": self.model,
            "forecast": None if self.forecast is None else self.forecast.to_json(),
            "disk_bytes": self.disk_bytes,
        }


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: 1 error, 2 errors."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def lengths_table(tokens: Sequence[TokenStatistics]) -> list[str]:
    """Format the length quantiles as a table."""
    header = [f"{quantile:.0%} up to" for quantile in QUANTILES]
    rows = [f"{'lengths in tokens':<24}" + "".join(f"{name:>12}" for name in (*header, "longest"))]
    for one in tokens:
        for name, side in (("source", one.source), ("target", one.target)):
            figures = "".join(f"{figure:>12,}" for figure in (*side.quantiles, side.longest))
            rows.append(f"{f'  {one.use} {name}':<24}{figures}")
    return rows

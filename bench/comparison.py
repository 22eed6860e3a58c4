"""Measurements of several systems in alternating rounds, one system at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from bench.paths import ROOT
from bench.spread import Spread, ratios

T = TypeVar("T")

SACCADE_INT8 = "Saccade (int8)"
SACCADE_NAMES = ("Saccade", "Saccade (auto)", "Saccade (torch)")  # the first with values is the reference


@dataclass(frozen=True)
class Measurement:
    """The result of one system in one round: a value for each series, or the reason for its failure."""

    values: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class System:
    """A system that is measured once per round."""

    name: str
    measure: Callable[[], Measurement]


@dataclass
class Series:
    """One metric of every system, with a value per round; None if it is missing."""

    name: str
    title: str
    unit: str
    more_is_better: bool = True
    values: dict[str, list[float | None]] = field(default_factory=dict)
    flops_per_unit: float | None = None  # to compare with the machine limit
    bytes_per_unit: float | None = None  # of weights that are read, to compare with the machine limit
    notes: dict[str, str] = field(default_factory=dict)  # settings of a system
    scores: dict[str, float] = field(default_factory=dict)  # BLEU of the outputs

    def spread(self, name: str) -> Spread | None:
        """Median and range of one system over all rounds."""
        found = [value for value in self.values.get(name, []) if value is not None]
        return Spread.of(found) if found else None

    @property
    def reference(self) -> str | None:
        """The name of the Saccade system that the others are compared with."""
        return next((name for name in SACCADE_NAMES if self.spread(name)), None)

    def reference_of(self, name: str) -> str | None:
        """The reference of one system: int8 systems are compared with Saccade in int8, if measured."""
        is_int8 = name.endswith("int8") and name != SACCADE_INT8 and self.spread(SACCADE_INT8)
        return SACCADE_INT8 if is_int8 else self.reference

    def advantage(self, name: str) -> Spread | None:
        """How many times faster Saccade is than another system; ratios are taken within each round."""
        reference = self.reference_of(name)
        if reference is None or self.spread(name) is None:
            return None
        ours, theirs = self.values[reference], self.values[name]
        return ratios(ours, theirs) if self.more_is_better else ratios(theirs, ours)


@dataclass
class Comparison:
    """Several series over the same rounds, the machine limits, and the systems that could not run."""

    title: str
    series: list[Series]
    limits: dict[str, list[dict[str, float] | None]] = field(default_factory=dict)  # by system, one entry per round
    reasons: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def limit(self, name: str) -> Spread | None:
        """Median and range of one machine limit over all measurements."""
        found = [limits[name] for rounds in self.limits.values() for limits in rounds if limits]
        return Spread.of(found) if found else None

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """Restore a comparison from `to_json`."""
        return cls(**{**values, "series": [Series(**series) for series in values["series"]]})


def measure_in_rounds(
    comparison: Comparison,
    systems: Sequence[System],
    rounds: int,
    *,
    limits: Callable[[], dict[str, float]] | None = None,
) -> Comparison:
    """Measure A B C, A B C …, so that drift of the machine affects all systems equally; skip systems that failed.

    The machine limits are measured before and after every measurement, which is compared with their mean: within
    minutes they may differ by a third.
    """
    before = limits() if limits else None
    for number in range(1, rounds + 1):
        for system in systems:
            if system.name in comparison.reasons:
                continue
            measurement = system.measure()
            if measurement.reason is not None:
                comparison.reasons[system.name] = measurement.reason
            for series in comparison.series:
                value = measurement.values.get(series.name)
                if value is not None:
                    record_value(series.values.setdefault(system.name, []), number, value)
            if limits and before:
                after = limits()
                if measurement.reason is None:
                    means = {name: (before[name] + after[name]) / 2 for name in before}
                    record_value(comparison.limits.setdefault(system.name, []), number, means)
                before = after
            values = ", ".join(f"{name} {value:,.4g}" for name, value in measurement.values.items())
            result = values or f"failed: {measurement.reason}"
            log_progress(f"{comparison.title}, round {number}: {system.name}: {result}")
    return comparison


def record_value(values: list[T | None], number: int, value: T) -> None:
    """Store the value of a round, counted from 1; earlier rounds without a value get None."""
    values.extend([None] * (number - 1 - len(values)))
    values.append(value)


def measure_machine_limits(seconds: float = 2.0) -> dict[str, float]:
    """The current machine limits, measured in a separate process."""
    command = [sys.executable, "-m", "bench.machine_limits", f"--seconds={seconds}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return dict(json.loads(done.stdout))


def log_progress(message: str) -> None:
    """Print progress to stderr; stdout is for the tables."""
    print(message, file=sys.stderr, flush=True)

"""Measurements that take turns: round by round, one contestant after another, never two at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from bench.places import ROOT
from bench.spread import Spread, ratios

T = TypeVar("T")

EIGHT_BITS = "Saccade (int8)"
OURS = ("Saccade", "Saccade (auto)", "Saccade (torch)")  # the first that has values is what others are compared with


@dataclass(frozen=True)
class Turn:
    """What one contestant did in one round: a value for each series, or the reason why there is none."""

    values: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Contestant:
    """Somebody who takes a turn in every round."""

    name: str
    measure: Callable[[], Turn]


@dataclass
class Series:
    """One figure of every contestant, round by round; None where there is none."""

    name: str
    title: str
    unit: str
    more_is_better: bool = True
    values: dict[str, list[float | None]] = field(default_factory=dict)
    flops_a_unit: float | None = None  # operations that one unit stands for, to compare with the machine's limit
    bytes_a_unit: float | None = None  # bytes of weights that one unit reads, for the same purpose
    notes: dict[str, str] = field(default_factory=dict)  # settings of a contestant
    scores: dict[str, float] = field(default_factory=dict)  # BLEU of the outputs

    def spread(self, name: str) -> Spread | None:
        """The medians of one contestant."""
        found = [value for value in self.values.get(name, []) if value is not None]
        return Spread.of(found) if found else None

    @property
    def reference(self) -> str | None:
        """The contestant that the others are compared with."""
        return next((name for name in OURS if self.spread(name)), None)

    def reference_of(self, name: str) -> str | None:
        """What a contestant is compared with: int8 with our int8 if there is one, all others with the reference."""
        like = name.endswith("int8") and name != EIGHT_BITS and self.spread(EIGHT_BITS)
        return EIGHT_BITS if like else self.reference

    def advantage(self, name: str) -> Spread | None:
        """How many times faster we are than another, round by round."""
        reference = self.reference_of(name)
        if reference is None or self.spread(name) is None:
            return None
        ours, theirs = self.values[reference], self.values[name]
        return ratios(ours, theirs) if self.more_is_better else ratios(theirs, ours)


@dataclass
class Contest:
    """Series of the same rounds, the machine's limits around every turn, and who could not take part."""

    title: str
    series: list[Series]
    limits: dict[str, list[dict[str, float] | None]] = field(default_factory=dict)  # of a contestant's rounds
    reasons: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def limit(self, name: str) -> Spread | None:
        """One of the machine's limits over all turns."""
        found = [limits[name] for turns in self.limits.values() for limits in turns if limits]
        return Spread.of(found) if found else None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Contest:
        """What `to_json` wrote."""
        return cls(**{**values, "series": [Series(**series) for series in values["series"]]})


def take_turns(
    contest: Contest,
    contestants: Sequence[Contestant],
    rounds: int,
    *,
    limits: Callable[[], dict[str, float]] | None = None,
) -> Contest:
    """A B C, A B C …: the drift of the machine meets all alike. Who fails is not asked again.

    The machine's limits are measured before and after every turn, and the turn is compared with their mean: within
    minutes they may differ by a third.
    """
    before = limits() if limits else None
    for number in range(1, rounds + 1):
        for contestant in contestants:
            if contestant.name in contest.reasons:
                continue
            turn = contestant.measure()
            if turn.reason is not None:
                contest.reasons[contestant.name] = turn.reason
            for series in contest.series:
                value = turn.values.get(series.name)
                if value is not None:
                    put(series.values.setdefault(contestant.name, []), number, value)
            if limits and before:
                after = limits()
                if turn.reason is None:
                    means = {name: (before[name] + after[name]) / 2 for name in before}
                    put(contest.limits.setdefault(contestant.name, []), number, means)
                before = after
            shown = ", ".join(f"{name} {value:,.4g}" for name, value in turn.values.items())
            say(f"{contest.title}, round {number}: {contestant.name}: {shown or 'fails: ' + str(turn.reason)}")
    return contest


def put(taken: list[T | None], number: int, value: T) -> None:
    """Note the value of a round, counted from 1; rounds before it that have none get None."""
    taken.extend([None] * (number - 1 - len(taken)))
    taken.append(value)


def machine_limits(seconds: float = 2.0) -> dict[str, float]:
    """The limits of this moment, measured in a process of its own."""
    command = [sys.executable, "-m", "bench.limits", f"--seconds={seconds}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return dict(json.loads(done.stdout))


def say(words: str) -> None:
    """Progress goes to the standard error; the tables are the output."""
    print(words, file=sys.stderr, flush=True)

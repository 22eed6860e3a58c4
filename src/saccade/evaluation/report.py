"""Reports: several scores of one set of outputs, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from saccade.evaluation.bootstrap import Interval
from saccade.evaluation.metrics import References, Score, find_metric, finite
from saccade.version import __version__


@dataclass(frozen=True)
class Report:
    """All scores of one system on one test set."""

    scores: list[Score]
    count: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The confidence intervals by the name of the score."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data; it has no date, so that equal outputs give equal files."""
        return {
            "saccade_version": __version__,
            "count": self.count,
            "scores": [{**score.to_json(), **self.interval_json(score.name)} for score in self.scores],
        }

    def interval_json(self, name: str) -> dict[str, Any]:
        """Return the confidence interval of a score as plain data, if it was computed."""
        found = self.intervals.get(name)
        return {} if found is None else {"interval": [finite(found.low), finite(found.high)]}

    def __str__(self) -> str:
        rows = [
            [
                score.name,
                f"{score.value:.2f}",
                self.interval_text(score.name),
                "↑" if score.higher_is_better else "↓",
                score.signature or "",
            ]
            for score in self.scores
        ]
        names, values, intervals = (max((len(row[column]) for row in rows), default=0) for column in range(3))
        lines = [
            f"{name:<{names}}  {value:>{values}}{interval:<{intervals}}  {arrow}  {signature}".rstrip()
            for name, value, interval, arrow, signature in rows
        ]
        return "\n".join([*lines, f"{self.count} sentence{'' if self.count == 1 else 's'}"])

    def interval_text(self, name: str) -> str:
        """Return the confidence interval of a score, empty if it was not computed."""
        found = self.intervals.get(name)
        return "" if found is None else f" [{found.low:.2f}, {found.high:.2f}]"


def evaluate_outputs(hypotheses: Sequence[str], references: References, metrics: Sequence[str]) -> Report:
    """Score outputs by several metrics; an unknown name is an error before any score is computed."""
    functions = [find_metric(name) for name in metrics]
    return Report([function(hypotheses, references) for function in functions], len(hypotheses))

"""Reports: several scores of one set of outputs, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from saccade.evaluation.metrics import References, Score, find_metric
from saccade.version import __version__


@dataclass(frozen=True)
class Report:
    """All scores of one system on one test set."""

    scores: list[Score]
    count: int

    def to_json(self) -> dict[str, Any]:
        """The report as plain data; it has no date, so that equal outputs give equal files."""
        return {
            "saccade_version": __version__,
            "count": self.count,
            "scores": [score.to_json() for score in self.scores],
        }

    def __str__(self) -> str:
        names = max((len(score.name) for score in self.scores), default=0)
        values = max((len(f"{score.value:.2f}") for score in self.scores), default=0)
        rows = [
            f"{score.name:<{names}}  {score.value:>{values}.2f}  {'↑' if score.higher_is_better else '↓'}"
            f"  {score.signature or ''}".rstrip()
            for score in self.scores
        ]
        return "\n".join([*rows, f"{self.count} sentence{'' if self.count == 1 else 's'}"])


def evaluate_outputs(hypotheses: Sequence[str], references: References, metrics: Sequence[str]) -> Report:
    """Score outputs by several metrics; an unknown name is an error before any score is computed."""
    functions = [find_metric(name) for name in metrics]
    return Report([function(hypotheses, references) for function in functions], len(hypotheses))

"""What was measured, and the laws that it shows: exponents of time and memory in n and in d."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from saccade.studies.complexity.exponents import exponent, last_octaves
from saccade.studies.complexity.measurement import Measurement
from saccade.studies.complexity.series import Plan
from saccade.studies.complexity.subjects import SUBJECTS

Cost = Callable[[Measurement], float | None]


@dataclass(frozen=True)
class Growth:
    """The exponents of one layer; None where there are too few measurements."""

    forward: float | None
    backward: float | None
    both: float | None
    counted: float | None
    """That of the products that the layer's definition counts, over the same sizes."""
    memory: float | None
    sizes: tuple[int, ...]
    """The lengths or the widths that the exponents are taken from."""


@dataclass(frozen=True)
class Findings:
    """Everything that one run of the command found."""

    plan: Plan
    measurements: tuple[Measurement, ...]
    paths: dict[str, dict[int, int]]
    """By layer and number of places: the dependent steps on the longest path, where it was found."""
    steps: dict[str, dict[int, int]]
    """By layer and number of places: the steps of one layer that wait for each other."""
    path_faults: dict[str, str] = field(default_factory=dict)
    """By layer: why some paths of it were not found."""
    interrupted: bool = False
    """Whether it ended before its time: what is missing was not tried."""

    def of(self, layer: str, width: int) -> list[Measurement]:
        """One curve over the lengths, without what was left out."""
        return [found for found in self.made() if found.layer == layer and found.width == width]

    def made(self) -> list[Measurement]:
        """What was measured."""
        return [found for found in self.measurements if found.left_out is None]

    def left_out(self) -> list[Measurement]:
        """What was not measured."""
        return [found for found in self.measurements if found.left_out is not None]

    def growth_in_length(self, layer: str, width: int) -> Growth:
        """Against n, over the last three octaves that were measured."""
        curve = self.of(layer, width)

        def fit(cost: Cost) -> float | None:
            return exponent(last_octaves(costs(curve, cost, lambda found: found.length)))

        def counted(found: Measurement) -> float:
            return SUBJECTS[layer].products(found.length, width, self.plan.sizes)

        lengths = tuple(last_octaves({found.length: 1.0 for found in curve}))
        return Growth(fit(forward), fit(backward), fit(seconds), fit(counted), fit(memory), lengths)

    def growth_in_width(self, layer: str) -> tuple[int | None, Growth]:
        """Against d, over all widths, at the longest length that was measured with each of them; and that length."""
        curves = [{found.length: found for found in self.of(layer, width)} for width in self.plan.widths]
        shared = set.intersection(*(set(curve) for curve in curves))
        if not shared:
            return None, Growth(None, None, None, None, None, ())
        length = max(shared)
        across = [curve[length] for curve in curves]

        def fit(cost: Cost) -> float | None:
            return exponent(costs(across, cost, lambda found: found.width))

        def counted(found: Measurement) -> float:
            return SUBJECTS[layer].products(length, found.width, self.plan.sizes)

        growth = Growth(fit(forward), fit(backward), fit(seconds), fit(counted), fit(memory), self.plan.widths)
        return length, growth

    def to_json(self) -> dict[str, Any]:
        """Plain data: everything, with what the paper says beside it."""
        return {
            "plan": asdict(self.plan),
            "interrupted": self.interrupted,
            "layers": {name: self.layer_to_json(name) for name in self.plan.layers},
            "measurements": [
                {**asdict(found), "seconds": found.seconds, "memory": found.memory} for found in self.measurements
            ],
        }

    def layer_to_json(self, name: str) -> dict[str, Any]:
        """The laws of one layer."""
        subject = SUBJECTS[name]
        length, in_width = self.growth_in_width(name)
        return {
            "title": subject.title,
            "paper": {"complexity": subject.complexity, "sequential": subject.sequential, "path": subject.path},
            "growth_in_length": {str(width): asdict(self.growth_in_length(name, width)) for width in self.plan.widths},
            "growth_in_width": {"length": length, **asdict(in_width)},
            "sequential_steps": self.steps[name],
            "path_lengths": self.paths[name],
            "path_lengths_by_formula": {
                places: subject.longest_path(places, self.plan.sizes) for places in self.paths[name]
            },
            "path_fault": self.path_faults.get(name),
        }


def costs(curve: Sequence[Measurement], cost: Cost, size: Callable[[Measurement], int]) -> dict[int, float]:
    """The cost at each size, where it was measured."""
    return {size(found): value for found in curve if (value := cost(found)) is not None}


def forward(found: Measurement) -> float | None:
    """Seconds of the forward pass."""
    return None if found.forward is None else found.forward.median


def backward(found: Measurement) -> float | None:
    """Seconds of the backward pass."""
    return None if found.backward is None else found.backward.median


def seconds(found: Measurement) -> float | None:
    """Seconds of both."""
    return found.seconds


def memory(found: Measurement) -> float | None:
    """Peak bytes above weights and input."""
    return found.memory

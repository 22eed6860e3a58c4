"""All results of one study: measurements, path lengths, and growth exponents of time and memory in n and in d."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from saccade.studies.complexity.layers import LAYERS
from saccade.studies.complexity.measurement import Measurement
from saccade.studies.complexity.series import MeasurementPlan

Cost = Callable[[Measurement], float | None]

OCTAVES = 3
"""Doublings of the length, up to the largest, that exponents are fitted over: at small lengths, constants dominate."""


@dataclass(frozen=True)
class Growth:
    """Growth exponents of one layer: cost = c · size^exponent; None if there are too few measurements."""

    forward: float | None
    backward: float | None
    both: float | None
    counted: float | None
    """Exponent of the number of multiplications, over the same sizes."""
    memory: float | None
    sizes: tuple[int, ...]
    """The lengths or widths that the exponents are fitted over."""


@dataclass(frozen=True)
class Findings:
    """The results of one study."""

    plan: MeasurementPlan
    measurements: tuple[Measurement, ...]
    paths: dict[str, dict[int, int]]
    """Maximum path length by layer and number of positions, if it was found."""
    steps: dict[str, dict[int, int]]
    """Sequential operations of one layer, by layer and number of positions."""
    path_faults: dict[str, str] = field(default_factory=dict)
    """The error that ended the search for paths, by layer."""
    interrupted: bool = False
    """True if Ctrl-C ended the study, so that results are missing."""

    def curve(self, layer: str, width: int) -> list[Measurement]:
        """Return the measurements of one layer and width, without those that were left out."""
        return [found for found in self.completed() if found.layer == layer and found.width == width]

    def completed(self) -> list[Measurement]:
        """Return all measurements with figures."""
        return [found for found in self.measurements if found.left_out is None]

    def left_out(self) -> list[Measurement]:
        """Return all measurements that were left out."""
        return [found for found in self.measurements if found.left_out is not None]

    def growth_in_length(self, layer: str, width: int) -> Growth:
        """Return the exponents of n, over the last three octaves that were measured."""
        curve = self.curve(layer, width)

        def fit(cost: Cost) -> float | None:
            return exponent(last_octaves(costs(curve, cost, lambda found: found.length)))

        def counted(found: Measurement) -> float:
            return LAYERS[layer].multiplications(found.length, width, self.plan.sizes)

        lengths = tuple(last_octaves({found.length: 1.0 for found in curve}))
        return Growth(fit(forward), fit(backward), fit(seconds), fit(counted), fit(memory), lengths)

    def growth_in_width(self, layer: str) -> tuple[int | None, Growth]:
        """Return the exponents of d, and the length of these measurements: the longest one measured at every width."""
        curves = [{found.length: found for found in self.curve(layer, width)} for width in self.plan.widths]
        shared = set.intersection(*(set(curve) for curve in curves))
        if not shared:
            return None, Growth(None, None, None, None, None, ())
        length = max(shared)
        across = [curve[length] for curve in curves]

        def fit(cost: Cost) -> float | None:
            return exponent(costs(across, cost, lambda found: found.width))

        def counted(found: Measurement) -> float:
            return LAYERS[layer].multiplications(length, found.width, self.plan.sizes)

        growth = Growth(fit(forward), fit(backward), fit(seconds), fit(counted), fit(memory), self.plan.widths)
        return length, growth

    def to_json(self) -> dict[str, Any]:
        """Return all results as plain data, with the formulas of the paper."""
        return {
            "plan": asdict(self.plan),
            "interrupted": self.interrupted,
            "layers": {name: self.layer_to_json(name) for name in self.plan.layers},
            "measurements": [
                {**asdict(found), "seconds": found.seconds, "memory": found.memory} for found in self.measurements
            ],
        }

    def layer_to_json(self, name: str) -> dict[str, Any]:
        """Return exponents and path lengths of one layer as plain data."""
        layer = LAYERS[name]
        width_length, in_width = self.growth_in_width(name)
        return {
            "title": layer.title,
            "paper": {"complexity": layer.complexity, "sequential": layer.sequential, "path": layer.path},
            "growth_in_length": {str(width): asdict(self.growth_in_length(name, width)) for width in self.plan.widths},
            "growth_in_width": {"length": width_length, **asdict(in_width)},
            "sequential_steps": self.steps[name],
            "path_lengths": self.paths[name],
            "path_lengths_by_formula": {
                length: layer.path_length(length, self.plan.sizes) for length in self.paths[name]
            },
            "path_fault": self.path_faults.get(name),
        }


def costs(curve: Sequence[Measurement], cost: Cost, size: Callable[[Measurement], int]) -> dict[int, float]:
    """Return the measured cost at each size."""
    return {size(found): value for found in curve if (value := cost(found)) is not None}


def forward(found: Measurement) -> float | None:
    """Return the seconds of the forward pass."""
    return None if found.forward is None else found.forward.median


def backward(found: Measurement) -> float | None:
    """Return the seconds of the backward pass."""
    return None if found.backward is None else found.backward.median


def seconds(found: Measurement) -> float | None:
    """Return the seconds of forward and backward pass together."""
    return found.seconds


def memory(found: Measurement) -> float | None:
    """Return the peak bytes above weights and input."""
    return found.memory


def exponent(costs: Mapping[int, float]) -> float | None:
    """Fit cost = c * size^exponent by least squares in logarithms; None for one size or a cost that is not positive."""
    if len(costs) < 2 or min(costs.values()) <= 0:
        return None
    sizes = [math.log(size) for size in costs]
    values = [math.log(cost) for cost in costs.values()]
    mean_size, mean_value = sum(sizes) / len(sizes), sum(values) / len(values)
    variance = sum((size - mean_size) ** 2 for size in sizes)
    covariance = sum((size - mean_size) * (value - mean_value) for size, value in zip(sizes, values, strict=True))
    return covariance / variance


def last_octaves(costs: Mapping[int, float], octaves: int = OCTAVES) -> dict[int, float]:
    """Return the costs at the largest size and at sizes of at least its 2^octaves-th part."""
    largest = max(costs, default=0)
    return {size: cost for size, cost in sorted(costs.items()) if size * 2**octaves >= largest}

"""Validation of attention weights for plots, and the weight of uniform attention.

Shapes: T target pieces, S source pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from saccade.errors import SaccadeError

Weights = npt.NDArray[np.floating[Any]]


def check_weights(source: Sequence[str], target: Sequence[str], weights: Weights) -> Weights:
    """Return the weights (T, S) as float64, with 0 for NaN and infinity; raise an error if the shape does not fit."""
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.shape != (len(target), len(source)):
        raise SaccadeError(
            f"attention of shape {matrix.shape} for {len(target)} target and {len(source)} source pieces",
            hint="give one row of weights for each target piece and one column for each source piece",
        )
    if not matrix.size:
        raise SaccadeError(
            f"nothing to plot: {len(target)} target and {len(source)} source pieces", hint="give at least one of each"
        )
    return np.nan_to_num(matrix, nan=0.0, posinf=0.0, neginf=0.0)


def uniform_text(source_lengths: Iterable[int]) -> str:
    """Describe the weight 1/S of attention that is uniform over S source pieces, for one or several S."""
    lengths = sorted(set(source_lengths))
    if len(lengths) == 1:
        return f"uniform 1/{lengths[0]} = {1 / lengths[0]:.2g}"
    return f"uniform 1/{lengths[-1]} to 1/{lengths[0]}"

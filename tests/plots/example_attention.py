"""Attention weights of a short sentence for the tests of plots."""

from __future__ import annotations

import numpy as np

SOURCE = ["the", "big", "cat", "sleeps", "."]
TARGET = ["die", "Katze", "schläft", "."]
WEIGHTS = np.array(
    [
        [0.60, 0.10, 0.10, 0.10, 0.10],
        [0.02, 0.30, 0.66, 0.01, 0.01],
        [0.00, 0.00, 0.05, 0.95, 0.00],
        [0.20, 0.20, 0.20, 0.20, 0.20],
    ]
)

"""A table in bytes as the kernels see it: the structure of screening.c."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p


class ScreenedTable(ctypes.Structure):
    """Where a table is, and where the same is in bytes."""

    _fields_ = (
        *((name, c_int64) for name in ("vocabulary", "width")),
        *((name, c_void_p) for name in ("table", "bias", "packed", "scales", "biases", "errors", "norms")),
    )

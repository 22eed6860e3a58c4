"""A weight in bytes as the kernels see it: the structure of byte_table.h."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p


class ByteTable(ctypes.Structure):
    """Where a weight is, and where the same is in bytes."""

    _fields_ = (
        *((name, c_int64) for name in ("outs", "ins")),
        *((name, c_void_p) for name in ("weight", "bias", "packed", "scales", "biases", "errors", "norms")),
    )

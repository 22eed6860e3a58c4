"""What the gates of a recurrent layer are made of, as the kernels see it: the structure of recurrent.c."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p

from torch import Tensor


class Shares(ctypes.Structure):
    """Where the shares of the gates are; None where there is no such share."""

    _fields_ = (
        *((name, c_void_p) for name in ("inputs", "fed", "recurrent", "input_bias", "recurrent_bias")),
        *((name, c_void_p) for name in ("which", "where", "out")),
        ("out_stride", c_int64),
    )

    @classmethod
    def of(cls, **tensors: Tensor | None) -> Shares:
        """Tensors by the names of the fields: those of `inputs`, `fed` and `recurrent` without gaps between rows."""
        return cls(**{name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None})

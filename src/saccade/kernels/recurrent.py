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
    def of(
        cls,
        inputs: Tensor,
        recurrent: Tensor,
        *,
        fed: Tensor | None = None,
        input_bias: Tensor | None = None,
        recurrent_bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Shares:
        """Rows of the shares have no gaps between them; `out` (B, S, H) may be a column of a wider memory."""
        tensors = inputs, fed, recurrent, input_bias, recurrent_bias
        places = (None if tensor is None else tensor.data_ptr() for tensor in tensors)
        return cls(*places, None, None, *((None, 0) if out is None else (out.data_ptr(), out.stride(1))))

"""Kernels for the CPU that torch has not: attention without padding, and what surrounds the products, in one pass each.

The C files here are compiled when the package is installed, once for each level of the processor's instructions, if
there is a C compiler; the best of them for this processor is loaded. Without it `usable` says no and all models take
torch's own operations, to the same result within the rounding of float32.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from saccade.kernels.byte_table import ByteTable
from saccade.kernels.recurrent import Shares
from saccade.kernels.transformer import (
    LAYOUTS,
    Decoder,
    Encoder,
    FoundHypotheses,
    MemoryPlaces,
    PastSteps,
    Rules,
    Sources,
    Words,
)

LEVELS = {"AVX512": ("v4", "v3", "v1"), "AVX2": ("v3", "v1")}
"""What torch calls the processor's instructions, and the libraries for it, best first."""


class Projected(ctypes.Structure):
    """Rows of queries, keys or values: a column of a wider tensor (N, …), and the bias that is still to be added."""

    _fields_ = (("values", c_void_p), ("bias", c_void_p), ("stride", c_int64))

    @classmethod
    def of(cls, values: Tensor, bias: Tensor) -> Projected:
        """`values` (N, D) may be a part of wider rows."""
        return cls(values.data_ptr(), bias.data_ptr(), values.stride(0))


SIGNATURES = {
    "saccade_layouts": (c_int, POINTER(c_int64)),
    "saccade_dropout": (c_int, c_int64, c_void_p, c_void_p, c_int32, c_uint64),
    "saccade_residual_norm": (
        *(c_int, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_int32, c_uint64),
        *(c_void_p, c_void_p, c_float, c_void_p, c_void_p, c_void_p),
    ),
    "saccade_residual_norm_backward": (
        *(c_int, c_int64, c_int64, *(c_void_p,) * 6, c_int32, c_uint64),
        *(c_void_p,) * 5,
    ),
    "saccade_bias_relu": (c_int, c_int64, c_int64, c_void_p, c_void_p),
    "saccade_bias_relu_backward": (c_int, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p),
    "saccade_cross_entropy": (c_int, c_int64, c_int64, c_void_p, c_void_p, c_float, c_int, c_void_p, c_void_p),
    "saccade_paired_cross_entropy": (
        *(c_int, c_int64, c_int64, c_void_p, c_void_p, c_float, c_float, c_int),
        *(c_void_p, c_void_p, c_void_p),
    ),
    "saccade_largest": (*(c_int, c_int64, c_int64, c_void_p, c_int64, c_void_p), *(c_int64, c_void_p, c_void_p)),
    "saccade_largest_within": (
        *(c_int, c_int64, c_int64, *(c_void_p,) * 4, c_int64, c_void_p),
        *(c_int64, c_void_p, c_void_p),
    ),
    "saccade_byte_sizes": (c_int, *(POINTER(c_int64),) * 3),
    "saccade_byte_pack": (c_int, POINTER(ByteTable)),
    "saccade_byte_product": (c_int, c_int64, c_void_p, POINTER(ByteTable), c_void_p),
    "saccade_screen_best": (
        *(c_int, c_int64, c_void_p, POINTER(ByteTable), c_int, c_int64, c_void_p),
        *(c_void_p, c_void_p),
    ),
    "saccade_attend_past": (c_int, *(c_int64,) * 4, *(c_void_p,) * 6),
    "saccade_attend_memory": (c_int, *(c_int64,) * 5, *(c_void_p,) * 8),
    "saccade_encode_few": (c_int, POINTER(Encoder), c_int64, *(c_void_p,) * 3),
    "saccade_decoder_step": (c_int, POINTER(Decoder), POINTER(PastSteps), c_void_p, c_void_p),
    "saccade_search": (
        *(c_int, POINTER(Decoder), POINTER(Words), POINTER(Sources), MemoryPlaces, POINTER(Rules)),
        *(c_int64, c_int64, FoundHypotheses),
    ),
    "saccade_gru": (c_int, c_int64, c_int64, POINTER(Shares), c_void_p, c_void_p),
    "saccade_lstm": (c_int, c_int64, c_int64, POINTER(Shares), *(c_void_p,) * 4),
    "saccade_look": (c_int, *(c_int64,) * 5, *(c_void_p,) * 7),
    "saccade_glu": (c_int, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_float, c_void_p),
    "saccade_few_products": (c_int, *(c_int64,) * 3, *(c_void_p,) * 4),
    "saccade_attention": (c_int, *(c_int64,) * 3, c_int, c_void_p, c_void_p, *(Projected,) * 3, c_void_p),
    "saccade_attention_backward": (
        *(c_int, c_int64, c_int64, c_int64, c_int, c_void_p, c_void_p),
        *(*(Projected,) * 3, c_void_p, *(Projected,) * 3),
    ),
}

allowed = True


@cache
def best() -> tuple[str, ctypes.CDLL] | None:
    """The best compiled kernels for this processor, if there are any, and their level."""
    loaded = ((level, load(level)) for level in found_levels())
    return next(((level, library) for level, library in loaded if library is not None), None)


def library() -> ctypes.CDLL | None:
    """The kernels in use."""
    found = best()
    return None if found is None else found[1]


def level() -> str | None:
    """The level of the kernels in use, v1 to v4 as processors count theirs; None without any."""
    found = best()
    return None if found is None else found[0]


def found_levels() -> list[str]:
    """The levels that are compiled and that this processor can run, best first."""
    possible = LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("v1",))
    return [level for level in possible if path_of(level) is not None]


def path_of(level: str) -> Path | None:
    """Where the kernels of a level are."""
    paths = (Path(__file__).with_name(f"native_{level}{suffix}") for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def load(level: str) -> ctypes.CDLL | None:
    """The kernels of a level, or None if they do not load here."""
    try:
        found = declared(ctypes.CDLL(str(path_of(level))))
    except (OSError, AttributeError):  # built elsewhere, or from an older source
        return None
    return found if layouts(found) == [ctypes.sizeof(structure) for structure in LAYOUTS] else None


def declared(found: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    for name, types in SIGNATURES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, None
    return found


def layouts(found: ctypes.CDLL) -> list[int]:
    """How large a library takes the structures to be that it reads."""
    sizes = (c_int64 * len(LAYOUTS))()
    found.saccade_layouts(1, sizes)
    return list(sizes)


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Take torch's operations alone: to compare, or to count them."""
    global allowed
    before, allowed = allowed, False
    try:
        yield
    finally:
        allowed = before


def usable(x: Tensor) -> bool:
    """Whether there are kernels for a tensor like this one."""
    ours = x.device.type == "cpu" and x.dtype == torch.float32 and allowed and library() is not None
    return ours and not torch.is_autocast_enabled("cpu")


def for_inference(x: Tensor) -> bool:
    """Whether there are kernels for a tensor like this one, and nobody asks for gradients: some have no way back."""
    return not torch.is_grad_enabled() and usable(x)


def expect(x: Tensor, *shape: int) -> Tensor:
    """The tensor with its entries one after another, if it has this shape: a kernel would read beyond its end."""
    if x.shape != shape or not usable(x):
        raise ValueError(f"a tensor {tuple(x.shape)} of {x.dtype} where {shape} of float32 was expected")
    return x.contiguous()


def kernel(name: str, *arguments: object) -> None:
    """Run one on the threads that torch would use; tensors are given by their address and must stay alive."""
    found = library()
    assert found is not None, "ask `usable` first"
    getattr(found, "saccade_" + name)(torch.get_num_threads(), *arguments)

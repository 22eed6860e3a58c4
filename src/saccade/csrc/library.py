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

from saccade.csrc.abi import (
    LAYOUTS,
    Decoder,
    DecodingGroup,
    Encoder,
    HypothesisBuffers,
    Int8Weight,
    PackedMemory,
    ProjectedColumn,
    Rules,
    Shares,
    Sources,
    Words,
)

LEVELS = {"AVX512": ("v4", "v3", "v1"), "AVX2": ("v3", "v1")}
"""What torch calls the processor's instructions, and the libraries for it, best first."""


SIGNATURES = {
    "saccade_abi": (c_int, POINTER(c_int64)),
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
    "saccade_top_k": (*(c_int, c_int64, c_int64, c_void_p, c_int64, c_void_p), *(c_int64, c_void_p, c_void_p)),
    "saccade_top_k_within": (
        *(c_int, c_int64, c_int64, *(c_void_p,) * 4, c_int64, c_void_p),
        *(c_int64, c_void_p, c_void_p),
    ),
    "saccade_int8_panel_sizes": (c_int, *(POINTER(c_int64),) * 3),
    "saccade_int8_pack": (c_int, POINTER(Int8Weight)),
    "saccade_int8_linear": (c_int, c_int64, c_void_p, POINTER(Int8Weight), c_void_p),
    "saccade_argmax_int8": (
        *(c_int, c_int64, c_void_p, POINTER(Int8Weight), c_int, c_int64, c_void_p),
        *(c_void_p, c_void_p),
    ),
    "saccade_kv_cache_attention": (c_int, *(c_int64,) * 4, *(c_void_p,) * 6),
    "saccade_memory_attention": (c_int, *(c_int64,) * 5, *(c_void_p,) * 8),
    "saccade_encoder_forward": (c_int, POINTER(Encoder), c_int64, *(c_void_p,) * 3),
    "saccade_decoder_step": (c_int, POINTER(Decoder), POINTER(DecodingGroup), c_void_p, c_void_p),
    "saccade_search": (
        *(c_int, POINTER(Decoder), POINTER(Words), POINTER(Sources), PackedMemory, POINTER(Rules)),
        *(c_int64, c_int64, HypothesisBuffers),
    ),
    "saccade_gru_cell": (c_int, c_int64, c_int64, POINTER(Shares), c_void_p, c_void_p),
    "saccade_lstm_cell": (c_int, c_int64, c_int64, POINTER(Shares), *(c_void_p,) * 4),
    "saccade_single_head_attention": (c_int, *(c_int64,) * 5, *(c_void_p,) * 7),
    "saccade_glu": (c_int, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_float, c_void_p),
    "saccade_linear": (c_int, *(c_int64,) * 3, *(c_void_p,) * 4),
    "saccade_varlen_attention": (c_int, *(c_int64,) * 3, c_int, c_void_p, c_void_p, *(ProjectedColumn,) * 3, c_void_p),
    "saccade_varlen_attention_backward": (
        *(c_int, c_int64, c_int64, c_int64, c_int, c_void_p, c_void_p),
        *(*(ProjectedColumn,) * 3, c_void_p, *(ProjectedColumn,) * 3),
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
    found.saccade_abi(1, sizes)
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

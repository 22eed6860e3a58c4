"""Argument types of the exported C functions; a test compares them with the C sources.

The first argument is the number of threads, and the result a status (`status.h`). An array is an address, `c_void_p`.
"""

from __future__ import annotations

from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

from saccade.ops.kernel_abi import (
    DecoderStack,
    EncoderStack,
    HypothesisBuffers,
    Int8Weight,
    KVCacheView,
    PackedMemory,
    ProjectedColumn,
    RecurrentGates,
    SearchLimits,
    SourceBatch,
    TokenTables,
)

PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "saccade_fail_allocation_after": (c_int, c_int64, c_int),
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
    "saccade_encoder_forward": (c_int, POINTER(EncoderStack), c_int64, *(c_void_p,) * 3),
    "saccade_decoder_step": (c_int, POINTER(DecoderStack), POINTER(KVCacheView), c_void_p, c_void_p),
    "saccade_search": (
        *(
            c_int,
            POINTER(DecoderStack),
            POINTER(TokenTables),
            POINTER(SourceBatch),
            PackedMemory,
            POINTER(SearchLimits),
        ),
        *(c_int64, c_int64, HypothesisBuffers, POINTER(c_int)),
    ),
    "saccade_gru_cell": (c_int, c_int64, c_int64, POINTER(RecurrentGates), c_void_p, c_void_p),
    "saccade_lstm_cell": (c_int, c_int64, c_int64, POINTER(RecurrentGates), *(c_void_p,) * 4),
    "saccade_single_head_attention": (c_int, *(c_int64,) * 5, *(c_void_p,) * 7),
    "saccade_glu": (c_int, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_float, c_void_p),
    "saccade_linear": (c_int, *(c_int64,) * 3, *(c_void_p,) * 4),
    "saccade_varlen_attention": (
        *(c_int, *(c_int64,) * 5, c_int, c_void_p, c_void_p),
        *(*(ProjectedColumn,) * 3, c_void_p),
    ),
    "saccade_varlen_attention_backward": (
        *(c_int, *(c_int64,) * 5, c_int, c_void_p, c_void_p),
        *(*(ProjectedColumn,) * 3, c_void_p, *(ProjectedColumn,) * 3),
    ),
}

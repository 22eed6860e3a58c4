"""Structures of the C kernels as ctypes structures; `kernel_library.py` compares every field with the library."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_float, c_int64, c_void_p

from torch import Tensor, nn

from saccade.ops.arguments import address, row_address


class Int8Weight(ctypes.Structure):
    """A weight (outputs, inputs) in float32 and in int8 (`int8_weight.h`)."""

    _fields_ = (
        *((name, c_int64) for name in ("outputs", "inputs")),
        *((name, c_void_p) for name in ("weight", "bias", "packed", "scales", "biases", "errors", "norms")),
    )


class ProjectedColumn(ctypes.Structure):
    """Queries, keys or values: a column of a wider tensor (N, ...), and the bias that is not added yet."""

    _fields_ = (("values", c_void_p), ("bias", c_void_p), ("stride", c_int64))

    @classmethod
    def of(cls, values: Tensor, bias: Tensor) -> ProjectedColumn:
        """The column `values` (N, D), which may be a slice of a wider tensor, and its bias (D,)."""
        return cls(row_address(values), address(bias), values.stride(0))


class RecurrentGates(ctypes.Structure):
    """The projections whose sum is the gates of a recurrent cell (`recurrent_gates.h`); a missing one is None."""

    _fields_ = (
        *((name, c_void_p) for name in ("inputs", "step_input", "recurrent", "input_bias", "recurrent_bias")),
        *((name, c_void_p) for name in ("input_rows", "output_rows", "out")),
        ("out_stride", c_int64),
    )


class LayerNormWeights(ctypes.Structure):
    """The weights of a layer norm."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("epsilon", c_float))

    @classmethod
    def of(cls, norm: nn.LayerNorm) -> LayerNormWeights:
        """The weights of a module that has both weight and bias."""
        return cls(address(norm.weight), address(norm.bias), norm.eps)


class StackShape(ctypes.Structure):
    """The sizes of all layers of a stack; `pre_norm` is 1 if the norm comes before each sublayer."""

    _fields_ = tuple((name, c_int64) for name in ("layers", "heads", "width", "inner", "pre_norm"))


class WeightForms(ctypes.Structure):
    """Copies of a layer's matrices in int8 or block-transposed (search only); null if there is no copy."""

    _fields_ = (("int8", POINTER(Int8Weight)), ("transposed", c_void_p))


class EncoderLayerWeights(ctypes.Structure):
    """The weights of an encoder layer."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "qkv_bias", "attention_output", "attention_output_bias")),
        *((name, c_void_p) for name in ("expand", "expand_bias", "contract", "contract_bias")),
        ("forms", WeightForms),
        ("norms", LayerNormWeights * 2),
    )


class EncoderStack(ctypes.Structure):
    """All layers of an encoder."""

    _fields_ = (("shape", StackShape), ("first_norm", LayerNormWeights), ("layers", POINTER(EncoderLayerWeights)))


class DecoderLayerWeights(ctypes.Structure):
    """The weights of a decoder layer."""

    _fields_ = (
        *((name, c_void_p) for name in ("qkv", "qkv_bias", "attention_output", "attention_output_bias")),
        *((name, c_void_p) for name in ("cross_query", "cross_query_bias", "cross_kv", "cross_value_bias")),
        *((name, c_void_p) for name in ("cross_output", "cross_output_bias")),
        *((name, c_void_p) for name in ("expand", "expand_bias", "contract", "contract_bias")),
        ("forms", WeightForms),
        ("norms", LayerNormWeights * 3),
    )


class DecoderStack(ctypes.Structure):
    """All layers of a decoder."""

    _fields_ = (("shape", StackShape), ("first_norm", LayerNormWeights), ("layers", POINTER(DecoderLayerWeights)))


class PackedMemory(ctypes.Structure):
    """The projected memory of packed sentences: kv[l] points to the keys and values (rows, 2D) of layer l.

    Sentence i has the rows first[i] to first[i] + counts[i].
    """

    _fields_ = (
        ("kv", POINTER(c_void_p)),
        ("rows", c_int64),
        *((name, c_void_p) for name in ("first", "counts")),
        ("sentences", c_int64),
    )


class KVCacheView(ctypes.Structure):
    """The KV cache of a decoder step: steps[t * layers + l] points to the projections of step t in layer l.

    `origin` (hypotheses, capacity) has the index of each hypothesis at each step; it is checked against
    `step_hypotheses` (positions,), the number of hypotheses of each step, unless that is None.
    """

    _fields_ = (
        *((name, c_int64) for name in ("hypotheses", "positions", "capacity", "row_width")),
        ("steps", POINTER(c_void_p)),
        ("origin", c_void_p),
        ("memory", POINTER(PackedMemory)),
        *((name, c_int64) for name in ("first_sentence", "beam")),
        ("step_hypotheses", POINTER(c_int64)),
    )


class SourceBatch(ctypes.Structure):
    """Packed source sentences for a search that encodes them: cu_seqlens (B + 1,), tokens and position ids (N,)."""

    _fields_ = (
        ("encoder", POINTER(EncoderStack)),
        ("scale", c_float),
        *((name, c_void_p) for name in ("embedding", "positions", "cu_seqlens", "tokens", "position_ids")),
        *((name, c_int64) for name in ("vocabulary", "max_positions")),
    )


class TokenTables(ctypes.Structure):
    """Target embedding and output layer; its int8 forms for all logits, or for the largest logit alone."""

    _fields_ = (
        ("vocabulary", c_int64),
        ("scale", c_float),
        *((name, c_void_p) for name in ("embedding", "positions", "output")),
        ("int8_output", POINTER(Int8Weight)),
        ("int8_argmax", POINTER(Int8Weight)),
    )


class SearchLimits(ctypes.Structure):
    """Constraints of a search: limits (B,), length penalties (longest limit,); the last suppressed token is the end."""

    _fields_ = (
        *((name, c_int64) for name in ("min_length", "begin", "end", "suppressed_count")),
        *((name, c_void_p) for name in ("suppressed", "limits", "penalties")),
    )


class HypothesisBuffers(ctypes.Structure):
    """Output columns of a search, with room for `capacity` hypotheses of each sentence."""

    _fields_ = (
        ("capacity", c_int64),
        *((name, c_void_p) for name in ("starts", "counts", "tokens", "lengths", "finished")),
        *((name, c_void_p) for name in ("token_log_probabilities", "log_probabilities", "scores")),
    )


STRUCTURES: tuple[type[ctypes.Structure], ...] = (
    *(Int8Weight, ProjectedColumn, RecurrentGates, LayerNormWeights, StackShape, WeightForms),
    *(EncoderLayerWeights, EncoderStack, DecoderLayerWeights, DecoderStack),
    *(PackedMemory, KVCacheView, SourceBatch, TokenTables, SearchLimits, HypothesisBuffers),
)
"""All structures that the kernels share with Python."""


def c_name(structure: type[ctypes.Structure]) -> str:
    """The name of a structure in C: `KVCacheView` is `kv_cache_view`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", structure.__name__).lower()


def fields_of(structure: type[ctypes.Structure]) -> dict[str, tuple[int, int]]:
    """Offset and size of each field in order; the name "" has the size of the structure."""
    fields = {"": (0, ctypes.sizeof(structure))}
    for name, *_ in structure._fields_:
        field = getattr(structure, name)
        fields[name] = field.offset, field.size
    return fields

"""A Transformer as the kernels see it: the structures of transformer.h."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_float, c_int64, c_void_p
from dataclasses import dataclass

from torch import Tensor, nn


class Int8Weight(ctypes.Structure):
    """Where a weight is, and where the same is in bytes."""

    _fields_ = (
        *((name, c_int64) for name in ("outs", "ins")),
        *((name, c_void_p) for name in ("weight", "bias", "packed", "scales", "biases", "errors", "norms")),
    )


class ProjectedColumn(ctypes.Structure):
    """Rows of queries, keys or values: a column of a wider tensor (N, …), and the bias that is still to be added."""

    _fields_ = (("values", c_void_p), ("bias", c_void_p), ("stride", c_int64))

    @classmethod
    def of(cls, values: Tensor, bias: Tensor) -> ProjectedColumn:
        """`values` (N, D) may be a part of wider rows."""
        return cls(values.data_ptr(), bias.data_ptr(), values.stride(0))


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


class Norm(ctypes.Structure):
    """Where the weights of a layer normalisation are."""

    _fields_ = (("scale", c_void_p), ("shift", c_void_p), ("epsilon", c_float))

    @classmethod
    def of(cls, norm: nn.LayerNorm) -> Norm:
        """One that has both weights."""
        return cls(norm.weight.data_ptr(), norm.bias.data_ptr(), norm.eps)


class Shape(ctypes.Structure):
    """What all layers of a stack have in common; whether their norms come first."""

    _fields_ = tuple((name, c_int64) for name in ("layers", "heads", "width", "inner", "pre"))


class WeightForms(ctypes.Structure):
    """The weights of a layer in bytes, or turned round, which a search does by itself; or neither."""

    _fields_ = (("bytes", POINTER(Int8Weight)), ("turned", c_void_p))


class EncoderWeights(ctypes.Structure):
    """Where the weights of a layer of the encoder are."""

    _fields_ = (
        *((name, c_void_p) for name in ("own", "own_bias", "own_output", "own_output_bias")),
        *((name, c_void_p) for name in ("expand", "expand_bias", "contract", "contract_bias")),
        ("other", WeightForms),
        ("after", Norm * 2),
    )


class Encoder(ctypes.Structure):
    """All layers of the encoder."""

    _fields_ = (("shape", Shape), ("first_norm", Norm), ("weights", POINTER(EncoderWeights)))
    layer = EncoderWeights
    by_bytes: bool  # whether the products are
    kept: object  # what must stay where it is; the array of the weights is kept by its pointer


class DecoderWeights(ctypes.Structure):
    """Where the weights of a layer of the decoder are."""

    _fields_ = (
        *((name, c_void_p) for name in ("own", "own_bias", "own_output", "own_output_bias")),
        *((name, c_void_p) for name in ("cross", "cross_bias", "key_value", "value_bias")),
        *((name, c_void_p) for name in ("cross_output", "cross_output_bias")),
        *((name, c_void_p) for name in ("expand", "expand_bias", "contract", "contract_bias")),
        ("other", WeightForms),
        ("after", Norm * 3),
    )


class Decoder(ctypes.Structure):
    """All layers of the decoder."""

    _fields_ = (("shape", Shape), ("first_norm", Norm), ("weights", POINTER(DecoderWeights)))
    layer = DecoderWeights
    by_bytes: bool  # as those of the encoder
    kept: object


class PackedMemory(ctypes.Structure):
    """Keys and values of a memory (layers, rows, 2D), and the first row and the number of rows of each sentence."""

    _fields_ = (("values", c_void_p), ("rows", c_int64), ("first", c_void_p), ("counts", c_void_p))


class DecodingGroup(ctypes.Structure):
    """Where N hypotheses stand: addresses and strides of each step (places,), and who was which row (N, places).

    They look at the memory of the sentences from `sentence` on, `beam` of them at each.
    """

    _fields_ = (
        *((name, c_int64) for name in ("rows", "count", "places", "row")),
        *((name, c_void_p) for name in ("steps", "layer_strides", "origin")),
        ("memory", POINTER(PackedMemory)),
        *((name, c_int64) for name in ("sentence", "beam")),
    )


class Sources(ctypes.Structure):
    """Sentences to be encoded: where the tokens of each begin (B + 1,), all tokens and their places (N,)."""

    _fields_ = (
        ("encoder", POINTER(Encoder)),
        ("scale", c_float),
        *((name, c_void_p) for name in ("embedding", "positions", "starts", "tokens", "places")),
    )


class Words(ctypes.Structure):
    """How tokens become vectors and vectors logits; the output in bytes, for logits or for the largest alone."""

    _fields_ = (
        ("vocabulary", c_int64),
        ("scale", c_float),
        *((name, c_void_p) for name in ("embedding", "positions", "output")),
        ("bytes", POINTER(Int8Weight)),
        ("screen", POINTER(Int8Weight)),
    )


class Rules(ctypes.Structure):
    """What the outputs must keep to: limits (B,), penalties (longest limit,)."""

    _fields_ = (
        *((name, c_int64) for name in ("min_length", "begin", "end", "nevers")),
        *((name, c_void_p) for name in ("never", "limits", "penalties")),
    )


class HypothesisBuffers(ctypes.Structure):
    """Columns for what a search finds, at most so many hypotheses of each sentence."""

    _fields_ = (
        ("most", c_int64),
        *((name, c_void_p) for name in ("starts", "counts", "tokens", "lengths", "finished")),
        *((name, c_void_p) for name in ("token_logs", "logs", "scores")),
    )


LAYOUTS = (
    *(Encoder, EncoderWeights, Decoder, DecoderWeights),
    *(DecodingGroup, PackedMemory, Sources, Words, Rules, HypothesisBuffers, Int8Weight),
)
"""The structures whose sizes layouts.c tells, in that order."""


@dataclass(frozen=True)
class NativeMemory:
    """B sentences that are encoded."""

    values: Tensor  # (L, M, 2D) keys and values
    first: Tensor  # (B,)
    counts: Tensor  # (B,)


@dataclass(frozen=True)
class NativeSource:
    """B sentences of N tokens that the search itself encodes."""

    encoder: Encoder
    embedding: Tensor  # (V, D)
    scale: float
    positions: Tensor  # (longest, D)
    starts: Tensor  # (B + 1,)
    tokens: Tensor  # (N,)
    places: Tensor  # (N,)


@dataclass(frozen=True)
class NativeDecoder:
    """All that a search needs of a model and of its input."""

    decoder: Decoder
    embedding: Tensor  # (V, D)
    scale: float
    positions: Callable[[int], Tensor]  # how many to (as many, D)
    output: Tensor  # (V, D)
    output_bytes: Int8Weight | None  # the same, where products are by bytes
    output_screen: Int8Weight | None  # the same, to find the largest logit, if it was kept
    given: NativeMemory | NativeSource

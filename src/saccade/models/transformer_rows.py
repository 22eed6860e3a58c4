"""The Transformer on the kernels: batches without their padding, and steps that copy no cache.

These are the sums of `transformer.py` in another order: a sublayer ends in a product without its bias, then come the
bias, the residual sum and the norm in one pass, whosever that norm is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from saccade.csrc.abi import (
    DecoderStack,
    EncoderStack,
    Int8Weight,
    KVCacheView,
    LayerNormWeights,
    NativeDecoder,
    NativeMemory,
    NativeSource,
    PackedMemory,
    StackShape,
    WeightForms,
)
from saccade.csrc.library import for_inference, kernel
from saccade.interface import Memory, OfMemory, Shared, Source
from saccade.layers.embedding import Embedding
from saccade.layers.feed_forward import FeedForward
from saccade.layers.residual import PackedHidden
from saccade.ops.int8_linear import QuantizedMatrix, quantize, quantized_form, version_of
from saccade.ops.kv_cache_attention import KVCache, MemoryCache, empty_cache
from saccade.ops.layer_norm import layer_norm
from saccade.ops.linear import packed_linear
from saccade.ops.packed import PackedLayout

if TYPE_CHECKING:
    from saccade.layers.mixture_of_experts import MixtureOfExperts
    from saccade.layers.residual import Residual
    from saccade.models.transformer import DecoderLayer, EncoderLayer, Transformer

Whole = TypeVar("Whole", EncoderStack, DecoderStack)

FEW = 16
"""So many hypotheses at most go through all layers in one call; the library's products are faster with more."""

FEW_PLACES = 48
"""So many places of sources at most, likewise; with `transformer-base` both are then as fast."""


class RowState(NamedTuple):
    """What the decoder keeps between steps."""

    past: KVCache
    memory: OfMemory[MemoryCache]
    whole: Shared[DecoderStack | None]  # for steps in one call


class SteppedRows(NamedTuple):
    """One place of N hypotheses."""

    output: Tensor  # (N, D)
    state: RowState
    own: list[Tensor | None]  # where each layer looked, if that was recorded
    cross: list[Tensor | None]


def encode_rows(model: Transformer, x: Tensor, places: PackedLayout) -> Tensor:
    """Embeddings (B, S, D) to the memory's states."""
    whole = encoder_of(model, settled(model)) if for_inference(x) else None
    if whole is not None and (whole.is_int8 or len(places.indices) <= FEW_PLACES):
        return places.unpack(encode_few(whole, places.pack(x), places.cu_seqlens))
    layers = model.encoder_layers()
    residuals = encoder_residuals(layers)
    norms = iter(following(residuals, model.encoder_norm))
    rows = begin_rows(model, places.pack(x), residuals[0])
    for layer in layers:
        attended = layer.attention.rows(rows.normal, places)
        rows = layer.attention_residual.rows(rows, attended, layer.attention.output.bias, next(norms))
        rows = feed_rows(layer.feed_forward, layer.feed_forward_residual, rows, next(norms))
    return places.unpack(rows.normal)


def encode_few(whole: EncoderStack, x: Tensor, starts: Tensor) -> Tensor:
    """The same of a few rows (N, D), which are written over; `starts` (B + 1,) are the first rows of the sentences."""
    out = torch.empty_like(x)
    kernel(
        *("encoder_forward", ctypes.byref(whole), len(starts) - 1),
        *(starts.data_ptr(), x.data_ptr(), out.data_ptr()),
    )
    return out


def decode_rows(model: Transformer, x: Tensor, places: PackedLayout, memory: Memory) -> Tensor:
    """Embeddings (B, T, D) to the outputs."""
    memory_places = PackedLayout.of(memory.mask)
    states = memory_places.pack(memory.states)  # (M, D)
    layers = model.decoder_layers()
    residuals = decoder_residuals(layers)
    norms = iter(following(residuals, model.decoder_norm))
    rows = begin_rows(model, places.pack(x), residuals[0])
    for layer in layers:
        attended = layer.attention.rows(rows.normal, places, causal=True)
        rows = layer.attention_residual.rows(rows, attended, layer.attention.output.bias, next(norms))
        crossed = layer.cross.rows(rows.normal, places, states, memory_places)
        rows = layer.cross_residual.rows(rows, crossed, layer.cross.output.bias, next(norms))
        rows = feed_rows(layer.feed_forward, layer.feed_forward_residual, rows, next(norms))
    return places.unpack(rows.normal)


def start_rows(model: Transformer, memory: Memory) -> RowState:
    """An empty past, and keys and values of the memory."""
    whole = decoder_of(model, settled(model))
    return RowState(
        empty_cache(len(memory.mask), memory.mask.device), OfMemory(memory_rows(model, memory)), Shared(whole)
    )


def memory_rows(model: Transformer, memory: Memory) -> MemoryCache:
    """Keys and values of the memory for all layers."""
    places = PackedLayout.of(memory.mask)
    states, layers = places.pack(memory.states), model.decoder_layers()
    projected = torch.stack([packed_linear(states, layer.cross.key_value.weight) for layer in layers])  # (L, M, 2D)
    return MemoryCache(places.cu_seqlens[:-1], places.cu_seqlens.diff(), Shared(projected))


def step_rows(model: Transformer, x: Tensor, state: RowState, mask: Tensor, record: bool) -> SteppedRows:
    """One more place from embeddings (N, D), mask (B, S)."""
    state = state._replace(past=state.past.append(x.new_empty(len(model.decoder), len(x), 3 * x.size(1))))
    whole = state.whole.value
    if whole is not None and (whole.is_int8 or len(x) <= FEW) and not record:
        return SteppedRows(step_few(whole, x, state, mask), state, [], [])
    layers = model.decoder_layers()
    residuals = decoder_residuals(layers)
    norms = iter(following(residuals, model.decoder_norm))
    rows = begin_rows(model, x, residuals[0])
    looks: list[tuple[Tensor | None, Tensor | None]] = []
    for number, layer in enumerate(layers):
        own = layer.attention.step_rows(rows.normal, state.past, number, record)
        rows = layer.attention_residual.rows(rows, own.context, layer.attention.output.bias, next(norms))
        crossed = layer.cross.step_rows(rows.normal, state.memory.value, number, mask, record)
        rows = layer.cross_residual.rows(rows, crossed.context, layer.cross.output.bias, next(norms))
        rows = feed_rows(layer.feed_forward, layer.feed_forward_residual, rows, next(norms))
        looks.append((own.weights, crossed.weights))
    return SteppedRows(rows.normal, state, *map(list, zip(*looks, strict=True)))


def step_few(whole: DecoderStack, x: Tensor, state: RowState, mask: Tensor) -> Tensor:
    """The same of a few hypotheses in one call."""
    past, memory = state.past, state.memory.value
    pointers = [step.data_ptr() + 4 * layer * step.stride(0) for step in past.steps.value for layer in range(len(step))]
    steps = (ctypes.c_void_p * len(pointers))(*pointers)
    sizes = (ctypes.c_int64 * past.position)(*(step.size(1) for step in past.steps.value))
    x, out = x.clone(), torch.empty_like(x)
    rows, beam = memory.kv.value, len(x) // max(1, len(mask))
    kv = (ctypes.c_void_p * len(rows))(*(layer.data_ptr() for layer in rows))
    packed = PackedMemory(kv, rows.size(1), memory.first.data_ptr(), memory.counts.data_ptr(), len(memory.first))
    places = steps, past.origin.data_ptr(), ctypes.pointer(packed), 0, beam, sizes
    view = KVCacheView(len(x), past.position, past.position, 3 * x.size(1), *places)
    kernel("decoder_step", ctypes.byref(whole), ctypes.byref(view), x.data_ptr(), out.data_ptr())
    return out


class Settled:
    """The stacks of a model, for as long as nothing of it is replaced, changed or moved.

    To put them together anew takes half a millisecond, a fifth of the time of a short sentence.
    """

    def __init__(self, model: Transformer) -> None:
        self.encoder, self.decoder = make_encoder(model), make_decoder(model)
        self.screen = quantize(model.output.table.detach())
        modules, self.weights = list(model.modules()), list(model.parameters())
        self.places = [(part, name) for one in modules for part in (one._modules, one._parameters) for name in part]
        self.places += [(module.__dict__, "training") for module in modules]
        self.parts = [part.get(name) for part, name in self.places]  # modules, weights, whether units are dropped
        self.versions = [version_of(weight) for weight in self.weights]

    def holds(self) -> bool:
        """Whether all is as it was."""
        places = zip(self.places, self.parts, strict=True)
        same = all([part.get(name) is one for (part, name), one in places])  # noqa: C419  a list is twice as fast
        return same and self.versions == [version_of(weight) for weight in self.weights]


SETTLED: WeakKeyDictionary[Transformer, Settled] = WeakKeyDictionary()


def settle(model: Transformer) -> None:
    """Keep its stacks, and the output layer in bytes for greedy search."""
    SETTLED[model] = Settled(model)


def settled(model: Transformer) -> Settled | None:
    """What was kept of a model, if it still holds."""
    found = SETTLED.get(model)
    return found if found is not None and found.holds() else None


def encoder_of(model: Transformer, kept: Settled | None) -> EncoderStack | None:
    """Where the weights of the encoder are, for kernels that do all of it."""
    return make_encoder(model) if kept is None else kept.encoder


def decoder_of(model: Transformer, kept: Settled | None) -> DecoderStack | None:
    """The same of the decoder."""
    return make_decoder(model) if kept is None else kept.decoder


def make_encoder(model: Transformer) -> EncoderStack | None:
    """The same, put together now."""
    layers = model.encoder_layers()
    weights = [(*own_weights(layer), *fed_weights(layer)) for layer in layers]
    matrices = [matrices_of(layer) for layer in layers]
    return whole_stack(EncoderStack, layers, weights, matrices, encoder_residuals(layers), model.encoder_norm)


def make_decoder(model: Transformer) -> DecoderStack | None:
    """The same, put together now."""
    layers = model.decoder_layers()
    weights = [(*own_weights(layer), *cross_weights(layer), *fed_weights(layer)) for layer in layers]
    matrices = [(*matrices_of(layer), *cross_matrices(layer)) for layer in layers]
    return whole_stack(DecoderStack, layers, weights, matrices, decoder_residuals(layers), model.decoder_norm)


def whole_stack(
    kind: type[Whole],
    layers: Sequence[EncoderLayer | DecoderLayer],
    weights: Sequence[tuple[Tensor, ...]],
    matrices: Sequence[tuple[Tensor, ...]],
    residuals: list[Residual],
    last: nn.Module,
) -> Whole | None:
    """All layers for one call, or None where that would not do what they do one by one.

    It drops no units, reads float32 without gaps, and takes all layers to be of one shape. The `matrices`, in the order
    of transformer.h, are multiplied by their bytes if all have some.
    """
    first = residuals[0].norm
    after: list[nn.LayerNorm] = following(residuals, last)
    norms = [tensor for norm in (first, *after) for tensor in (norm.weight, norm.bias)]
    heads, width = layers[0].attention.heads, layers[0].attention.output.in_features
    alike = all(layer.attention.heads == heads for layer in layers) and len({shapes(own) for own in weights}) == 1
    drops = any(residual.training for residual in residuals)
    tables = [[quantized_form(matrix) for matrix in own] for own in matrices]
    by_bytes = tables[0][0] is not None
    mixed = any((table is not None) != by_bytes for table in chain(*tables))
    if drops or mixed or not alike or not readable(chain(norms, *weights)):
        return None
    following_norms, each = iter(map(LayerNormWeights.of, after)), len(residuals) // len(layers)
    arrays = [byte_tables(own) for own in tables]
    places = [
        kind.layer(*(tensor.data_ptr() for tensor in own), other, (LayerNormWeights * each)(*islice(following_norms, each)))
        for own, other in zip(weights, map(WeightForms, arrays), strict=True)
    ]
    inner = cast("FeedForward", layers[0].feed_forward).inner
    shape = StackShape(len(layers), heads, width, inner, residuals[0].pre)
    found = kind(shape, LayerNormWeights.of(first), (kind.layer * len(layers))(*places))
    found.is_int8 = by_bytes
    found.kept = weights, norms, tables, arrays
    return found


def byte_tables(tables: Sequence[QuantizedMatrix | None]) -> ctypes.Array[Int8Weight] | None:
    """Of the weights of a layer, one after another; None if they have none."""
    there = [table.structure for table in tables if table is not None]
    return (Int8Weight * len(there))(*there) if there else None


def readable(tensors: Iterable[Tensor]) -> bool:
    """Whether a kernel that is told where they begin reads what is in them."""
    return all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors)


def shapes(tensors: tuple[Tensor, ...]) -> tuple[torch.Size, ...]:
    """Of each of them."""
    return tuple(tensor.shape for tensor in tensors)


def native_decoder(model: Transformer, given: Memory | Source) -> NativeDecoder | None:
    """The decoder, and a memory or a source, for a search that is all in C; None without stacks for that."""
    embedding, table, kept = model.target_embedding, model.output.table, settled(model)
    whole = decoder_of(model, kept)
    if whole is None or not readable((embedding.table, table)):
        return None
    if isinstance(given, Memory):
        rows = memory_rows(model, given)
        places: NativeMemory | NativeSource | None = NativeMemory(rows.kv.value, rows.first, rows.counts)
    else:
        places = native_source(model, given, kept)
    if places is None:
        return None
    own, screen = quantized_form(table), None if kept is None else kept.screen
    return NativeDecoder(
        whole,
        embedding.table,
        embedding.scale,
        partial(first_positions, embedding),
        table,
        None if own is None else own.structure,
        None if screen is None else screen.structure,
        places,
    )


def native_source(model: Transformer, source: Source, kept: Settled | None) -> NativeSource | None:
    """What is needed to encode a source; None without an encoder for that."""
    embedding, whole, values = model.source_embedding, encoder_of(model, kept), source.values
    drops = embedding.training and embedding.probability > 0
    if whole is None or drops or not readable((embedding.table,)) or not isinstance(values, Tensor):
        return None
    packed = PackedLayout.of(source.mask)
    tokens = values.flatten().index_select(0, packed.indices).long()
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(embedding.table):
        raise IndexError(f"a token that is none of the {len(embedding.table)} of the source")
    positions = first_positions(embedding, values.size(1))
    places = packed.indices % max(1, values.size(1))
    return NativeSource(whole, embedding.table, embedding.scale, positions, packed.cu_seqlens, tokens, places)


def first_positions(embedding: Embedding, places: int) -> Tensor:
    """The vectors of the first places, (places, D)."""
    return cast("Tensor", embedding.positions(embedding.table.new_zeros(1, places, embedding.table.size(1)), 0))[0]


def own_weights(layer: EncoderLayer | DecoderLayer) -> tuple[Tensor, ...]:
    """Those of its self-attention."""
    own = layer.attention
    return own.query_key_value.weight, own.query_key_value.bias, own.output.weight, own.output.bias


def matrices_of(layer: EncoderLayer | DecoderLayer) -> tuple[Tensor, ...]:
    """Its weights that may be in bytes, but for those of attention to the memory."""
    own, network = layer.attention, cast("FeedForward", layer.feed_forward)
    return own.query_key_value.weight, own.output.weight, network.expand.weight, network.contract.weight


def cross_weights(layer: DecoderLayer) -> tuple[Tensor, ...]:
    """Those of its attention to the memory, but for the bias of the keys, which changes nothing."""
    cross = layer.cross
    value_bias = cross.key_value.bias[cross.query.out_features :]
    keys_values = cross.key_value.weight, value_bias
    return cross.query.weight, cross.query.bias, *keys_values, cross.output.weight, cross.output.bias


def cross_matrices(layer: DecoderLayer) -> tuple[Tensor, ...]:
    """Those of its attention to the memory that may be in bytes."""
    return layer.cross.query.weight, layer.cross.output.weight, layer.cross.key_value.weight


def fed_weights(layer: EncoderLayer | DecoderLayer) -> tuple[Tensor, ...]:
    """Those of its feed-forward network."""
    network = cast("FeedForward", layer.feed_forward)
    return network.expand.weight, network.expand.bias, network.contract.weight, network.contract.bias


def begin_rows(model: Transformer, x: Tensor, first: Residual) -> PackedHidden:
    """Embeddings (N, D) as the first sublayer reads them."""
    norm = first.norm
    return PackedHidden(x, layer_norm(x, norm.weight, norm.bias, norm.eps) if model.pre else x)


def encoder_residuals(layers: list[EncoderLayer]) -> list[Residual]:
    """Of all sublayers of an encoder."""
    return [part for layer in layers for part in (layer.attention_residual, layer.feed_forward_residual)]


def decoder_residuals(layers: list[DecoderLayer]) -> list[Residual]:
    """Of all sublayers of a decoder."""
    return [
        part
        for layer in layers
        for part in (layer.attention_residual, layer.cross_residual, layer.feed_forward_residual)
    ]


def following(residuals: list[Residual], last: nn.Module) -> list[nn.LayerNorm]:
    """The norm after each residual sum: its own or, with the norm first, that of the next sublayer."""
    norms = [residual.norm for residual in residuals]
    return [*norms[1:], cast("nn.LayerNorm", last)] if residuals[0].pre else norms


def feed_rows(
    network: FeedForward | MixtureOfExperts, residual: Residual, rows: PackedHidden, after: nn.LayerNorm
) -> PackedHidden:
    """The last sublayer of a packed batch; one with experts is not packed."""
    assert isinstance(network, FeedForward)
    return residual.rows(rows, network.rows(rows.normal), network.contract.bias, after)

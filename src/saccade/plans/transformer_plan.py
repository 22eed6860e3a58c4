"""Compiled inference of a Transformer: the encoder, a decoder step or a complete search in one kernel call.

The kernels compute what `models/transformer.py` computes, with a different order of summation. With few hypotheses, the
call overhead of the sixty kernels of a step exceeds their run time.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from saccade.decoding.constraints import Constraints
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.search import SearchRequest
from saccade.interface import Decoded, Memory, OutputProjection, Shared, Source, Step
from saccade.layers.embedding import Embedding
from saccade.layers.feed_forward import FeedForward
from saccade.layers.multi_head import CrossAttention, SelfAttention
from saccade.layers.positions import ConcatenatedPositions
from saccade.layers.residual import Residual
from saccade.models.transformer import DecoderLayer, EncoderLayer, LayerState, Transformer
from saccade.ops.arguments import address
from saccade.ops.dispatch import runs_on_inference_kernel
from saccade.ops.int8_linear import QuantizedMatrix, int8_copy, quantize
from saccade.ops.kernel_abi import (
    DecoderLayerWeights,
    DecoderStack,
    EncoderLayerWeights,
    EncoderStack,
    Int8Weight,
    KVCacheView,
    LayerNormWeights,
    PackedMemory,
    StackShape,
    WeightForms,
)
from saccade.ops.kernel_library import kernel
from saccade.ops.kv_cache import KVCache, MemoryCache
from saccade.ops.packed import PackedLayout
from saccade.ops.varlen_attention import LONGEST
from saccade.plans.compiled_search import EncodedBatch, OutputTables, SourceTokens, run_search, supports
from saccade.plans.fingerprint import Fingerprint, has_hooks
from saccade.plans.quantization import quantized_copy

MAX_FUSED_HYPOTHESES = 16
"""The maximum number of hypotheses of a fused float32 step; above it, PyTorch's matrix products are faster."""

MAX_FUSED_POSITIONS = 48
"""The maximum number of source positions of a fused float32 encoder; PyTorch is as fast with `transformer-base`."""


COMPILED = frozenset(
    {EncoderLayer, DecoderLayer, SelfAttention, CrossAttention, FeedForward, Residual} | {nn.Linear, nn.LayerNorm}
)
"""The modules that the kernels compute: subclasses may compute something else."""


class Stack(NamedTuple):
    """The ctypes structure of an encoder or decoder stack, and the objects that it points to."""

    structure: Any  # EncoderStack or DecoderStack
    int8: bool  # whether the weights are int8
    keep_alive: tuple[Any, ...]


class Compiled(NamedTuple):
    """Structures that a plan has built from the weights of a model."""

    fingerprint: Fingerprint  # of the model that the plan was built for
    model: Transformer  # the same model, or its quantized copy
    encoder: Stack | None  # None: some layer has no kernel
    decoder: Stack | None
    output_int8: QuantizedMatrix | None  # the output layer of a quantized model
    output_screen: QuantizedMatrix | None  # the output layer in int8, to find the largest float32 logit


class TransformerPlan:
    """Inference plan of the Transformer with the model interface.

    The model itself runs with gradients and when attention is recorded.

    `encode`, `decode`, `start` and `search` check whether the model has changed and recompile if so; `step` and
    `logits` use the most recently compiled structures without a check.
    """

    def __init__(self, model: Transformer, *, quantize: bool = False) -> None:
        self.model = model
        self.quantize = quantize
        self.compiled = self.compile()

    def compile(self) -> Compiled:
        """Collect the weight pointers and quantize the int8 weights; a model with forward hooks is not compiled."""
        fingerprint = Fingerprint(self.model)
        with torch.no_grad():
            model = quantized_copy(self.model) if self.quantize else self.model
            if not runs_on_inference_kernel(model.target_embedding.table):
                return Compiled(fingerprint, model, None, None, None, None)
            table = model.output.table
            screen = None if self.quantize else quantize(table.detach())
            compilable = not has_hooks(model)
            return Compiled(
                fingerprint,
                model,
                encoder_stack(model) if compilable else None,
                decoder_stack(model) if compilable else None,
                int8_copy(table),
                screen,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> TransformerPlan:
        """The plan of a copy of the model: pointers are not copied."""
        return TransformerPlan(copy.deepcopy(self.model, memo), quantize=self.quantize)

    def current(self) -> Compiled:
        """Return the compiled structures; rebuilt if the model has changed."""
        if not self.compiled.fingerprint.matches():
            self.compiled = self.compile()
        return self.compiled

    def fallback_model(self, compiled: Compiled) -> Transformer:
        """Return the model for the paths that are not compiled; int8 weights have no gradient."""
        return self.model if torch.is_grad_enabled() else compiled.model

    @property
    def max_target_positions(self) -> int | None:
        """The maximum number of target positions of the model."""
        return self.model.max_target_positions

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode a source; in one kernel call for few positions and for int8."""
        compiled = self.current()
        stack, model = compiled.encoder, compiled.model
        table = model.source_embedding.table
        if record or stack is None or source.mask.size(1) > LONGEST or not runs_on_inference_kernel(table):
            return self.fallback_model(compiled).encode(source, record=record)
        layout = PackedLayout.of(source.mask)
        if not stack.int8 and layout.total > MAX_FUSED_POSITIONS:
            return model.encode(source)
        assert isinstance(source.values, Tensor)
        x = layout.pack(model.source_embedding(source.values))  # (N, D)
        out = torch.empty_like(x)
        arguments = ctypes.byref(stack.structure), len(layout.mask), address(layout.cu_seqlens)
        kernel("encoder_forward", *arguments, address(x), address(out))
        return Memory(layout.unpack(out), source.mask)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode a prefix with the model."""
        return self.fallback_model(self.current()).decode(prefix, memory, record=record)

    def start(self, memory: Memory) -> tuple[LayerState, ...]:
        """Return the decoder state before the first token."""
        return self.fallback_model(self.current()).start(memory)

    def step(self, token: Tensor, state: tuple[LayerState, ...], memory: Memory, *, record: bool = False) -> Step:
        """Decode one position; in one kernel call for few hypotheses and for int8."""
        compiled = self.compiled  # `start` has checked the fingerprint
        stack, model = compiled.decoder, compiled.model
        few = stack is not None and (stack.int8 or len(token) <= MAX_FUSED_HYPOTHESES)
        table = model.target_embedding.table
        if record or stack is None or not few or memory.mask.size(1) > LONGEST or not runs_on_inference_kernel(table):
            return self.fallback_model(compiled).step(token, state, memory, record=record)
        if any(layer.cache.joined is not None or layer.memory.value.padded is not None for layer in state):
            return model.step(token, state, memory)  # a state that was created without kernels
        x = model.target_embedding(token[:, None], state[0].cache.position).squeeze(1)  # (N, D)
        check_state(stack, x, state)
        return compiled_step(stack, x, state)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the output layer of the model."""
        return self.fallback_model(self.compiled).logits(outputs)

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last linear layer of the model."""
        return self.fallback_model(self.compiled).output_projection(outputs)

    def search(self, request: SearchRequest, constraints: Constraints) -> list[list[Hypothesis]] | None:
        """Run greedy or beam search in one kernel call; None if the kernel does not support model or request."""
        compiled, given = self.current(), request.given
        model, decoder = compiled.model, compiled.decoder
        if decoder is None or given.mask.size(1) > LONGEST or not supports(request, constraints):
            return None
        if not runs_on_inference_kernel(model.target_embedding.table) or not supports_search(model):
            return None
        if isinstance(given, Memory):
            if not runs_on_inference_kernel(given.states):
                return None
            sentences: SourceTokens | EncodedBatch = encoded_batch(model, given)
        elif compiled.encoder is None or not isinstance(given.values, Tensor) or not on_cpu(given.values, given.mask):
            return None
        else:
            sentences = source_tokens(model, compiled.encoder, given)
        tables = OutputTables(
            model.target_embedding.table,
            model.target_embedding.scale,
            partial(position_vectors, model.target_embedding),
            model.output.table,
            compiled.output_int8,
            compiled.output_screen,
        )
        return run_search(decoder.structure, tables, sentences, constraints, request)


def check_state(stack: Stack, x: Tensor, state: tuple[LayerState, ...]) -> None:
    """Raise ValueError for a state that is not one of this stack: the model may have changed since `start`."""
    layers, width, sentences = stack.structure.shape.layers, stack.structure.shape.width, state[0].memory.value
    if len(state) != layers or x.size(1) != width:
        raise ValueError(f"a state of {len(state)} layers of width {x.size(1)} for {layers} layers of width {width}")
    if len(x) % max(1, len(sentences.counts)):
        raise ValueError(f"{len(x)} hypotheses cannot be shared evenly by {len(sentences.counts)} sentences")
    for layer in state:
        projected, steps = cast("Tensor", layer.memory.value.packed.value), layer.cache.steps.value
        rows = [(projected, 2 * width), *((step, 3 * width) for step in steps[-1:])]
        if any(part.dim() != 2 or part.size(1) != size or not on_cpu(part) for part, size in rows):
            raise ValueError(f"the cached projections of a state are not those of layers of width {width}")
        if not are_contiguous_float32(part for part, _ in rows) or len(steps) != len(state[0].cache.steps.value):
            raise ValueError("the cached projections of a state cannot be read by the kernel")


def compiled_step(stack: Stack, x: Tensor, state: tuple[LayerState, ...]) -> Step:
    """Compute one more position of N hypotheses from embeddings x (N, D), in one kernel call."""
    width = x.size(1)
    projections = x.new_empty(len(state), len(x), 3 * width)  # (L, N, 3D), written by the kernel
    before = state[0].cache
    origin = torch.cat([before.origin, torch.arange(len(x), device=x.device)[:, None]], 1)
    caches = [
        KVCache(origin, Shared((*layer.cache.steps.value, own)))
        for layer, own in zip(state, projections.unbind(0), strict=True)
    ]
    steps = list(zip(*(cache.steps.value for cache in caches), strict=True))  # t times L tensors
    memory = state[0].memory.value
    first, counts = cast("Tensor", memory.first).contiguous(), memory.counts.contiguous()
    kv = [cast("Tensor", layer.memory.value.packed.value) for layer in state]
    packed = PackedMemory(
        kv=pointer_table(kv),
        rows=len(kv[0]),
        first=address(first),
        counts=address(counts),
        sentences=len(first),
    )
    view = KVCacheView(
        hypotheses=len(x),
        positions=len(steps),
        capacity=len(steps),
        row_width=3 * width,
        steps=pointer_table([step for layers in steps for step in layers]),
        origin=address(origin),
        memory=ctypes.pointer(packed),
        first_sentence=0,
        beam=max(1, len(x) // max(1, len(first))),
        step_hypotheses=(ctypes.c_int64 * len(steps))(*(len(layers[0]) for layers in steps)),
    )
    x, out = x.clone(), torch.empty_like(x)
    kernel("decoder_step", ctypes.byref(stack.structure), ctypes.byref(view), address(x), address(out))
    return Step(out, tuple(LayerState(cache, layer.memory) for cache, layer in zip(caches, state, strict=True)))


def pointer_table(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the data pointers of tensors, as an array for a kernel."""
    return (ctypes.c_void_p * len(tensors))(*map(address, tensors))


def supports_search(model: Transformer) -> bool:
    """Return whether the search kernel supports embeddings and output layer: no projections, added positions."""
    embeddings = model.source_embedding, model.target_embedding
    added = not any(isinstance(embedding.positions, ConcatenatedPositions) for embedding in embeddings)
    drops = any(embedding.training and embedding.probability > 0 for embedding in embeddings)
    tables = *(embedding.table for embedding in embeddings), model.output.table
    return added and not drops and isinstance(model.output.projection, nn.Identity) and are_contiguous_float32(tables)


def encoded_batch(model: Transformer, memory: Memory) -> EncodedBatch:
    """Compute keys and values of a memory in all layers."""
    caches: list[MemoryCache] = [layer.memory.value for layer in model.start(memory)]
    values = [cast("Tensor", cache.packed.value) for cache in caches]
    return EncodedBatch(values, cast("Tensor", caches[0].first).contiguous(), caches[0].counts.contiguous())


def source_tokens(model: Transformer, stack: Stack, source: Source) -> SourceTokens:
    """Return the tokens of a source, for a search that encodes them."""
    embedding, values = model.source_embedding, cast("Tensor", source.values)
    layout = PackedLayout.of(source.mask)
    tokens = layout.pack(values).long()
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(embedding.table):
        raise IndexError(f"a source token is outside of the vocabulary of {len(embedding.table)}")
    return SourceTokens(
        stack.structure,
        embedding.table,
        embedding.scale,
        position_vectors(embedding, values.size(1)),
        layout.cu_seqlens,
        tokens,
        layout.positions(),
    )


def position_vectors(embedding: Embedding, length: int) -> Tensor:
    """Return the vectors of the first positions, (length, D)."""
    zeros = embedding.table.new_zeros(1, length, embedding.table.size(1))
    return cast("Tensor", embedding.positions(zeros, 0))[0].contiguous()


def encoder_stack(model: Transformer) -> Stack | None:
    """Return the ctypes structure of the encoder; None if a layer has no kernel."""
    layers = model.encoder_layers()
    if not all(type(layer) is EncoderLayer and type(layer.attention) is SelfAttention for layer in layers):
        return None
    norms = [norm for layer in layers for norm in (layer.attention_residual.norm, layer.feed_forward_residual.norm)]
    return make_stack(EncoderStack, EncoderLayerWeights, layers, norms, model.encoder_norm, model.pre_norm)


def decoder_stack(model: Transformer) -> Stack | None:
    """Return the ctypes structure of the decoder; None if a layer has no kernel."""
    layers = model.decoder_layers()
    kinds = DecoderLayer, SelfAttention, CrossAttention
    if any((type(layer), type(layer.attention), type(layer.cross)) != kinds for layer in layers):
        return None
    norms = [
        norm
        for layer in layers
        for norm in (layer.attention_residual.norm, layer.cross_residual.norm, layer.feed_forward_residual.norm)
    ]
    return make_stack(DecoderStack, DecoderLayerWeights, layers, norms, model.decoder_norm, model.pre_norm)


def make_stack(
    stack: type[EncoderStack | DecoderStack],
    layer_weights: type[EncoderLayerWeights | DecoderLayerWeights],
    layers: Sequence[EncoderLayer | DecoderLayer],
    norms: list[nn.LayerNorm],
    last: nn.Module,
    pre_norm: bool,
) -> Stack | None:
    """Return the structure of a stack, or None if the kernel does not support it.

    The kernel has no dropout and no experts; it needs contiguous float32 weights and layers of one shape.
    """
    if any(module.training for layer in layers for module in layer.modules()):
        return None
    if not all(type(layer.feed_forward) is FeedForward for layer in layers):
        return None
    if not all(type(module) in COMPILED for layer in layers for module in layer.modules()):
        return None
    weights_by_layer = [weights_of(layer) for layer in layers]
    following = [*norms[1:], cast("nn.LayerNorm", last)] if pre_norm else norms
    tensors = [tensor for norm in (norms[0], *following) for tensor in (norm.weight, norm.bias)]
    shapes = {tuple((name, tensor.shape) for name, tensor in own.items()) for own in weights_by_layer}
    heads = {cast("SelfAttention", layer.attention).heads for layer in layers}
    int8 = [[int8_copy(matrix) for matrix in matrices_of(layer)] for layer in layers]
    is_quantized = [matrix is not None for matrix in chain(*int8)]
    quantized = all(is_quantized)
    if len(shapes) != 1 or len(heads) != 1 or any(is_quantized) != quantized:
        return None
    if not are_contiguous_float32(chain(tensors, *(own.values() for own in weights_by_layer))):
        return None
    arrays = [int8_array(cast("list[QuantizedMatrix]", own)) if quantized else None for own in int8]
    count = len(norms) // len(layers)
    structures: list[Any] = []
    for number, (own, array) in enumerate(zip(weights_by_layer, arrays, strict=True)):
        after = following[number * count : (number + 1) * count]
        pointers = {name: address(tensor) for name, tensor in own.items()}
        forms = WeightForms(int8=array, transposed=None)
        layer_norms = (LayerNormWeights * count)(*map(LayerNormWeights.of, after))
        structures.append(layer_weights(**pointers, forms=forms, norms=layer_norms))
    shape = StackShape(
        layers=len(layers),
        heads=heads.pop(),
        width=norms[0].weight.numel(),
        inner=cast("FeedForward", layers[0].feed_forward).inner,
        pre_norm=pre_norm,
    )
    table = (layer_weights * len(layers))(*structures)
    structure = stack(shape=shape, first_norm=LayerNormWeights.of(norms[0]), layers=table)
    # Kept alive are the tensors that are read, not the parameters: a parameter may get other storage.
    kept = [tensor.detach() for tensor in chain(tensors, *(own.values() for own in weights_by_layer))]
    return Stack(structure, quantized, (kept, int8, arrays, table))


def weights_of(layer: EncoderLayer | DecoderLayer) -> dict[str, Tensor]:
    """Return the weights of a layer by their names in the kernels.

    The bias of the keys of the memory is left out: it shifts all scores of a query alike.
    """
    own, network = cast("SelfAttention", layer.attention), cast("FeedForward", layer.feed_forward)
    found = {
        "qkv": own.query_key_value.weight,
        "qkv_bias": own.query_key_value.bias,
        "attention_output": own.output.weight,
        "attention_output_bias": own.output.bias,
        "expand": network.expand.weight,
        "expand_bias": network.expand.bias,
        "contract": network.contract.weight,
        "contract_bias": network.contract.bias,
    }
    if isinstance(layer, DecoderLayer):
        cross = layer.cross
        found |= {
            "cross_query": cross.query.weight,
            "cross_query_bias": cross.query.bias,
            "cross_kv": cross.key_value.weight,
            "cross_value_bias": cross.key_value.bias[cross.query.out_features :],
            "cross_output": cross.output.weight,
            "cross_output_bias": cross.output.bias,
        }
    return found


def matrices_of(layer: EncoderLayer | DecoderLayer) -> list[Tensor]:
    """Return the weight matrices of a layer that can be int8, in the order of transformer.h."""
    weights = weights_of(layer)
    names = ["qkv", "attention_output", "expand", "contract"]
    names += ["cross_query", "cross_output", "cross_kv"] if isinstance(layer, DecoderLayer) else []
    return [weights[name] for name in names]


def int8_array(matrices: Sequence[QuantizedMatrix]) -> ctypes.Array[Int8Weight]:
    """Return the int8 weights of a layer as an array for a kernel."""
    return (Int8Weight * len(matrices))(*(matrix.structure for matrix in matrices))


def on_cpu(*tensors: Tensor) -> bool:
    """Return whether all tensors are in CPU memory, where a kernel can read them."""
    return all(tensor.device.type == "cpu" for tensor in tensors)


def are_contiguous_float32(tensors: Iterable[Tensor]) -> bool:
    """Return whether all tensors are contiguous float32, as the kernels read them."""
    return all(tensor.dtype == torch.float32 and tensor.is_contiguous() for tensor in tensors)

"""Random arguments of each op, most of them valid, and ops with simpler arguments or results for comparisons."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from saccade.interface import Shared
from saccade.ops.argmax_int8 import argmax_int8
from saccade.ops.dropout import LEVELS, dropout, dropout_threshold
from saccade.ops.int8_linear import QuantizedMatrix, int8_linear
from saccade.ops.kv_cache import KVCache, MemoryCache
from saccade.ops.kv_cache_attention import Window
from saccade.ops.layer_norm import residual_layer_norm
from saccade.ops.packed import PackedLayout
from saccade.ops.recurrent_cells import RecurrentState, scan
from saccade.ops.recurrent_layer import bidirectional_layer, recurrent_layer
from saccade.ops.top_k import AllowedTokens, top_k
from saccade.ops.varlen_attention import varlen_cross_attention, varlen_self_attention

Arguments = dict[str, Any]


def size(rng: random.Random, most: int = 20) -> int:
    return rng.choice([0, 1, 2, 3, rng.randint(1, most), rng.randint(1, most)])


def layout_arguments(rng: random.Random, mask: Tensor, prefix: str = "") -> Arguments:
    """The parts of a layout, so that each can be replaced by a wrong one; some layouts keep their padding."""
    layout = PackedLayout.of(mask)
    if rng.random() < 0.1:  # with its padding
        layout = PackedLayout(torch.arange(len(mask) + 1) * mask.size(1), None, mask)
    parts = {"cu_seqlens": layout.cu_seqlens, "indices": layout.indices, "mask": mask}
    return {prefix + name: part for name, part in parts.items()}


def total(layout: Arguments, prefix: str = "") -> int:
    return PackedLayout(**{name: layout[prefix + name] for name in ("cu_seqlens", "indices", "mask")}).total


def random_mask(rng: random.Random) -> Tensor:
    batch, length = size(rng, 4), rng.randint(1, 9)
    lengths = torch.tensor([rng.randint(0, length) for _ in range(batch)], dtype=torch.int64)
    return torch.arange(length) < lengths[:, None]


def self_attention_arguments(rng: random.Random) -> Arguments:
    heads, head, mask = rng.randint(1, 3), rng.choice([1, 4, 16, 20]), random_mask(rng)
    width = heads * head
    layout = layout_arguments(rng, mask)
    qkv, bias = torch.randn(total(layout), 3 * width), torch.randn(3 * width)
    options = {"heads": heads, "causal": rng.random() < 0.5, "record": rng.random() < 0.2}
    return {"qkv": qkv, "bias": bias, **layout, **options}


def self_attention(qkv: Tensor, bias: Tensor, heads: int, causal: bool, record: bool, **layout: Tensor) -> Any:
    found = varlen_self_attention(qkv, bias, PackedLayout(**layout), heads, causal=causal, record=record)
    weights = None if found.weights is None else found.weights * layout["mask"][:, None, :, None]
    return without_padding(found.context, layout["indices"], layout["mask"]), weights


def without_padding(x: Tensor, indices: Tensor | None, mask: Tensor) -> Tensor:
    """x (N, D) with zeros at the padding of a layout that has it: the op may write anything there."""
    return x if indices is not None else x * mask.flatten()[:, None]


def cross_attention_arguments(rng: random.Random) -> Arguments:
    heads, head, mask = rng.randint(1, 3), rng.choice([1, 4, 16, 20]), random_mask(rng)
    width, longest = heads * head, rng.randint(1, 9)
    lengths = torch.tensor([rng.randint(0, longest) for _ in mask], dtype=torch.int64)
    memory_mask = torch.arange(longest) < lengths[:, None]
    layouts = {**layout_arguments(rng, mask), **layout_arguments(rng, memory_mask, "memory_")}
    return {
        "query": torch.randn(total(layouts), width),
        "query_bias": torch.randn(width),
        "kv": torch.randn(total(layouts, "memory_"), 2 * width),
        "kv_bias": torch.randn(2 * width),
        **layouts,
        "heads": heads,
    }


def cross_attention(query: Tensor, query_bias: Tensor, kv: Tensor, kv_bias: Tensor, heads: int, **parts: Tensor) -> Any:
    memory = {name.removeprefix("memory_"): part for name, part in parts.items() if name.startswith("memory_")}
    own = {name: part for name, part in parts.items() if not name.startswith("memory_")}
    layouts = PackedLayout(**own), PackedLayout(**memory)
    context = varlen_cross_attention(query, query_bias, kv, kv_bias, *layouts, heads).context
    return without_padding(context, parts["indices"], parts["mask"])


def layer_norm_arguments(rng: random.Random) -> Arguments:
    rows, width = size(rng), rng.randint(2, 40)
    vectors = {name: torch.randn(width) for name in ("weight", "bias")}
    return {"x": torch.randn(rows, width), **vectors, "epsilon": 1e-5}


def residual_arguments(rng: random.Random) -> Arguments:
    found = layer_norm_arguments(rng)
    sublayer_bias = torch.randn(found["weight"].shape) if rng.random() < 0.7 else None
    probability = rng.choice([0.0, 0.0, 0.0, 0.0, 0.3, 0.3, 1.0, math.nan])
    return {
        **found,
        "sublayer": torch.randn(found["x"].shape),
        "sublayer_bias": sublayer_bias,
        "probability": probability,
    }


def residual(probability: float, weight: Tensor, bias: Tensor, epsilon: float, **arguments: Any) -> Any:
    total, normed = residual_layer_norm(**arguments, weight=weight, bias=bias, epsilon=epsilon, probability=probability)
    if not probability:
        return total, normed
    # The kernel drops other entries than the reference; but its norm is that of its own total.
    return normed - F.layer_norm(total, weight.shape, weight, bias, epsilon)


def bias_relu_arguments(rng: random.Random) -> Arguments:
    width = size(rng)
    return {"x": torch.randn(size(rng), width), "bias": torch.randn(width)}


def glu_arguments(rng: random.Random) -> Arguments:
    rows, width = size(rng), rng.randint(1, 20)
    residual = torch.randn(rows, width) if rng.random() < 0.5 else None
    return {"x": torch.randn(rows, 2 * width), "bias": torch.randn(2 * width), "residual": residual, "scale": 0.7}


def linear_glu_arguments(rng: random.Random) -> Arguments:
    found, inputs = glu_arguments(rng), rng.randint(1, 20)
    both = found["x"].shape
    return {**found, "x": torch.randn(both[0], inputs), "weight": torch.randn(both[1], inputs)}


def linear_arguments(rng: random.Random) -> Arguments:
    inputs, outputs = size(rng), size(rng)
    bias = torch.randn(outputs) if rng.random() < 0.5 else None
    return {"x": torch.randn(size(rng), inputs), "weight": torch.randn(outputs, inputs), "bias": bias}


def packed_linear_arguments(rng: random.Random) -> Arguments:
    found = linear_arguments(rng)
    return {"x": found["x"], "weight": found["weight"]}


def loss_arguments(rng: random.Random) -> Arguments:
    rows, vocabulary = size(rng), rng.randint(1, 40)
    targets = torch.randint(0, vocabulary, (rows,))
    return {"logits": torch.randn(rows, vocabulary), "targets": targets, "smoothing": 0.1, "needs_grad": True}


def paired_arguments(rng: random.Random) -> Arguments:
    pairs, vocabulary = size(rng), rng.randint(1, 40)
    targets = torch.randint(0, vocabulary, (2 * pairs,))
    logits = torch.randn(2 * pairs, vocabulary)
    return {"logits": logits, "targets": targets, "smoothing": 0.1, "r_drop": 0.5, "needs_grad": True}


def chunked_arguments(rng: random.Random) -> Arguments:
    rows, vocabulary, width = size(rng), rng.randint(1, 40), rng.randint(1, 10)
    bias = torch.randn(vocabulary) if rng.random() < 0.5 else None
    targets = torch.randint(0, vocabulary, (rows,))
    r_drop = 0.0 if rows % 2 else rng.choice([0.0, 0.5])
    options = {"smoothing": rng.choice([0.0, 0.0, 0.1, 0.1, -0.1]), "r_drop": r_drop}
    return {
        "x": torch.randn(rows, width),
        "weight": torch.randn(vocabulary, width),
        "bias": bias,
        "targets": targets,
        **options,
    }


def top_k_arguments(rng: random.Random) -> Arguments:
    rows, vocabulary = size(rng), rng.randint(1, 60)
    count = rng.randint(1, vocabulary)
    suppressed = [rng.randrange(vocabulary) for _ in range(rng.randint(0, 2))]
    allowed = None
    if rng.random() < 0.4:
        lists = [sorted(rng.sample(range(vocabulary), rng.randint(1, vocabulary))) for _ in range(2)]
        starts = torch.tensor([0, len(lists[0]), len(lists[0]) + len(lists[1])])
        row = torch.tensor([rng.randrange(2) for _ in range(rows)], dtype=torch.int64)
        allowed = AllowedTokens(row, starts, torch.tensor(lists[0] + lists[1]))
    return {"logits": torch.randn(rows, vocabulary), "count": count, "suppressed": suppressed, "allowed": allowed}


def attention_arguments(rng: random.Random) -> Arguments:
    batch, queries, keys, width, depth = size(rng, 4), rng.randint(1, 3), rng.randint(1, 9), rng.randint(1, 20), 5
    vector = torch.randn(width) if rng.random() < 0.5 else None
    return {
        "query": torch.randn(batch, queries, width),
        "keys": torch.randn(batch, keys, width),
        "values": torch.randn(batch, keys, depth),
        "mask": torch.rand(batch, keys) < 0.8,
        "vector": vector,
    }


def cell_arguments(rng: random.Random) -> Arguments:
    batch, width, lstm = size(rng), rng.randint(1, 20), rng.random() < 0.5
    gates = width * (4 if lstm else 3)
    state = RecurrentState(torch.randn(batch, width), torch.randn(batch, width) if lstm else None)
    return {
        "state": state,
        "inputs": torch.randn(batch, gates),
        "recurrent": torch.randn(batch, gates),
        "step_input": torch.randn(batch, gates) if rng.random() < 0.5 else None,
        "input_bias": torch.randn(gates) if rng.random() < 0.5 else None,
        "recurrent_bias": torch.randn(gates) if rng.random() < 0.5 else None,
    }


def scan_arguments(rng: random.Random) -> Arguments:
    batch, length, width, rows = size(rng, 4), rng.randint(1, 6), rng.randint(1, 10), rng.randint(1, 12)
    kind, gates = rng.choice([("lstm", 4), ("gru", 3)])
    order = torch.stack([torch.arange(length)] * batch) if batch else torch.zeros(0, length, dtype=torch.int64)
    for row in order:
        row[rng.randint(1, length) :] = -1
    return {
        "kind": kind,
        "inputs": torch.randn(rows, gates * width),
        "weight": torch.randn(gates * width, width),
        "input_bias": torch.randn(gates * width),
        "recurrent_bias": torch.randn(gates * width),
        "rows": torch.randint(0, rows, (batch, length)),
        "order": order,
        "out": torch.zeros(batch, length, rng.choice([1, 2]) * width)[..., :width],
    }


def layer_arguments(rng: random.Random) -> Arguments:
    batch, length, inputs, width = rng.randint(1, 4), rng.randint(1, 6), rng.randint(1, 9), rng.randint(1, 9)
    kind = rng.choice([torch.nn.LSTM, torch.nn.GRU])
    lengths = torch.randint(1, length + 1, (batch, 1))
    mask = torch.arange(length) < lengths
    return {"layer": kind(inputs, width, batch_first=True), "x": torch.randn(batch, length, inputs), "mask": mask}


def scan_op(**arguments: Any) -> Any:
    """`scan`, with what it wrote to `out`."""
    arguments["out"] = out = arguments["out"] * 1.0 if arguments["out"].requires_grad else arguments["out"]
    return *scan(**arguments), out


def top_k_values(**arguments: Any) -> Tensor:
    """The log-probabilities alone: equal logits may come in any order."""
    return top_k(**arguments)[0]


def masked_recurrent_layer(layer: torch.nn.RNNBase, x: Tensor, mask: Tensor) -> Any:
    outputs, state = recurrent_layer(layer, x, mask)
    return outputs * mask[:, :, None], state


def bidirectional_arguments(rng: random.Random) -> Arguments:
    found = layer_arguments(rng)
    rows, layer = rng.randint(1, 9), found["layer"]
    other = type(layer)(layer.input_size, layer.hidden_size, batch_first=True)
    numbers = torch.randint(0, rows, found["mask"].shape)
    x = torch.randn(rows, layer.input_size)
    return {"forward": layer, "backward": other, "x": x, "rows": numbers, "mask": found["mask"]}


def masked_bidirectional(**arguments: Any) -> Any:
    outputs, *states = bidirectional_layer(**arguments)
    return outputs * arguments["mask"][:, :, None], states


def step_arguments(rng: random.Random) -> Arguments:
    found, batch = layer_arguments(rng), size(rng)
    layer = found["layer"]
    hidden = torch.randn(batch, layer.hidden_size)
    state = RecurrentState(hidden, hidden.clone() if isinstance(layer, torch.nn.LSTM) else None)
    return {"layer": layer, "x": torch.randn(batch, layer.input_size), "state": state}


def fed_arguments(rng: random.Random) -> Arguments:
    found, inputs = cell_arguments(rng), rng.randint(1, 9)
    gates, width = found["inputs"].size(1), found["state"].hidden.size(1)
    return {
        "projected": found["inputs"],
        "step_input": torch.randn(len(found["inputs"]), inputs),
        "state": found["state"],
        "step_input_weight": torch.randn(gates, inputs),
        "recurrent_weight": torch.randn(gates, width),
        "recurrent_bias": torch.randn(gates) if rng.random() < 0.5 else None,
    }


def cache_arguments(rng: random.Random) -> Arguments:
    heads, head, counts = (
        rng.randint(1, 3),
        rng.choice([1, 4, 16, 20]),
        [rng.randint(1, 5) for _ in range(size(rng, 5))],
    )
    width, rows = heads * head, size(rng, 5)
    origin = torch.stack([*(torch.randint(0, count, (rows,)) for count in counts), torch.arange(rows)], 1)
    qkv, bias = torch.randn(rows, 3 * width), torch.randn(3 * width)
    cache = KVCache(origin, Shared((*(torch.randn(count, 3 * width) for count in counts), qkv)))
    if rng.random() < 0.2:
        cache = KVCache(None, Shared(()), torch.randn(rows, len(counts) + 1, 2 * width))
    return {"qkv": qkv, "cache": cache, "bias": bias, "heads": heads, "record": rng.random() < 0.5}


def memory_arguments(rng: random.Random) -> Arguments:
    heads, head, batch = rng.randint(1, 3), rng.choice([1, 4, 16, 20]), rng.randint(0, 3)
    width, counts = heads * head, torch.randint(0, 6, (batch,))
    longest = max(1, *counts.tolist(), 0) + rng.randint(0, 2)
    first, rows = counts.cumsum(0) - counts, int(counts.sum())
    memory = MemoryCache(counts, longest, first, Shared(torch.randn(rows, 2 * width)), None)
    if rng.random() < 0.2:
        memory = MemoryCache(counts, longest, None, Shared(None), torch.randn(batch, longest, 2 * width))
    window = None
    if rng.random() < 0.5:
        starts = (torch.rand(batch) * counts).long()
        window = Window(starts, torch.minimum(counts - starts, torch.randint(1, 4, (batch,))), 3)
    return {
        "query": torch.randn(batch * rng.randint(0, 3), width),
        "query_bias": torch.randn(width),
        "memory": memory,
        "kv_bias": torch.randn(2 * width),
        "heads": heads,
        "window": window,
        "record": rng.random() < 0.5,
    }


def int8_arguments(rng: random.Random) -> Arguments:
    inputs = rng.randint(1, 40)
    return {"x": torch.randn(size(rng), inputs), "weight": torch.randn(rng.randint(1, 40), inputs)}


def int8_op(x: Tensor, weight: Tensor) -> Tensor:
    return int8_linear(x, QuantizedMatrix(weight))


def argmax_op(x: Tensor, weight: Tensor) -> Tensor:
    return argmax_int8(x, QuantizedMatrix(weight))[0]


def dropout_arguments(rng: random.Random) -> Arguments:
    training = rng.random() < 0.8
    return {
        "x": torch.randn(size(rng), size(rng)),
        "probability": rng.choice([0.0, 0.3, 0.9, 0.9, 1.0, -0.1, math.nan]),
        "training": training,
    }


def dropout_op(x: Tensor, probability: float, training: bool) -> Tensor:
    """The kernel drops other entries than the reference; here dropped entries are scaled like the others."""
    out = dropout(x, probability, training)
    return torch.where(out == 0, x * scale_of(probability), out) if training else out


def scale_of(probability: float) -> float:
    return LEVELS / (LEVELS - dropout_threshold(probability))

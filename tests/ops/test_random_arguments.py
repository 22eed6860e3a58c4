"""Every op with random, empty, non-contiguous, wrong-dtype and out-of-range arguments: an exception, or the reference.

Differentiable ops are compared forward and backward. The default run tries 2,300 argument sets; `pytest -m slow
tests/ops` tries 22,700.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from ops.comparison import kernel_and_reference
from saccade.interface import Shared
from saccade.ops.argmax_int8 import argmax_int8, argmax_reference
from saccade.ops.bias_activation import bias_relu
from saccade.ops.cross_entropy import chunked_cross_entropy, loss_and_grad, paired_loss_and_grad
from saccade.ops.dropout import LEVELS, dropout, dropout_threshold
from saccade.ops.glu import bias_glu, linear_glu
from saccade.ops.int8_linear import QuantizedMatrix, int8_linear, int8_linear_reference
from saccade.ops.kernel_prototypes import PROTOTYPES
from saccade.ops.kv_cache import KVCache, MemoryCache
from saccade.ops.kv_cache_attention import Window, kv_cache_attention, memory_attention
from saccade.ops.layer_norm import layer_norm, residual_layer_norm
from saccade.ops.linear import linear, packed_linear
from saccade.ops.packed import PackedLayout
from saccade.ops.recurrent_cells import RecurrentState, recurrent_cell, scan
from saccade.ops.recurrent_layer import bidirectional_layer, fed_recurrent_step, recurrent_layer, recurrent_step
from saccade.ops.single_head_attention import single_head_attention
from saccade.ops.top_k import AllowedTokens, top_k
from saccade.ops.varlen_attention import varlen_cross_attention, varlen_self_attention

pytestmark = pytest.mark.usefixtures("kernels_required")

Arguments = dict[str, Any]
REFUSALS = (ValueError, TypeError, IndexError, RuntimeError, NotImplementedError, UserWarning)


def size(rng: random.Random, most: int = 20) -> int:
    return rng.choice([0, 1, 2, 3, rng.randint(1, most), rng.randint(1, most)])


def layout_arguments(rng: random.Random, mask: Tensor, prefix: str = "") -> Arguments:
    """The parts of a layout, so that each can be replaced by a wrong one; some layouts keep their padding."""
    layout = PackedLayout.of(mask)
    if rng.random() < 0.1:
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
    return varlen_self_attention(qkv, bias, PackedLayout(**layout), heads, causal=causal, record=record)


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
    return varlen_cross_attention(query, query_bias, kv, kv_bias, *layouts, heads)


def layer_norm_arguments(rng: random.Random) -> Arguments:
    rows, width = size(rng), rng.randint(2, 40)
    vectors = {name: torch.randn(width) for name in ("weight", "bias")}
    return {"x": torch.randn(rows, width), **vectors, "epsilon": 1e-5}


def residual_arguments(rng: random.Random) -> Arguments:
    found = layer_norm_arguments(rng)
    sublayer_bias = torch.randn(found["weight"].shape) if rng.random() < 0.7 else None
    probability = rng.choice([0.0, 0.0, 0.3])
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
    # The kernel drops other entries than the reference; its norm is that of its total all the same.
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
    return {"logits": logits, "targets": targets, "smoothing": 0.1, "consistency": 0.5, "needs_grad": True}


def chunked_arguments(rng: random.Random) -> Arguments:
    rows, vocabulary, width = size(rng), rng.randint(1, 40), rng.randint(1, 10)
    bias = torch.randn(vocabulary) if rng.random() < 0.5 else None
    targets = torch.randint(0, vocabulary, (rows,))
    return {"x": torch.randn(rows, width), "weight": torch.randn(vocabulary, width), "bias": bias, "targets": targets}


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
        "fed": torch.randn(batch, gates) if rng.random() < 0.5 else None,
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
        "out": torch.zeros(batch, length, width),
    }


def layer_arguments(rng: random.Random) -> Arguments:
    batch, length, inputs, width = rng.randint(1, 4), rng.randint(1, 6), rng.randint(1, 9), rng.randint(1, 9)
    kind = rng.choice([torch.nn.LSTM, torch.nn.GRU])
    lengths = torch.randint(1, length + 1, (batch, 1))
    mask = torch.arange(length) < lengths
    return {"layer": kind(inputs, width, batch_first=True), "x": torch.randn(batch, length, inputs), "mask": mask}


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
        "fed": torch.randn(len(found["inputs"]), inputs),
        "state": found["state"],
        "fed_weight": torch.randn(gates, inputs),
        "recurrent_weight": torch.randn(gates, width),
        "recurrent_bias": None if found["state"].cell is not None else torch.randn(gates),
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
        cache = KVCache(origin, Shared(()), torch.randn(rows, len(counts) + 1, 2 * width))
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
    return {"x": torch.randn(size(rng), size(rng)), "probability": rng.choice([0.0, 0.3, 0.9]), "training": training}


def dropout_op(x: Tensor, probability: float, training: bool) -> Tensor:
    """The kernel drops other entries than the reference; here dropped entries are scaled like the others."""
    out = dropout(x, probability, training)
    return torch.where(out == 0, x * scale_of(probability), out) if training else out


def scale_of(probability: float) -> float:
    return LEVELS / (LEVELS - dropout_threshold(probability))


OPS: dict[str, tuple[Callable[..., Any], Callable[[random.Random], Arguments]]] = {
    "varlen_self_attention": (self_attention, self_attention_arguments),
    "varlen_cross_attention": (cross_attention, cross_attention_arguments),
    "layer_norm": (layer_norm, layer_norm_arguments),
    "residual_layer_norm": (residual, residual_arguments),
    "bias_relu": (bias_relu, bias_relu_arguments),
    "bias_glu": (bias_glu, glu_arguments),
    "linear_glu": (linear_glu, linear_glu_arguments),
    "linear": (linear, linear_arguments),
    "packed_linear": (packed_linear, packed_linear_arguments),
    "loss_and_grad": (loss_and_grad, loss_arguments),
    "paired_loss_and_grad": (paired_loss_and_grad, paired_arguments),
    "chunked_cross_entropy": (chunked_cross_entropy, chunked_arguments),
    "top_k": (top_k, top_k_arguments),
    "single_head_attention": (single_head_attention, attention_arguments),
    "recurrent_cell": (recurrent_cell, cell_arguments),
    "scan": (scan, scan_arguments),
    "recurrent_layer": (masked_recurrent_layer, layer_arguments),
    "bidirectional_layer": (masked_bidirectional, bidirectional_arguments),
    "recurrent_step": (recurrent_step, step_arguments),
    "fed_recurrent_step": (fed_recurrent_step, fed_arguments),
    "kv_cache_attention": (kv_cache_attention, cache_arguments),
    "memory_attention": (memory_attention, memory_arguments),
    "dropout": (dropout_op, dropout_arguments),
}
DIFFERENTIABLE = {
    *("varlen_self_attention", "varlen_cross_attention", "layer_norm", "residual_layer_norm", "bias_relu", "bias_glu"),
    *("linear_glu", "linear", "packed_linear", "chunked_cross_entropy", "single_head_attention", "recurrent_cell"),
    *("recurrent_layer", "bidirectional_layer", "recurrent_step", "fed_recurrent_step", "dropout"),
    *("kv_cache_attention", "memory_attention"),
}
INT8_OPS = {
    "int8_linear": (int8_op, lambda x, weight: int8_linear_reference(x, weight).float()),
    "argmax_int8": (argmax_op, lambda x, weight: argmax_reference(x, weight)[0]),
}


def tensors_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """All tensors of some arguments, with the path to each; not those of layers."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from tensors_of(part, (*path, key))
    elif isinstance(value, tuple | list):
        for number, part in enumerate(value):
            yield from tensors_of(part, (*path, number))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The arguments with another tensor at a path."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: replaced(value[key], tuple(rest), new)}
    parts = [replaced(part, tuple(rest), new) if number == key else part for number, part in enumerate(value)]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def non_contiguous(x: Tensor) -> Tensor:
    return torch.stack([x, torch.zeros_like(x)], -1)[..., 0]


def mutated(x: Tensor, rng: random.Random) -> Tensor:
    """A tensor that is wrong in one respect, or only laid out in another way."""
    kind = rng.choice(["dtype", "stride", "stride", "shape", "fewer", "rank", "range", "nan", "empty", "expanded"])
    if kind == "dtype":
        return x.to(rng.choice([torch.float64, torch.float16, torch.int32, torch.bool, torch.bfloat16]))
    if kind == "stride" and x.dim():
        return non_contiguous(x)
    if kind == "expanded" and x.dim() and x.numel():
        return x[:1].expand(x.shape)
    if kind == "shape" and x.dim():
        return torch.cat([x, x]) if rng.random() < 0.5 else torch.cat([x, x], -1)
    if kind == "fewer" and x.dim() and len(x):
        return x[:-1]
    if kind == "rank":
        return x[None] if rng.random() < 0.5 or not x.dim() or not len(x) else x[0]
    if kind == "range" and x.dtype == torch.int64 and x.numel():
        x = x.clone()
        x.view(-1)[rng.randrange(x.numel())] = rng.choice([-(2**62), -2, -1, 10**6, 2**62])
        return x
    if kind == "nan" and x.is_floating_point() and x.numel():
        x = x.clone()
        x.view(-1)[rng.randrange(x.numel())] = rng.choice([torch.nan, torch.inf, -torch.inf, 1e38])
        return x
    if kind == "empty" and x.dim():
        return x[:0]
    return x


def attempt(function: Callable[..., Any], arguments: Arguments) -> tuple[Any, BaseException | None]:
    """The result of a function on a copy of its arguments, or the exception that it raised."""
    try:
        return function(**copy.deepcopy(arguments)), None
    except REFUSALS as error:
        return None, error


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The outputs of a function, and the gradients of its floating-point arguments."""

    def call(**arguments: Any) -> Any:
        leaves = []
        for path, x in tensors_of(arguments):
            if x.is_floating_point():
                leaves.append(x.detach().clone().requires_grad_())
                used = leaves[-1] * 1.0  # no leaf: some functions overwrite their arguments
                arguments = replaced(arguments, path, used if x.is_contiguous() else non_contiguous(used))
        outputs = [x for _, x in tensors_of(function(**arguments))]
        total = sum((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in outputs if x.requires_grad)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, Tensor) else ()
        zeros = (torch.zeros_like(leaf) for leaf in leaves)
        return outputs, [zero if x is None else x for x, zero in zip(gradients, zeros, strict=False)]

    return call


def try_argument_sets(name: str, count: int) -> None:
    function, make = OPS[name]
    rng = random.Random(name)
    torch.manual_seed(len(name))
    for _ in range(count):
        arguments = make(rng)
        valid = True
        while rng.random() < 0.5:
            paths = list(tensors_of(arguments))
            path, tensor = rng.choice(paths)
            arguments, valid = replaced(arguments, path, mutated(tensor, rng)), False
        backward = name in DIFFERENTIABLE and rng.random() < 0.5
        call = with_gradients(function) if backward else function
        with torch.set_grad_enabled(backward):
            (found, error), (expected, refusal) = kernel_and_reference(lambda: attempt(call, arguments))  # noqa: B023
        if valid:
            assert error is None, f"{name}: valid arguments were refused: {error}"
            assert refusal is None, f"{name}: the reference refused valid arguments: {refusal}"
        if error is None and refusal is None:
            floats = [x for _, x in tensors_of(arguments) if x.is_floating_point()]
            if all(bool(x.isfinite().all()) and x.abs().amax() < 1e6 for x in floats if x.numel()):
                compare(name, found, expected)


def compare(name: str, found: Any, expected: Any) -> None:
    mine, theirs = [x for _, x in tensors_of(found)], [x for _, x in tensors_of(expected)]
    if name == "top_k":  # equal logits may come in another order
        mine, theirs = mine[:1], theirs[:1]
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        wide = torch.finfo(one.dtype).bits >= 32 if one.is_floating_point() else True
        assert_close(one, other.to(one.dtype), rtol=1e-3 if wide else 2e-2, atol=1e-4 if wide else 1e-2, equal_nan=True)


@pytest.mark.parametrize("name", OPS)
def test_random_arguments(name):
    try_argument_sets(name, 90)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_many_random_arguments(name):
    try_argument_sets(name, 900)


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("name", INT8_OPS)
def test_random_int8_arguments(name):
    try_int8_argument_sets(name, 100)


@pytest.mark.slow
@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("name", INT8_OPS)
def test_many_random_int8_arguments(name):
    try_int8_argument_sets(name, 1000)


def try_int8_argument_sets(name: str, count: int) -> None:
    function, reference = INT8_OPS[name]
    rng = random.Random(name)
    torch.manual_seed(1)
    for _ in range(count):
        arguments, valid = int8_arguments(rng), True
        if rng.random() < 0.5:
            path, tensor = rng.choice(list(tensors_of(arguments)))
            arguments, valid = replaced(arguments, path, mutated(tensor, rng)), False
        with torch.no_grad():
            found, error = attempt(function, arguments)
        assert error is None or not valid
        if valid and found.numel():
            expected = reference(**arguments)
            scale = arguments["x"].norm(dim=1).max() * arguments["weight"].norm(dim=1).max()
            assert float((found - expected).abs().max() / scale) < 0.05


NOT_OF_OPS = {"fail_allocation_after", "encoder_forward", "decoder_step", "search"}
"""A hook of tests, and the kernels that plans call."""


@pytest.mark.usefixtures("int8_required")
def test_these_ops_are_all_that_have_kernels(called_kernels):
    for name in OPS:
        try_argument_sets(name, 40)
    for name in INT8_OPS:
        try_int8_argument_sets(name, 5)
    names = {name.removeprefix("saccade_") for name in PROTOTYPES}
    assert set(called_kernels) == names - NOT_OF_OPS

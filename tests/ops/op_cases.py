"""Each op with the shapes of its arguments, the conditions on their values, and its formula."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ops import naive
from ops.op_arguments import (
    Arguments,
    argmax_op,
    attention_arguments,
    bias_relu_arguments,
    bidirectional_arguments,
    cache_arguments,
    cell_arguments,
    chunked_arguments,
    cross_attention,
    cross_attention_arguments,
    dropout_arguments,
    dropout_op,
    fed_arguments,
    glu_arguments,
    int8_arguments,
    int8_op,
    layer_arguments,
    layer_norm_arguments,
    linear_arguments,
    linear_glu_arguments,
    loss_arguments,
    masked_bidirectional,
    masked_recurrent_layer,
    memory_arguments,
    packed_linear_arguments,
    paired_arguments,
    residual,
    residual_arguments,
    scan_arguments,
    scan_op,
    self_attention,
    self_attention_arguments,
    step_arguments,
    top_k_arguments,
    top_k_values,
)
from saccade.ops.argmax_int8 import argmax_reference
from saccade.ops.bias_activation import bias_relu
from saccade.ops.cross_entropy import chunked_cross_entropy, loss_and_grad, paired_loss_and_grad
from saccade.ops.glu import bias_glu, linear_glu
from saccade.ops.int8_linear import int8_linear_reference
from saccade.ops.kv_cache_attention import kv_cache_attention, memory_attention
from saccade.ops.layer_norm import layer_norm
from saccade.ops.linear import linear, packed_linear
from saccade.ops.recurrent_cells import recurrent_cell
from saccade.ops.recurrent_layer import recurrent_step, two_input_recurrent_step
from saccade.ops.single_head_attention import single_head_attention


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


@dataclass(frozen=True)
class OpCase:
    """An op, its valid arguments, and its formula.

    `shapes` has the sizes of each tensor by its path: `N 3D` is (N, 3·D), `B+1` is one more than B, `...` are any
    leading sizes, `*` is any size. Equal letters are equal sizes. `condition` checks values.
    """

    op: Callable[..., Any]
    arguments: Callable[[random.Random], Arguments]
    formula: Callable[..., Any]
    shapes: dict[str, str]
    condition: Callable[[Arguments, dict[str, int]], bool] = lambda arguments, sizes: True
    differentiable: bool = True

    def shape_of(self, path: tuple[Any, ...]) -> str | None:
        """The entry of `shapes` for a path; the last part of an entry may be a star."""
        name = ".".join(map(str, path))
        return self.shapes.get(name, self.shapes.get(name.rpartition(".")[0] + ".*"))

    def read(self, arguments: Arguments) -> list[tuple[tuple[Any, ...], Tensor]]:
        """The tensors that the op reads, with their paths."""
        return [(path, x) for path, x in tensors_of(arguments) if self.shape_of(path) is not None]

    def accepts(self, arguments: Arguments, original: Arguments) -> bool:
        """Whether arguments are valid, given valid ones that they were made from."""
        before, tensors = dict(tensors_of(original)), self.read(arguments)
        for path, x in tensors:
            if x.is_floating_point() != before[path].is_floating_point():
                return False
            if not x.is_floating_point() and x.dtype != before[path].dtype:
                return False
        if len({x.device for _, x in tensors}) > 1 or len({x.dtype for _, x in tensors if x.is_floating_point()}) > 1:
            return False
        sizes = sizes_of([(str(self.shape_of(path)), x) for path, x in tensors])
        return sizes is not None and self.condition(arguments, sizes)


def sizes_of(shapes: list[tuple[str, Tensor]]) -> dict[str, Any] | None:
    """The size of each letter, or None if tensors contradict their shapes."""
    sizes: dict[str, Any] = {}
    for shape, x in shapes:
        letters, own = shape.split(), list(x.shape)
        if letters and letters[0] == "...":
            count = len(own) - len(letters) + 1
            if count < 0 or sizes.setdefault("...", own[:count]) != own[:count]:
                return None
            letters, own = letters[1:], own[count:]
        if len(letters) != len(own):
            return None
        for letter, size in zip(letters, own, strict=True):
            found = re.fullmatch(r"(\d*)(\w|\*)(\+1)?", letter)
            assert found is not None
            factor, name, one_more = int(found[1] or 1), found[2], bool(found[3])
            if size < one_more or (size - one_more) % factor:
                return None
            if name != "*" and sizes.setdefault(name, (size - one_more) // factor) != (size - one_more) // factor:
                return None
    return sizes


def within(x: Tensor, low: int, high: int) -> bool:
    """Whether all indices are in [low, high)."""
    return all(low <= index < high for index in x.flatten().tolist())


def has_probability(arguments: Arguments, sizes: dict[str, int]) -> bool:
    return 0 <= arguments["probability"] < 1


def has_heads(arguments: Arguments, sizes: dict[str, int]) -> bool:
    return sizes["D"] > 0 and sizes["D"] % arguments["heads"] == 0


def is_layout(arguments: Arguments, prefix: str, packed: int) -> bool:
    """Whether cu_seqlens and indices are those of the mask."""
    cu_seqlens, indices, mask = (arguments[prefix + name] for name in ("cu_seqlens", "indices", "mask"))
    lengths = [mask.size(1) if indices is None else int(row.sum()) for row in mask]
    starts = [sum(lengths[:number]) for number in range(len(lengths) + 1)]
    if cu_seqlens.tolist() != starts or packed != starts[-1]:
        return False
    return indices is None or indices.tolist() == mask.flatten().nonzero()[:, 0].tolist()


def is_self_attention(arguments: Arguments, sizes: dict[str, int]) -> bool:
    return has_heads(arguments, sizes) and is_layout(arguments, "", sizes["N"])


def is_cross_attention(arguments: Arguments, sizes: dict[str, int]) -> bool:
    return is_self_attention(arguments, sizes) and is_layout(arguments, "memory_", sizes["M"])


def has_targets(arguments: Arguments, sizes: dict[str, int]) -> bool:
    pairs = sizes["N"] % 2 == 0 or not arguments.get("r_drop")
    return pairs and 0 <= arguments["smoothing"] <= 1 and within(arguments["targets"], 0, sizes["V"])


def is_top_k(arguments: Arguments, sizes: dict[str, int]) -> bool:
    allowed, vocabulary = arguments["allowed"], sizes["V"]
    if not arguments["count"] <= vocabulary or any(token >= vocabulary for token in arguments["suppressed"]):
        return False
    if allowed is None:
        return True
    row, starts, tokens = (part.tolist() for part in allowed)
    if starts[0] != 0 or starts[-1] != len(tokens) or not all(0 <= number < len(starts) - 1 for number in row):
        return False
    if any(not 0 <= start <= len(tokens) for start in starts) or starts != sorted(set(starts)):
        return False
    lists = [tokens[first:last] for first, last in pairwise(starts)]
    return all(own == sorted(set(own)) for own in lists) and within(allowed.tokens, 0, vocabulary)


def has_gates(arguments: Arguments, sizes: dict[str, int]) -> bool:
    lstm = arguments["state"].cell is not None
    return sizes["G"] == sizes["H"] * (4 if lstm else 3)


def is_scan(arguments: Arguments, sizes: dict[str, int]) -> bool:
    rows, order, out = arguments["rows"], arguments["order"], arguments["out"]
    gates = sizes["G"] == sizes["H"] * (4 if arguments["kind"] == "lstm" else 3)
    written = all(size < 2 or stride for size, stride in zip(out.shape, out.stride(), strict=True))
    return gates and written and within(rows, 0, sizes["R"]) and within(order, -1, sizes["S"])


def is_layer(arguments: Arguments, sizes: dict[str, int]) -> bool:
    layer = arguments.get("layer", arguments.get("forward"))
    rows = arguments.get("rows")
    if arguments["x"].dtype != torch.float32:
        return False
    fits = sizes["I"] == layer.input_size and sizes.get("H", layer.hidden_size) == layer.hidden_size
    return fits and sizes.get("S", 1) > 0 and (rows is None or within(rows, 0, sizes["R"]))


def is_kv_cache(arguments: Arguments, sizes: dict[str, int]) -> bool:
    cache = arguments["cache"]
    if not has_heads(arguments, sizes) or not sizes["T"]:
        return False
    if cache.joined is not None:
        return True
    steps = cache.steps.value
    return len(steps) == sizes["T"] and all(
        within(own, 0, len(step)) for own, step in zip(cache.origin.T, steps, strict=True)
    )


def is_memory(arguments: Arguments, sizes: dict[str, int]) -> bool:
    memory, window = arguments["memory"], arguments["window"]
    if not has_heads(arguments, sizes) or sizes["N"] % max(1, sizes["B"]) or (sizes["N"] and not sizes["B"]):
        return False
    if sizes.get("S", memory.longest) != memory.longest or not within(memory.counts, 0, memory.longest + 1):
        return False
    counts = memory.counts.tolist()
    firsts = [] if memory.padded is not None else memory.first.tolist()
    if any(not 0 <= first <= sizes["M"] - count for first, count in zip(firsts, counts, strict=False)):
        return False
    if window is None:
        return True
    parts = zip(window.starts.tolist(), window.counts.tolist(), counts, strict=True)
    return all(0 <= start <= start + own <= count and own <= window.longest for start, own, count in parts)


def is_int8(arguments: Arguments, sizes: dict[str, int]) -> bool:
    weight = arguments["weight"]
    return weight.dtype == torch.float32 and weight.is_contiguous() and weight.numel() > 0


LAYOUT = {"cu_seqlens": "B+1", "indices": "N", "mask": "B T"}
MEMORY_LAYOUT = {"memory_cu_seqlens": "B+1", "memory_indices": "M", "memory_mask": "B S"}
STATE = {"state.0": "B H", "state.1": "B H"}
GATES = {"inputs": "B G", "recurrent": "B G", "step_input": "B G", "input_bias": "G", "recurrent_bias": "G"}

CASES = {
    "varlen_self_attention": OpCase(
        self_attention,
        self_attention_arguments,
        naive.self_attention,
        {"qkv": "N 3D", "bias": "3D", **LAYOUT},
        is_self_attention,
    ),
    "varlen_cross_attention": OpCase(
        cross_attention,
        cross_attention_arguments,
        naive.cross_attention,
        {"query": "N D", "query_bias": "D", "kv": "M 2D", "kv_bias": "2D", **LAYOUT, **MEMORY_LAYOUT},
        is_cross_attention,
    ),
    "layer_norm": OpCase(layer_norm, layer_norm_arguments, naive.layer_norm, {"x": "N D", "weight": "D", "bias": "D"}),
    "residual_layer_norm": OpCase(
        residual,
        residual_arguments,
        naive.residual_layer_norm,
        {"x": "N D", "sublayer": "N D", "sublayer_bias": "D", "weight": "D", "bias": "D"},
        has_probability,
    ),
    "bias_relu": OpCase(bias_relu, bias_relu_arguments, naive.bias_relu, {"x": "N D", "bias": "D"}),
    "bias_glu": OpCase(
        bias_glu,
        glu_arguments,
        naive.bias_glu,
        {"x": "... 2D", "bias": "2D", "residual": "... D"},
        lambda arguments, sizes: sizes["D"] > 0,
    ),
    "linear_glu": OpCase(
        linear_glu,
        linear_glu_arguments,
        naive.linear_glu,
        {"x": "... I", "weight": "2D I", "bias": "2D", "residual": "... D"},
        lambda arguments, sizes: sizes["D"] > 0,
    ),
    "linear": OpCase(linear, linear_arguments, naive.linear, {"x": "... I", "weight": "O I", "bias": "O"}),
    "packed_linear": OpCase(packed_linear, packed_linear_arguments, naive.linear, {"x": "N I", "weight": "O I"}),
    "loss_and_grad": OpCase(
        loss_and_grad, loss_arguments, naive.loss_and_grad, {"logits": "N V", "targets": "N"}, has_targets, False
    ),
    "paired_loss_and_grad": OpCase(
        paired_loss_and_grad,
        paired_arguments,
        naive.paired_loss_and_grad,
        {"logits": "N V", "targets": "N"},
        has_targets,
        False,
    ),
    "chunked_cross_entropy": OpCase(
        chunked_cross_entropy,
        chunked_arguments,
        naive.chunked_cross_entropy,
        {"x": "N D", "weight": "V D", "bias": "V", "targets": "N"},
        has_targets,
    ),
    "top_k": OpCase(
        top_k_values,
        top_k_arguments,
        naive.top_k,
        {"logits": "N V", "allowed.0": "N", "allowed.1": "L+1", "allowed.2": "A"},
        is_top_k,
        False,
    ),
    "single_head_attention": OpCase(
        single_head_attention,
        attention_arguments,
        naive.single_head_attention,
        {"query": "B W a", "keys": "B S a", "values": "B S d", "mask": "B S", "vector": "a"},
    ),
    "recurrent_cell": OpCase(recurrent_cell, cell_arguments, naive.recurrent_cell, {**STATE, **GATES}, has_gates),
    "scan": OpCase(
        scan_op,
        scan_arguments,
        naive.scan,
        {
            "inputs": "R G",
            "weight": "G H",
            "input_bias": "G",
            "recurrent_bias": "G",
            "rows": "B S",
            "order": "B S",
            "out": "B S H",
        },
        is_scan,
        False,
    ),
    "recurrent_layer": OpCase(
        masked_recurrent_layer, layer_arguments, naive.recurrent_layer, {"x": "B S I", "mask": "B S"}, is_layer
    ),
    "bidirectional_layer": OpCase(
        masked_bidirectional,
        bidirectional_arguments,
        naive.bidirectional_layer,
        {"x": "R I", "rows": "B S", "mask": "B S"},
        is_layer,
    ),
    "recurrent_step": OpCase(recurrent_step, step_arguments, naive.recurrent_step, {"x": "B I", **STATE}, is_layer),
    "two_input_recurrent_step": OpCase(
        two_input_recurrent_step,
        fed_arguments,
        naive.two_input_recurrent_step,
        {
            "projected": "B G",
            "step_input": "B F",
            "step_input_weight": "G F",
            "recurrent_weight": "G H",
            "recurrent_bias": "G",
            **STATE,
        },
        has_gates,
    ),
    "kv_cache_attention": OpCase(
        kv_cache_attention,
        cache_arguments,
        naive.kv_cache_attention,
        {"qkv": "N 3D", "bias": "3D", "cache.0": "N T", "cache.1.0.*": "* 3D", "cache.2": "N T 2D"},
        is_kv_cache,
    ),
    "memory_attention": OpCase(
        memory_attention,
        memory_arguments,
        naive.memory_attention,
        {
            "query": "N D",
            "query_bias": "D",
            "kv_bias": "2D",
            "window.0": "B",
            "window.1": "B",
            "memory.0": "B",
            "memory.2": "B",
            "memory.3.0": "M 2D",
            "memory.4": "B S 2D",
        },
        is_memory,
    ),
    "dropout": OpCase(dropout_op, dropout_arguments, naive.dropout, {"x": "..."}, has_probability),
}
"""All ops with a reference."""

INT8_CASES = {
    "int8_linear": OpCase(
        int8_op, int8_arguments, int8_linear_reference, {"x": "... I", "weight": "O I"}, is_int8, False
    ),
    "argmax_int8": OpCase(
        argmax_op,
        int8_arguments,
        lambda x, weight: argmax_reference(x, weight)[0],
        {"x": "N I", "weight": "O I"},
        is_int8,
        False,
    ),
}
"""Ops that need the int8 kernels; their results have the error of int8."""

"""The formula of each op in float64, sentence by sentence and position by position, without code of the ops.

Each function has the arguments of the op in `op_cases.py`, and returns the same nesting of tensors.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from saccade.ops.dropout import LEVELS


def softmax(scores: Tensor) -> Tensor:
    """The softmax over the last dimension; zeros where all scores are -inf, and of no scores."""
    if not scores.size(-1):
        return scores
    shifted = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e300)).exp()
    total = shifted.sum(-1, keepdim=True)
    return shifted / torch.where(total > 0, total, 1.0)


def attend(query: Tensor, keys: Tensor, values: Tensor, heads: int, *, causal: bool = False) -> tuple[Tensor, Tensor]:
    """Contexts (T, D) and weights (H, T, S) of one sequence: query (T, D), keys and values (S, D)."""
    contexts, weights = [], []
    for q, k, v in zip(query.chunk(heads, 1), keys.chunk(heads, 1), values.chunk(heads, 1), strict=True):
        scores = q @ k.T / q.size(1) ** 0.5
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape, dtype=torch.bool).triu(1), -torch.inf)
        weights.append(softmax(scores))
        contexts.append(weights[-1] @ v)
    return torch.cat(contexts, 1), torch.stack(weights)


def real_positions(cu_seqlens: Tensor, indices: Tensor | None, mask: Tensor) -> list[Tensor]:
    """The rows of the real positions of each sequence: packed, or padded if there are no indices."""
    if indices is None:
        return [number * mask.size(1) + row.nonzero()[:, 0] for number, row in enumerate(mask)]
    return [torch.arange(int(first), int(last)) for first, last in pairwise(cu_seqlens)]


def packed_attention(
    query: Tensor, keys: Tensor, values: Tensor, layout: Any, memory: Any, heads: int, *, causal: bool, record: bool
) -> Any:
    """Contexts (N, D) and padded weights (B, H, T, S); zeros on padding."""
    context = torch.zeros(len(query), query.size(1), dtype=torch.float64)
    (_, _, mask), (_, _, memory_mask) = layout, memory
    weights = torch.zeros(len(mask), heads, mask.size(1), memory_mask.size(1), dtype=torch.float64)
    for number, (own, other) in enumerate(zip(real_positions(*layout), real_positions(*memory), strict=True)):
        contexts, found = attend(query[own], keys[other], values[other], heads, causal=causal)
        context = context.index_put((own,), contexts)
        weights[number, :, : len(own), : len(other)] = found
    return (context, weights) if record else (context, None)


def self_attention(
    qkv: Tensor,
    bias: Tensor,
    heads: int,
    causal: bool,
    record: bool,
    cu_seqlens: Tensor,
    indices: Tensor | None,
    mask: Tensor,
) -> Any:
    layout = cu_seqlens, indices, mask
    query, keys, values = (qkv + bias).chunk(3, 1)
    return packed_attention(query, keys, values, layout, layout, heads, causal=causal, record=record)


def cross_attention(query: Tensor, query_bias: Tensor, kv: Tensor, kv_bias: Tensor, heads: int, **parts: Any) -> Any:
    layout = parts["cu_seqlens"], parts["indices"], parts["mask"]
    memory = parts["memory_cu_seqlens"], parts["memory_indices"], parts["memory_mask"]
    keys, values = (kv + kv_bias).chunk(2, 1)
    return packed_attention(query + query_bias, keys, values, layout, memory, heads, causal=False, record=False)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    centered = x - x.mean(1, keepdim=True)
    return centered / (centered.square().mean(1, keepdim=True) + epsilon).sqrt() * weight + bias


def residual_layer_norm(
    x: Tensor,
    sublayer: Tensor,
    sublayer_bias: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    epsilon: float,
    probability: float,
) -> Any:
    if probability:
        return torch.zeros_like(x)
    total = x + sublayer + (0 if sublayer_bias is None else sublayer_bias)
    return total, layer_norm(total, weight, bias, epsilon)


def bias_relu(x: Tensor, bias: Tensor) -> Tensor:
    return (x + bias) * (x + bias > 0)


def bias_glu(x: Tensor, bias: Tensor, residual: Tensor | None, scale: float) -> Tensor:
    values, gates = (x + bias).chunk(2, -1)
    return (values / (1 + (-gates).exp()) + (0 if residual is None else residual)) * scale


def linear_glu(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, scale: float) -> Tensor:
    return bias_glu(linear(x, weight), bias, residual, scale)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.einsum("...i,oi->...o", x, weight) + (0 if bias is None else bias)


def log_softmax(logits: Tensor) -> Tensor:
    return logits - logits.logsumexp(-1, keepdim=True)


def losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    log_probabilities = log_softmax(logits)
    return -log_probabilities[torch.arange(len(targets)), targets], -log_probabilities.mean(1)


def divergences(logits: Tensor) -> Tensor:
    """The symmetric KL divergence of rows i and n + i of logits (2n, V)."""
    first, second = log_softmax(logits).chunk(2)
    forward, backward = (first.exp() * (first - second)).sum(1), (second.exp() * (second - first)).sum(1)
    return (forward + backward) / 2


def loss_and_grad(logits: Tensor, targets: Tensor, smoothing: float, needs_grad: bool) -> Any:
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        target, mean = losses(leaf, targets)
        (gradient,) = torch.autograd.grad(((1 - smoothing) * target + smoothing * mean).sum(), leaf)
    return target.detach(), mean.detach(), gradient


def paired_loss_and_grad(logits: Tensor, targets: Tensor, smoothing: float, r_drop: float, needs_grad: bool) -> Any:
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        target, mean = losses(leaf, targets)
        divergence = divergences(leaf) if len(leaf) else leaf.new_zeros(0)
        total = ((1 - smoothing) * target + smoothing * mean).sum() + r_drop * divergence.sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    return target.detach(), mean.detach(), gradient, divergence.detach()


def chunked_cross_entropy(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, r_drop: float
) -> Any:
    logits = linear(x, weight, bias)
    target, mean = losses(logits, targets)
    divergence = divergences(logits).sum() if r_drop and len(x) else logits.new_zeros(())
    total = ((1 - smoothing) * target + smoothing * mean).sum() + r_drop * divergence
    return total, target.sum().detach(), divergence.detach()


def top_k(logits: Tensor, count: int, suppressed: list[int], allowed: Any) -> Any:
    values = []
    for number, row in enumerate(logits):
        if allowed is not None:
            which, starts, tokens = allowed
            own = tokens[int(starts[which[number]]) : int(starts[which[number] + 1])]
            row = torch.full_like(row, -torch.inf).index_copy(0, own, row[own])
        row = log_softmax(row)
        row[suppressed] = -torch.inf
        values.append(row.sort(descending=True).values[:count])
    return torch.stack(values) if values else logits.new_zeros(0, count)


def single_head_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, vector: Tensor | None) -> Any:
    pairs = query[:, :, None], keys[:, None]  # (B, W, 1, a), (B, 1, S, a)
    scores = (pairs[0] * pairs[1]).sum(-1) if vector is None else ((pairs[0] + pairs[1]).tanh() * vector).sum(-1)
    weights = softmax(scores.masked_fill(~mask[:, None], -torch.inf))
    return weights @ values, weights


def sigmoid(x: Tensor) -> Tensor:
    return 0.5 + 0.5 * (x / 2).tanh()


def cell(hidden: Tensor, cell_state: Tensor | None, inputs: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor | None]:
    """The formulas at the top of `ops/recurrent_cells.py`; biases are part of inputs and recurrent (B, G·H)."""
    if cell_state is None:
        (r, z, n), (hr, hz, hn) = inputs.chunk(3, 1), recurrent.chunk(3, 1)
        update = sigmoid(z + hz)
        return (1 - update) * (n + sigmoid(r + hr) * hn).tanh() + update * hidden, None
    i, f, g, o = (inputs + recurrent).chunk(4, 1)
    after = sigmoid(f) * cell_state + sigmoid(i) * g.tanh()
    return sigmoid(o) * after.tanh(), after


def recurrent_cell(
    state: Any,
    inputs: Tensor,
    recurrent: Tensor,
    step_input: Tensor | None,
    input_bias: Tensor | None,
    recurrent_bias: Tensor | None,
) -> Any:
    inputs = inputs + (0 if step_input is None else step_input) + (0 if input_bias is None else input_bias)
    return cell(*state, inputs, recurrent + (0 if recurrent_bias is None else recurrent_bias))


def scan(
    kind: str,
    inputs: Tensor,
    weight: Tensor,
    input_bias: Tensor,
    recurrent_bias: Tensor,
    rows: Tensor,
    order: Tensor,
    out: Tensor,
) -> Any:
    hiddens, cells = [], []
    out = out.clone()
    for number in range(len(order)):
        hidden = torch.zeros(1, weight.size(1), dtype=torch.float64)
        memory = torch.zeros_like(hidden) if kind == "lstm" else None
        for position in order[number].tolist():
            if position >= 0:
                own = inputs[rows[number, position]][None] + input_bias
                hidden, memory = cell(hidden, memory, own, hidden @ weight.T + recurrent_bias)
                out[number, position] = hidden[0]
        hiddens.append(hidden)
        cells.append(memory)
    empty = out.new_zeros(0, weight.size(1))
    memory = None if kind == "gru" else torch.cat([empty, *cells])
    return torch.cat([empty, *hiddens]), memory, out


def weights_of(layer: torch.nn.RNNBase) -> list[Tensor]:
    names = "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"
    return [getattr(layer, name).detach().double() for name in names]


def layer_outputs(layer: torch.nn.RNNBase, x: Tensor, mask: Tensor, *, reverse: bool = False) -> tuple[Tensor, Any]:
    """Outputs (B, T, H) at the real positions, 0 elsewhere, and the last state, of x (B, T, inputs)."""
    w, u, b, c = weights_of(layer)
    batch, length = mask.shape
    out = torch.zeros(batch, length, layer.hidden_size, dtype=torch.float64)
    hiddens, cells = [], []
    for number, count in enumerate(mask.sum(1).tolist()):
        hidden = torch.zeros(1, layer.hidden_size, dtype=torch.float64)
        memory = torch.zeros_like(hidden) if isinstance(layer, torch.nn.LSTM) else None
        for position in reversed(range(count)) if reverse else range(count):
            hidden, memory = cell(hidden, memory, x[number, position][None] @ w.T + b, hidden @ u.T + c)
            out = out.index_put((torch.tensor(number), torch.tensor(position)), hidden[0])
        hiddens.append(hidden)
        cells.append(memory)
    empty = x.new_zeros(0, layer.hidden_size)
    memory = torch.cat([empty, *cells]) if isinstance(layer, torch.nn.LSTM) else None
    return out, (torch.cat([empty, *hiddens]), memory)


def recurrent_layer(layer: torch.nn.RNNBase, x: Tensor, mask: Tensor) -> Any:
    return layer_outputs(layer, x, mask)


def bidirectional_layer(
    forward: torch.nn.RNNBase, backward: torch.nn.RNNBase, x: Tensor, rows: Tensor, mask: Tensor
) -> Any:
    x = x[rows]
    (left, end), (right, beginning) = layer_outputs(forward, x, mask), layer_outputs(backward, x, mask, reverse=True)
    return torch.cat([left, right], 2), end, beginning


def recurrent_step(layer: torch.nn.RNNBase, x: Tensor, state: Any) -> Any:
    w, u, b, c = weights_of(layer)
    return cell(*state, x @ w.T + b, state[0] @ u.T + c)


def two_input_recurrent_step(
    projected: Tensor,
    step_input: Tensor,
    state: Any,
    step_input_weight: Tensor,
    recurrent_weight: Tensor,
    recurrent_bias: Tensor | None,
) -> Any:
    recurrent = state[0] @ recurrent_weight.T + (0 if recurrent_bias is None else recurrent_bias)
    return cell(*state, projected + step_input @ step_input_weight.T, recurrent)


def kv_cache_attention(qkv: Tensor, cache: Any, bias: Tensor, heads: int, record: bool) -> Any:
    width = bias.numel() // 3
    contexts, weights = [qkv.new_zeros(0, width)], []
    for number, own in enumerate(qkv):
        if cache.joined is None:
            steps = [step[cache.origin[number, at]] + bias for at, step in enumerate(cache.steps.value)]
            keys, values = torch.stack(steps)[:, width:].chunk(2, 1)
        else:
            keys, values = cache.joined[number].chunk(2, 1)
        context, found = attend((own + bias)[None, :width], keys, values, heads)
        contexts.append(context)
        weights.append(found)
    length = cache.origin.size(1) if cache.joined is None else cache.joined.size(1)
    weights = torch.stack(weights) if weights else qkv.new_zeros(0, heads, 1, length)
    return (torch.cat(contexts), weights) if record else (torch.cat(contexts), None)


def memory_attention(
    query: Tensor, query_bias: Tensor, memory: Any, kv_bias: Tensor, heads: int, window: Any, record: bool
) -> Any:
    contexts, weights = [query.new_zeros(0, query.size(1))], []
    beam = len(query) // max(1, len(memory.counts))
    for number, own in enumerate(query):
        sentence = number // beam
        first, count = 0, int(memory.counts[sentence])
        if window is not None:
            first, count = int(window.starts[sentence]), int(window.counts[sentence])
        if memory.padded is None:
            start = int(memory.first[sentence]) + first
            kv = memory.packed.value[start : start + count] + kv_bias
        else:
            kv = memory.padded[sentence, first : first + count]
        context, found = attend((own + query_bias)[None], *kv.chunk(2, 1), heads)
        contexts.append(context)
        padded = query.new_zeros(heads, 1, memory.longest)
        padded[:, :, first : first + count] = found
        weights.append(padded)
    weights = torch.stack(weights) if weights else query.new_zeros(0, heads, 1, memory.longest)
    return (torch.cat(contexts), weights) if record else (torch.cat(contexts), None)


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x scaled, as `op_arguments.dropout_op` scales the entries that were dropped."""
    return x * (LEVELS / (LEVELS - round(probability * LEVELS))) if training else x

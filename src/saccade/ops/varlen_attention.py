"""Multi-head attention over packed sequences, with FlashAttention's varlen interface (Vaswani et al. 2017, eq. 1).

Queries, keys and values are given as projections without their bias: the kernel adds it while it reads them. The bias
of the keys adds a constant to all scores of a query and has no effect on the softmax.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from saccade.ops.arguments import (
    address,
    require_heads,
    require_probability,
    require_same_dtype_and_device,
    require_shape,
)
from saccade.ops.attention_reference import masked_softmax, merge_heads, split_heads
from saccade.ops.dispatch import runs_on_kernel
from saccade.ops.dropout import dropout as apply_dropout
from saccade.ops.kernel_abi import ProjectedColumn
from saccade.ops.kernel_library import kernel
from saccade.ops.packed import PackedLayout

LONGEST = 512
"""The maximum sequence length for the kernel; PyTorch's fused attention is faster for longer ones."""


class VarlenAttention(NamedTuple):
    """Contexts of packed queries and, if recorded, the attention weights."""

    context: Tensor  # (N, D)
    weights: Tensor | None  # (B, H, T, S), padded


def varlen_self_attention(
    qkv: Tensor,
    bias: Tensor,
    layout: PackedLayout,
    heads: int,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    record: bool = False,
) -> VarlenAttention:
    """Self-attention of packed sequences: qkv (N, 3D) and bias (3D,), queries, keys and values concatenated."""
    op = "varlen_self_attention"
    require_same_dtype_and_device(op, qkv=qkv, bias=bias)
    require_probability(op, "dropout", dropout)
    require_layout(op, layout, qkv.device)
    require_shape(op, "qkv", qkv, layout.total, bias.numel())
    require_shape(op, "bias", bias, None)
    if bias.numel() % 3:
        raise ValueError(f"{op}: a bias of {bias.numel()} entries is not three projections of one width")
    require_heads(op, bias.numel() // 3, heads)
    packed = layout.indices is not None
    if runs_on_kernel(qkv) and packed and layout.longest <= LONGEST and not dropout and not record:
        cu_seqlens = layout.cu_seqlens.contiguous()
        context = SelfAttentionKernel.apply(qkv, bias, cu_seqlens, heads, causal)  # type: ignore[no-untyped-call]
        return VarlenAttention(context, None)
    query, key, value = (qkv + bias).chunk(3, 1)
    return attend_padded(query, key, value, layout, layout, heads, causal=causal, dropout=dropout, record=record)


def varlen_cross_attention(
    query: Tensor,
    query_bias: Tensor,
    kv: Tensor,
    kv_bias: Tensor,
    layout: PackedLayout,
    memory_layout: PackedLayout,
    heads: int,
    *,
    dropout: float = 0.0,
    record: bool = False,
) -> VarlenAttention:
    """Attention of packed queries (N, D) to the packed memory of the same batch, kv (M, 2D), keys and values."""
    op, width = "varlen_cross_attention", query_bias.numel()
    require_same_dtype_and_device(op, query=query, query_bias=query_bias, kv=kv, kv_bias=kv_bias)
    require_probability(op, "dropout", dropout)
    require_layout(op, layout, query.device)
    require_layout(op, memory_layout, query.device)
    require_shape(op, "query_bias", query_bias, None)
    require_shape(op, "query", query, layout.total, width)
    require_shape(op, "kv_bias", kv_bias, 2 * width)
    require_shape(op, "kv", kv, memory_layout.total, 2 * width)
    require_heads(op, width, heads)
    if layout.mask.size(0) != memory_layout.mask.size(0):
        raise ValueError(f"{op}: {layout.mask.size(0)} sequences of queries, {memory_layout.mask.size(0)} of keys")
    short = max(layout.longest, memory_layout.longest) <= LONGEST
    packed = layout.indices is not None and memory_layout.indices is not None
    if runs_on_kernel(query) and packed and short and not dropout and not record:
        layouts = layout.cu_seqlens.contiguous(), memory_layout.cu_seqlens.contiguous()
        context = CrossAttentionKernel.apply(query, query_bias, kv, kv_bias, *layouts, heads)  # type: ignore[no-untyped-call]
        return VarlenAttention(context, None)
    key, value = (kv + kv_bias).chunk(2, 1)
    query = query + query_bias
    return attend_padded(query, key, value, layout, memory_layout, heads, dropout=dropout, record=record)


def require_layout(op: str, layout: PackedLayout, device: torch.device) -> None:
    """Raise TypeError unless a layout is on this device."""
    if layout.mask.device != device:
        raise TypeError(f"{op}: the layout is on {layout.mask.device}, expected {device}")


def attend_padded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    memory_layout: PackedLayout,
    heads: int,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    record: bool = False,
) -> VarlenAttention:
    """The PyTorch reference: pad query (N, D), key and value (M, D), attend, pack the contexts again."""
    queries = split_heads(layout.unpack(query), heads)  # (B, H, T, d)
    keys, values = (split_heads(memory_layout.unpack(part), heads) for part in (key, value))  # (B, H, S, d)
    visible = memory_layout.mask[:, None, None]  # (B, 1, 1, S)
    if causal:
        length = layout.longest
        visible = visible & torch.ones(length, length, dtype=torch.bool, device=visible.device).tril()
    if record or (dropout and query.device.type == "cpu"):  # PyTorch has no fused kernel with dropout on the CPU
        scores = queries @ keys.transpose(-1, -2) / queries.size(-1) ** 0.5  # (B, H, T, S)
        weights = masked_softmax(scores, visible)
        context = apply_dropout(weights, dropout, training=True) @ values
    else:
        weights, context = None, F.scaled_dot_product_attention(queries, keys, values, visible, dropout)
    return VarlenAttention(layout.pack(merge_heads(context)), weights if record else None)


class SelfAttentionKernel(torch.autograd.Function):
    """Self-attention on the kernel."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor, cu_seqlens: Tensor, heads: int, causal: bool) -> Tensor:
        """qkv (N, 3D), bias (3D,), cu_seqlens (B + 1,) to contexts (N, D)."""
        qkv, bias = qkv.contiguous(), bias.contiguous()
        ctx.save_for_backward(qkv, bias, cu_seqlens)
        ctx.heads, ctx.causal = heads, causal
        width = bias.numel() // 3
        out = qkv.new_empty(qkv.size(0), width)
        columns = map(ProjectedColumn.of, torch.split(qkv, width, 1), torch.split(bias, width))
        starts = address(cu_seqlens), address(cu_seqlens)
        shape = cu_seqlens.numel() - 1, len(qkv), len(qkv), heads, width // heads, causal
        kernel("varlen_attention", *shape, *starts, *columns, address(out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradients of qkv and bias from that of the contexts (N, D)."""
        qkv, bias, cu_seqlens = ctx.saved_tensors
        width = bias.numel() // 3
        gradient = gradient.contiguous()
        qkv_grad, bias_grad = torch.empty_like(qkv), torch.empty_like(bias)
        columns = map(ProjectedColumn.of, torch.split(qkv, width, 1), torch.split(bias, width))
        out = map(ProjectedColumn.of, torch.split(qkv_grad, width, 1), torch.split(bias_grad, width))
        shape = cu_seqlens.numel() - 1, len(qkv), len(qkv), ctx.heads, width // ctx.heads, ctx.causal
        starts = address(cu_seqlens), address(cu_seqlens)
        kernel("varlen_attention_backward", *shape, *starts, *columns, address(gradient), *out)
        return qkv_grad, bias_grad, None, None, None


class CrossAttentionKernel(torch.autograd.Function):
    """Cross-attention on the kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        query_bias: Tensor,
        kv: Tensor,
        kv_bias: Tensor,
        cu_seqlens: Tensor,
        memory_cu_seqlens: Tensor,
        heads: int,
    ) -> Tensor:
        """query (N, D) and kv (M, 2D) with their biases to contexts (N, D)."""
        query, query_bias, kv, kv_bias = (part.contiguous() for part in (query, query_bias, kv, kv_bias))
        ctx.save_for_backward(query, query_bias, kv, kv_bias, cu_seqlens, memory_cu_seqlens)
        ctx.heads = heads
        out = torch.empty_like(query)
        columns = query_key_value_columns(query, query_bias, kv, kv_bias)
        starts = address(cu_seqlens), address(memory_cu_seqlens)
        shape = cu_seqlens.numel() - 1, len(query), len(kv), heads, query.size(1) // heads, False
        kernel("varlen_attention", *shape, *starts, *columns, address(out))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """The gradients of query, query_bias, kv and kv_bias from that of the contexts (N, D)."""
        *inputs, cu_seqlens, memory_cu_seqlens = ctx.saved_tensors
        gradient = gradient.contiguous()
        gradients = [torch.empty_like(part) for part in inputs]
        columns, out = query_key_value_columns(*inputs), query_key_value_columns(*gradients)
        rows = len(inputs[0]), len(inputs[2])  # of query and kv
        shape = cu_seqlens.numel() - 1, *rows, ctx.heads, gradient.size(1) // ctx.heads, False
        starts = address(cu_seqlens), address(memory_cu_seqlens)
        kernel("varlen_attention_backward", *shape, *starts, *columns, address(gradient), *out)
        return *gradients, None, None, None


def query_key_value_columns(query: Tensor, query_bias: Tensor, kv: Tensor, kv_bias: Tensor) -> list[ProjectedColumn]:
    """Queries, keys and values as the kernel reads them."""
    width = query_bias.numel()
    values = query, *torch.split(kv, width, 1)
    biases = query_bias, *torch.split(kv_bias, width)
    return [ProjectedColumn.of(*pair) for pair in zip(values, biases, strict=True)]

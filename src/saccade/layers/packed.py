"""A batch without its padding: the real places of all sentences in one column of rows, (N, D) for (B, T, D).

The layers that work place by place do not see the difference; attention stays within each sentence. Sums, norms and
rectifiers run on the kernels, which take the bias of the product before them along: products here have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from saccade.csrc.abi import ProjectedColumn
from saccade.csrc.library import kernel, usable
from saccade.layers.dropout import levels_of
from saccade.layers.in_bytes import bytes_beside
from saccade.layers.rng import draw_seed

LONGEST = 512
"""Beyond so many places in a sentence the library's fused attention is faster; what is packed has fewer."""


@dataclass(frozen=True)
class Packed:
    """Where the sentences of a packed batch are."""

    starts: Tensor  # (B + 1,) the first row of each sentence, and the number of all
    rows: Tensor  # (N,) the place of each row in the padded batch, b·T + t
    shape: torch.Size  # (B, T)

    @classmethod
    def of(cls, mask: Tensor) -> Packed:
        """The places where mask (B, T) is True."""
        starts = torch.zeros(mask.size(0) + 1, dtype=torch.int64)
        torch.cumsum(mask.sum(1), 0, out=starts[1:])
        return cls(starts, mask.flatten().nonzero().squeeze(1), mask.shape)

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, …) to (N, …)."""
        return x.flatten(0, 1).index_select(0, self.rows)

    def unpack(self, rows: Tensor) -> Tensor:
        """(N, D) to (B, T, D), 0 on padding."""
        flat = rows.new_zeros(self.shape.numel(), rows.size(1)).index_copy(0, self.rows, rows)
        return flat.view(*self.shape, -1)


def packs(x: Tensor, length: int) -> bool:
    """Whether sentences of that many places are better packed: there are kernels for it, and they are short."""
    return length <= LONGEST and usable(x)


class SelfAttend(torch.autograd.Function):
    """Each sentence to itself."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, bias: Tensor, starts: Tensor, heads: int, causal: bool) -> Tensor:
        """projected (N, 3D), queries, keys and values side by side, without their bias (3D,)."""
        ctx.save_for_backward(projected, bias, starts)
        ctx.heads, ctx.causal = heads, causal
        width = bias.numel() // 3
        out = projected.new_empty(projected.size(0), width)
        parts = map(ProjectedColumn.of, torch.split(projected, width, 1), torch.split(bias, width))
        places = starts.data_ptr(), starts.data_ptr()
        kernel("varlen_attention", starts.numel() - 1, heads, width // heads, causal, *places, *parts, out.data_ptr())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """gradient (N, D)."""
        projected, bias, starts = ctx.saved_tensors
        width = bias.numel() // 3
        gradient = gradient.contiguous()
        slopes, bias_slopes = torch.empty_like(projected), torch.empty_like(bias)
        parts = map(ProjectedColumn.of, torch.split(projected, width, 1), torch.split(bias, width))
        out = map(ProjectedColumn.of, torch.split(slopes, width, 1), torch.split(bias_slopes, width))
        shape = starts.numel() - 1, ctx.heads, width // ctx.heads, ctx.causal
        places = starts.data_ptr(), starts.data_ptr()
        kernel("varlen_attention_backward", *shape, *places, *parts, gradient.data_ptr(), *out)
        return slopes, bias_slopes, None, None, None


class CrossAttend(torch.autograd.Function):
    """Each sentence to its own memory."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        query_bias: Tensor,
        memory: Tensor,
        memory_bias: Tensor,
        starts: Tensor,
        memory_starts: Tensor,
        heads: int,
    ) -> Tensor:
        """query (N, D); memory (M, 2D), keys and values side by side; both without their bias."""
        ctx.save_for_backward(query, query_bias, memory, memory_bias, starts, memory_starts)
        ctx.heads = heads
        width = query_bias.numel()
        out = torch.empty_like(query)
        parts = map(
            ProjectedColumn.of, (query, *torch.split(memory, width, 1)), (query_bias, *torch.split(memory_bias, width))
        )
        places = starts.data_ptr(), memory_starts.data_ptr()
        kernel("varlen_attention", starts.numel() - 1, heads, width // heads, False, *places, *parts, out.data_ptr())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """gradient (N, D)."""
        query, query_bias, memory, memory_bias, starts, memory_starts = ctx.saved_tensors
        width = query_bias.numel()
        gradient = gradient.contiguous()
        slopes = [torch.empty_like(part) for part in (query, query_bias, memory, memory_bias)]
        parts = map(
            ProjectedColumn.of, (query, *torch.split(memory, width, 1)), (query_bias, *torch.split(memory_bias, width))
        )
        out = map(
            ProjectedColumn.of,
            (slopes[0], *torch.split(slopes[2], width, 1)),
            (slopes[1], *torch.split(slopes[3], width)),
        )
        shape = starts.numel() - 1, ctx.heads, width // ctx.heads, False
        places = starts.data_ptr(), memory_starts.data_ptr()
        kernel("varlen_attention_backward", *shape, *places, *parts, gradient.data_ptr(), *out)
        return *slopes, None, None, None


class BiasRelu(torch.autograd.Function):
    """max(0, x + bias), in place of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        """x (N, D) is written over: what made it must not need it for its gradient, and a product does not."""
        kernel("bias_relu", *x.shape, x.data_ptr(), bias.data_ptr())
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Of x and, summed over the rows, of the bias."""
        (out,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        slopes, bias = torch.empty_like(out), out.new_empty(out.size(1))
        kernel(
            "bias_relu_backward", *out.shape, out.data_ptr(), gradient.data_ptr(), slopes.data_ptr(), bias.data_ptr()
        )
        return slopes, bias


class ResidualNorm(torch.autograd.Function):
    """A residual sum and the layer normalisation that follows it, whosever that is."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sublayer: Tensor,
        bias: Tensor,
        probability: float,
        scale: Tensor,
        shift: Tensor,
        epsilon: float,
    ) -> tuple[Tensor, Tensor]:
        """(x + dropout(sublayer + bias), that normalised); the sum is written over the sublayer, as in `BiasRelu`."""
        ctx.chance = levels_of(probability), draw_seed() if probability else 0
        normal, mean, inverse = torch.empty_like(x), x.new_empty(x.size(0)), x.new_empty(x.size(0))
        given = x.data_ptr(), sublayer.data_ptr(), bias.data_ptr(), *ctx.chance, scale.data_ptr(), shift.data_ptr()
        made = normal.data_ptr(), mean.data_ptr(), inverse.data_ptr()
        kernel("residual_norm", *x.shape, *given, epsilon, *made)
        ctx.mark_dirty(sublayer)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(sublayer, scale, mean, inverse)
        return sublayer, normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_total: Tensor | None, of_normal: Tensor | None) -> tuple[Any, ...]:
        """Of x, of the sublayer and, summed over the rows, of bias, scale and shift."""
        total, scale, mean, inverse = ctx.saved_tensors
        of_normal = torch.zeros_like(total) if of_normal is None else of_normal.contiguous()
        of_total = None if of_total is None else of_total.contiguous()
        of_x, of_sublayer = torch.empty_like(total), torch.empty_like(total)
        of_bias, of_scale, of_shift = (torch.empty_like(scale) for _ in range(3))
        kernel(
            *(
                "residual_norm_backward",
                *total.shape,
                *map(address, (total, scale, mean, inverse, of_total, of_normal)),
            ),
            *(*ctx.chance, *map(address, (of_x, of_sublayer, of_bias, of_scale, of_shift))),
        )
        return of_x, of_sublayer, of_bias, None, of_scale, of_shift, None


class RowNorm(torch.autograd.Function):
    """Layer normalisation of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, epsilon: float) -> Tensor:
        """x (N, D)."""
        normal, mean, inverse = torch.empty_like(x), x.new_empty(x.size(0)), x.new_empty(x.size(0))
        given = x.data_ptr(), None, None, 0, 0, scale.data_ptr(), shift.data_ptr(), epsilon
        kernel("residual_norm", *x.shape, *given, normal.data_ptr(), mean.data_ptr(), inverse.data_ptr())
        ctx.save_for_backward(x, scale, mean, inverse)
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Of x and, summed over the rows, of scale and shift."""
        x, scale, mean, inverse = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_x, of_scale, of_shift = torch.empty_like(x), torch.empty_like(scale), torch.empty_like(scale)
        given = map(address, (x, scale, mean, inverse, None, gradient))
        made = map(address, (of_x, None, None, of_scale, of_shift))
        kernel("residual_norm_backward", *x.shape, *given, 0, 0, *made)
        return of_x, of_scale, of_shift, None


class RowProduct(torch.autograd.Function):
    """x · weight^T of rows, without a bias; the library is faster on a weight that is turned round first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """x (N, D), weight (E, D) to (N, E)."""
        ctx.save_for_backward(x, weight)
        return x @ weight.t().contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Of both."""
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers are; None where there is no tensor."""
    return None if tensor is None else tensor.data_ptr()


class Rows(NamedTuple):
    """What flows between the sublayers of a packed batch."""

    x: Tensor  # (N, D) the sum so far
    normal: Tensor  # (N, D) what the next sublayer reads


def row_product(x: Tensor, linear: nn.Linear) -> Tensor:
    """The linear map of rows (N, D), without its bias."""
    if not torch.is_grad_enabled():  # in decoding there are few rows: it does not pay to turn the weight round
        beside = bytes_beside(linear.weight) if usable(x) else None
        return x @ linear.weight.t() if beside is None else beside.product(x)
    return RowProduct.apply(x, linear.weight)  # type: ignore[no-any-return,no-untyped-call]


def norm_rows(norm: nn.LayerNorm, rows: Tensor) -> Tensor:
    """Layer normalisation of rows (N, D)."""
    return RowNorm.apply(rows, norm.weight, norm.bias, norm.eps)  # type: ignore[no-any-return,no-untyped-call]

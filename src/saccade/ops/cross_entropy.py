"""Cross-entropy with label smoothing, chunk by chunk over the output layer, so that all logits never exist at once.

Smoothing ε spreads ε over the whole vocabulary (Vaswani et al. 2017, section 5.4). The paired variant adds the
symmetric KL divergence of two predictions of one token (R-Drop: Liang et al. 2021, eq. 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from saccade.ops.arguments import (
    address,
    require_indices,
    require_no_gradient,
    require_same_dtype_and_device,
    require_shape,
)
from saccade.ops.dispatch import runs_on_kernel
from saccade.ops.kernel_library import kernel

CHUNK = 1 << 21  # logits at once on a CPU: 8 MB in float32, small enough for a shared cache
LARGE_CHUNK = 1 << 26  # logits at once on other devices


class CrossEntropy(NamedTuple):
    """Sums over a batch."""

    loss: Tensor  # smoothed, with the weighted divergence
    likelihood: Tensor  # -log p of the targets
    divergence: Tensor  # of pairs


class LossAndGrad(NamedTuple):
    """Losses of rows of logits, and the gradient of their sum."""

    target: Tensor  # (n,) -log p of the target
    mean: Tensor  # (n,) mean of -log p over the vocabulary
    gradient: Tensor  # (n, V) of the logits; undefined without `needs_grad`
    divergence: Tensor | None = None  # (n / 2,) of pairs


def chunked_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    *,
    smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> CrossEntropy:
    """The cross-entropy of logits = x (N, D) · weight (V, D)^T + bias (V,) against targets (N,).

    With a weight of `r_drop`, rows i and N/2 + i are a pair, and their divergence is added.
    """
    op = "chunked_cross_entropy"
    require_same_dtype_and_device(op, x=x, weight=weight, bias=bias)
    require_shape(op, "weight", weight, None, None)
    require_shape(op, "x", x, None, weight.size(1))
    if bias is not None:
        require_shape(op, "bias", bias, weight.size(0))
    require_shape(op, "targets", targets, len(x))
    require_indices(op, "targets", targets, weight.size(0), device=x.device)
    if r_drop and len(x) % 2:
        raise ValueError(f"{op}: {len(x)} rows are not pairs")
    require_smoothing(op, smoothing)
    needs_grad = torch.is_grad_enabled()  # inside of `forward` gradients are always disabled
    return CrossEntropy(*ChunkedCrossEntropy.apply(x, weight, bias, targets, smoothing, r_drop, needs_grad))  # type: ignore[no-untyped-call]


class ChunkedCrossEntropy(torch.autograd.Function):
    """The last matrix product of the output layer, fused with the loss.

    The gradient is computed in the forward pass, while the logits of a chunk are in the cache; `backward` scales it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        r_drop: float,
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sum the loss and, if needed, the gradients of x, weight and bias."""
        wide = torch.float32 if x.device.type == "mps" else torch.float64  # mps has no float64
        total, likelihood, divergence = x.new_zeros(3, dtype=wide)
        x_needs, weight_needs, bias_needs = (needs_grad and needed for needed in ctx.needs_input_grad[:3])
        x_grad = torch.empty_like(x) if x_needs else None
        weight_grad = torch.zeros_like(weight) if weight_needs else None
        bias_grad = torch.zeros_like(bias) if bias is not None and bias_needs else None
        count = max(2, (CHUNK if x.device.type == "cpu" else LARGE_CHUNK) // max(1, weight.size(0)))
        buffer = x.new_empty(min(count, len(x)), weight.size(0)) if runs_on_kernel(x) else None
        for rows in chunks(targets, count, paired=r_drop > 0):
            chunk, target = x[rows], targets[rows]
            logits = logits_of(chunk, weight, bias, buffer)
            if r_drop:
                found = paired_loss_and_grad(logits, target, smoothing, r_drop, needs_grad)
                assert found.divergence is not None
                divergence += found.divergence.sum(dtype=wide)
            else:
                found = loss_and_grad(logits, target, smoothing, needs_grad)
            likelihood += found.target.sum(dtype=wide)
            total += (1 - smoothing) * found.target.sum(dtype=wide) + smoothing * found.mean.sum(dtype=wide)
            if x_grad is not None:
                x_grad[rows] = found.gradient @ weight
            if weight_grad is not None and buffer is None:
                weight_grad += found.gradient.t() @ chunk  # under autocast the product has a narrower dtype
            elif weight_grad is not None:
                weight_grad.addmm_(found.gradient.t(), chunk)
            if bias_grad is not None:
                bias_grad += found.gradient.sum(0)
        ctx.gradients = x_grad, weight_grad, bias_grad
        ctx.mark_non_differentiable(likelihood, divergence)
        return (total + r_drop * divergence).float(), likelihood, divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Any, ...]:
        """The gradients that `forward` computed, times the gradient of the loss."""
        return *(None if gradient is None else gradient * scale for gradient in ctx.gradients), None, None, None, None


def chunks(targets: Tensor, count: int, *, paired: bool) -> Iterator[slice | Tensor]:
    """At most `count` rows at a time; pairs, i and N/2 + i, stay together: the first of each, then the second."""
    if not paired:
        yield from (slice(done, done + count) for done in range(0, len(targets), count))
        return
    half = len(targets) // 2
    for done in range(0, half, max(1, count // 2)):
        firsts = torch.arange(done, min(half, done + max(1, count // 2)), device=targets.device)
        yield torch.cat([firsts, half + firsts])


def logits_of(x: Tensor, weight: Tensor, bias: Tensor | None, buffer: Tensor | None) -> Tensor:
    """x · weight^T + bias (n, V), in a buffer if there is one."""
    if buffer is None:
        return F.linear(x, weight, bias)
    if bias is None:
        return torch.mm(x, weight.t(), out=buffer[: len(x)])
    return torch.addmm(bias, x, weight.t(), out=buffer[: len(x)])


def loss_and_grad(logits: Tensor, targets: Tensor, smoothing: float, needs_grad: bool) -> LossAndGrad:
    """Losses of logits (n, V) against targets (n,), and the gradient of the smoothed loss.

    d loss / d logits = softmax - (1 - ε) one-hot - ε / V; the kernel overwrites the logits with it.
    """
    check_logits("loss_and_grad", logits, targets, smoothing)
    if runs_on_kernel(logits) and logits.is_contiguous():
        target, mean, targets = logits.new_empty(len(targets)), logits.new_empty(len(targets)), targets.contiguous()
        inputs, outputs = map(address, (logits, targets)), map(address, (target, mean))
        kernel("cross_entropy", *logits.shape, *inputs, smoothing, needs_grad, *outputs)
        return LossAndGrad(target, mean, logits)
    log_probabilities = logits.float().log_softmax(-1)
    target, mean = losses_of(log_probabilities, targets)
    if needs_grad:
        gradient_(log_probabilities.exp_(), targets, smoothing)
    return LossAndGrad(target, mean, log_probabilities.to(logits.dtype))


def paired_loss_and_grad(
    logits: Tensor, targets: Tensor, smoothing: float, r_drop: float, needs_grad: bool
) -> LossAndGrad:
    """Losses of n pairs, rows i and n + i of logits (2n, V), with their divergence (n,), weighted by `r_drop`."""
    check_logits("paired_loss_and_grad", logits, targets, smoothing)
    if len(targets) % 2:
        raise ValueError(f"paired_loss_and_grad: {len(targets)} rows are not pairs")
    pairs, vocabulary = len(targets) // 2, logits.size(1)
    if runs_on_kernel(logits) and logits.is_contiguous():
        target, mean, divergence = (logits.new_empty(size) for size in (2 * pairs, 2 * pairs, pairs))
        targets = targets.contiguous()
        inputs, outputs = map(address, (logits, targets)), map(address, (target, mean, divergence))
        kernel("paired_cross_entropy", pairs, vocabulary, *inputs, smoothing, r_drop, needs_grad, *outputs)
        return LossAndGrad(target, mean, logits, divergence)
    log_probabilities = logits.float().log_softmax(-1)
    target, mean = losses_of(log_probabilities, targets)
    difference = log_probabilities - log_probabilities.roll(pairs, 0)  # log p - log q, and log q - log p
    gradient = log_probabilities.exp()
    divergences = (gradient * difference).sum(-1, keepdim=True)  # KL(p, q), and KL(q, p)
    if needs_grad:
        of_divergence = gradient * (difference - divergences) + gradient - gradient.roll(pairs, 0)
        gradient_(gradient, targets, smoothing)
        gradient.add_(of_divergence, alpha=r_drop / 2)
    divergence = (divergences[:pairs] + divergences[pairs:]).squeeze(1) / 2
    return LossAndGrad(target, mean, gradient.to(logits.dtype), divergence)


def require_smoothing(op: str, smoothing: float) -> None:
    """Raise ValueError unless the label smoothing is in [0, 1]."""
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"{op}: smoothing is {smoothing}, expected a number in [0, 1]")


def check_logits(op: str, logits: Tensor, targets: Tensor, smoothing: float) -> None:
    """Raise unless logits (n, V) and targets (n,) fit, and every target is an id of the vocabulary."""
    require_same_dtype_and_device(op, logits=logits)
    require_no_gradient(op, logits)
    require_smoothing(op, smoothing)
    require_shape(op, "logits", logits, None, None)
    require_shape(op, "targets", targets, len(logits))
    require_indices(op, "targets", targets, logits.size(1), device=logits.device)


def losses_of(log_probabilities: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """-log p of each target, and the mean of -log p over the vocabulary, from log-probabilities (n, V)."""
    return -log_probabilities.gather(1, targets[:, None]).squeeze(1), -log_probabilities.mean(-1)


def gradient_(probabilities: Tensor, targets: Tensor, smoothing: float) -> None:
    """Overwrite probabilities (n, V) with the gradient of the smoothed loss."""
    columns = targets[:, None]
    probabilities.sub_(smoothing / probabilities.size(-1))
    probabilities.scatter_add_(1, columns, probabilities.new_full(columns.shape, smoothing - 1))


def divergence_of_pairs(logits: Tensor) -> Tensor:
    """(KL(p, q) + KL(q, p)) / 2 of n pairs, rows i and n + i of logits (2n, V): (n,), with PyTorch's gradient."""
    p, q = logits.log_softmax(-1, dtype=torch.float32).chunk(2)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2

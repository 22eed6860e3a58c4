"""Maximum likelihood of the target given the source, with label smoothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from saccade.data.batches import Batch
from saccade.interface import Decodes, Translates
from saccade.kernels import kernel, usable
from saccade.training.objectives.objective import Loss

CHUNK = 1 << 21  # logits held at once on a CPU: 8 MB in float32, small enough to stay in a shared cache
LARGE_CHUNK = 1 << 26  # elsewhere


class Likelihood:
    """Cross-entropy against the target; smoothing ε spreads ε over the whole vocabulary (Vaswani et al. 2017, 5.4)."""

    def __init__(self, label_smoothing: float = 0.0, auxiliary: tuple[str, ...] = ()) -> None:
        """`auxiliary` names the sums of the model's own that are reported; its own loss always counts."""
        self.label_smoothing = label_smoothing
        self.auxiliary = auxiliary
        self.metrics: tuple[str, ...] = ("nll", *auxiliary)
        self.separable = not auxiliary  # how evenly experts share the work is a matter of the whole batch

    def loss(self, model: Translates, batch: Batch) -> Loss:
        """The sum over all real target tokens; padded rows never reach the output layer."""
        memory = model.encode(batch.source)
        decoded = model.decode(batch.prefix, memory)
        real = batch.target_mask.flatten().nonzero().squeeze(1)  # (N,)
        outputs = decoded.outputs.flatten(0, 1).index_select(0, real)  # (N, D)
        targets = batch.target.flatten().index_select(0, real)  # (N,)
        total, likelihood = cross_entropy(model, outputs, targets, self.label_smoothing)
        asked = [part for part in (memory.auxiliary, decoded.auxiliary) if part is not None]  # only in training
        for part in asked:
            total = total + part.loss * targets.numel()
        sums = {name: sum(float(part.sums[name]) for part in asked) for name in self.auxiliary}
        return Loss(total, targets.numel(), {"nll": float(likelihood), **sums})


def cross_entropy(model: Decodes, outputs: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """(smoothed sum, plain sum) of the cross-entropy of a model's outputs (N, D) against targets (N,)."""
    product = model.output_product(outputs)
    if product is None:
        of_target, of_all = losses(model.logits(outputs), targets)
        return ((1 - smoothing) * of_target + smoothing * of_all).sum(), of_target.detach().sum(dtype=torch.float64)
    wanted = torch.is_grad_enabled()  # asked here: inside of `forward` it is always off
    return ChunkedCrossEntropy.apply(*product, targets, smoothing, wanted)  # type: ignore[no-any-return,no-untyped-call]


class ChunkedCrossEntropy(torch.autograd.Function):
    """The last product of the output layer and the loss in one, a few rows at a time.

    The gradient is taken on the way forward, while the logits of a chunk are still in the cache, so that the full
    (N, V) logits never exist; `backward` only scales it.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, table: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, wanted: bool
    ) -> tuple[Tensor, Tensor]:
        """Sum the loss and, if a gradient is asked for, take it chunk by chunk."""
        wide = torch.float32 if rows.device.type == "mps" else torch.float64  # mps has no float64
        total, likelihood = rows.new_zeros(2, dtype=wide)
        of_rows, of_table = (torch.empty_like(rows), torch.zeros_like(table)) if wanted else (None, None)
        of_bias = None if bias is None or not wanted else torch.zeros_like(bias)
        count = max(1, (CHUNK if rows.device.type == "cpu" else LARGE_CHUNK) // table.size(0))
        room = rows.new_empty(min(count, len(rows)), table.size(0)) if usable(rows) else None
        for done in range(0, len(targets), count):
            chunk, target = rows[done : done + count], targets[done : done + count]
            scores = logits_of(chunk, table, bias, room)
            of_target, of_all, slope = losses_and_slope(scores, target, smoothing, wanted)
            likelihood += of_target.sum(dtype=wide)
            total += (1 - smoothing) * of_target.sum(dtype=wide) + smoothing * of_all.sum(dtype=wide)
            if of_rows is None or of_table is None:
                continue
            of_rows[done : done + count] = slope @ table
            if room is None:
                of_table += slope.t() @ chunk  # under autocast the product is narrower than the sum
            else:
                of_table.addmm_(slope.t(), chunk)
            if of_bias is not None:
                of_bias += slope.sum(0)
        ctx.gradients = of_rows, of_table, of_bias
        ctx.mark_non_differentiable(likelihood)
        return total.float(), likelihood

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Any, ...]:
        """The gradient that `forward` took, times the gradient of what came after."""
        return *(None if gradient is None else gradient * scale for gradient in ctx.gradients), None, None, None


def logits_of(rows: Tensor, table: Tensor, bias: Tensor | None, room: Tensor | None) -> Tensor:
    """rows · table^T + bias (n, V), in a tensor that has room for it if there is one."""
    if room is None:
        return F.linear(rows, table, bias)
    if bias is None:
        return torch.mm(rows, table.t(), out=room[: len(rows)])
    return torch.addmm(bias, rows, table.t(), out=room[: len(rows)])


def losses_and_slope(scores: Tensor, targets: Tensor, smoothing: float, slope: bool) -> tuple[Tensor, Tensor, Tensor]:
    """For each row of logits (n, V): -log p of its target, the mean of -log p of all; and the gradient of their sum.

    d loss / d logits = softmax - (1 - ε) one-hot - ε / V; the kernel puts it in the place of the logits.
    """
    if usable(scores):
        of_target, of_all = scores.new_empty(len(targets)), scores.new_empty(len(targets))
        tensors = scores.data_ptr(), targets.data_ptr()
        kernel("cross_entropy", *scores.shape, *tensors, smoothing, slope, of_target.data_ptr(), of_all.data_ptr())
        return of_target, of_all, scores
    target = targets[:, None]
    logs = scores.float().log_softmax(-1)
    of_target, of_all = -logs.gather(1, target).squeeze(1), -logs.mean(-1)
    if slope:
        logs.exp_().sub_(smoothing / logs.size(-1))
        logs.scatter_add_(1, target, logs.new_full(target.shape, smoothing - 1))
    return of_target, of_all, logs.to(scores.dtype)


def losses(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of logits (n, V): -log p of its target, and the mean of -log p of all."""
    logs = scores.log_softmax(-1, dtype=torch.float32)
    return -logs.gather(1, targets[:, None]).squeeze(1), -logs.mean(-1)

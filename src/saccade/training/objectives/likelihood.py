"""Maximum likelihood of the target given the source, with label smoothing, and consistency if asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from saccade.csrc.library import kernel, usable
from saccade.data.sampling.batches import Batch
from saccade.interface import Decodes, Translates
from saccade.training.objectives.objective import Loss

CHUNK = 1 << 21  # logits held at once on a CPU: 8 MB in float32, small enough to stay in a shared cache
LARGE_CHUNK = 1 << 26  # elsewhere


class Likelihood:
    """Cross-entropy against the target; smoothing ε spreads ε over the whole vocabulary (Vaswani et al. 2017, 5.4).

    With a `consistency` α every example is seen twice, each time with other units dropped, and α times the divergence
    of the two predictions of a token is added (R-Drop: Liang et al. 2021, eq. 4; theirs is a sum over both, and so is
    the count here).
    """

    def __init__(
        self, label_smoothing: float = 0.0, auxiliary: tuple[str, ...] = (), *, consistency: float = 0.0
    ) -> None:
        """`auxiliary` names the sums of the model's own that are reported; its own loss always counts."""
        self.label_smoothing = label_smoothing
        self.consistency = consistency
        self.auxiliary = auxiliary
        self.metrics: tuple[str, ...] = ("nll", *(("divergence",) if consistency else ()), *auxiliary)
        self.separable = not auxiliary  # how evenly experts share the work is a matter of the whole batch
        self.passes = 2 if consistency else 1

    def loss(self, model: Translates, batch: Batch) -> Loss:
        """The sum over all real target tokens; padded rows never reach the output layer."""
        batch = twice(batch) if self.consistency else batch
        memory = model.encode(batch.source)
        decoded = model.decode(batch.prefix, memory)
        real = batch.target_mask.flatten().nonzero().squeeze(1)  # (N,)
        outputs = decoded.outputs.flatten(0, 1).index_select(0, real)  # (N, D)
        targets = batch.target.flatten().index_select(0, real)  # (N,)
        total, likelihood, divergence = cross_entropy(model, outputs, targets, self.label_smoothing, self.consistency)
        asked = [part for part in (memory.auxiliary, decoded.auxiliary) if part is not None]  # only in training
        for part in asked:
            total = total + part.loss * targets.numel()
        sums = {name: sum(float(part.sums[name]) for part in asked) for name in self.auxiliary}
        if self.consistency:
            sums["divergence"] = 2 * float(divergence)  # of a pair, which counts as two
        return Loss(total, targets.numel(), {"nll": float(likelihood), **sums})


def twice(batch: Batch) -> Batch:
    """All examples, and then all of them again."""
    rows = torch.arange(batch.target.size(0), device=batch.target.device)
    return batch.take(torch.cat([rows, rows]))


class Sums(NamedTuple):
    """Of a batch."""

    loss: Tensor  # smoothed, with the divergence by its weight
    likelihood: Tensor  # -log p of the targets
    divergence: Tensor  # of pairs


def cross_entropy(model: Decodes, outputs: Tensor, targets: Tensor, smoothing: float, consistency: float = 0.0) -> Sums:
    """The cross-entropy of a model's outputs (N, D) against targets (N,).

    With a weight of `consistency` rows i and N/2 + i are a pair, and their divergence counts.
    """
    product = model.output_product(outputs)
    if product is None:
        logits = model.logits(outputs)
        of_target, of_all = losses(logits, targets)
        apart = divergences(logits) if consistency else of_target.new_zeros(0)
        total = ((1 - smoothing) * of_target + smoothing * of_all).sum() + consistency * apart.sum()
        return Sums(total, of_target.detach().sum(dtype=torch.float64), apart.detach().sum(dtype=torch.float64))
    wanted = torch.is_grad_enabled()  # asked here: inside of `forward` it is always off
    found = ChunkedCrossEntropy.apply(*product, targets, smoothing, consistency, wanted)  # type: ignore[no-untyped-call]
    return Sums(*found)


class ChunkedCrossEntropy(torch.autograd.Function):
    """The last product of the output layer and the loss in one, a few rows at a time.

    The gradient is taken on the way forward, while the logits of a chunk are still in the cache, so that the full
    (N, V) logits never exist; `backward` only scales it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        consistency: float,
        wanted: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sum the loss and, if a gradient is asked for, take it chunk by chunk."""
        wide = torch.float32 if rows.device.type == "mps" else torch.float64  # mps has no float64
        total, likelihood, divergence = rows.new_zeros(3, dtype=wide)
        of_rows, of_table = (torch.empty_like(rows), torch.zeros_like(table)) if wanted else (None, None)
        of_bias = None if bias is None or not wanted else torch.zeros_like(bias)
        count = max(2, (CHUNK if rows.device.type == "cpu" else LARGE_CHUNK) // table.size(0))
        room = rows.new_empty(min(count, len(rows)), table.size(0)) if usable(rows) else None
        for own in chunks(targets, count, paired=consistency > 0):
            chunk, target = rows[own], targets[own]
            scores = logits_of(chunk, table, bias, room)
            if consistency:
                found = paired_losses_and_slope(scores, target, smoothing, consistency, wanted)
                of_target, of_all, slope, apart = found
                divergence += apart.sum(dtype=wide)
            else:
                of_target, of_all, slope = losses_and_slope(scores, target, smoothing, wanted)
            likelihood += of_target.sum(dtype=wide)
            total += (1 - smoothing) * of_target.sum(dtype=wide) + smoothing * of_all.sum(dtype=wide)
            if of_rows is None or of_table is None:
                continue
            of_rows[own] = slope @ table
            if room is None:
                of_table += slope.t() @ chunk  # under autocast the product is narrower than the sum
            else:
                of_table.addmm_(slope.t(), chunk)
            if of_bias is not None:
                of_bias += slope.sum(0)
        ctx.gradients = of_rows, of_table, of_bias
        ctx.mark_non_differentiable(likelihood, divergence)
        return (total + consistency * divergence).float(), likelihood, divergence

    @staticmethod
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Any, ...]:
        """The gradient that `forward` took, times the gradient of what came after."""
        return *(None if gradient is None else gradient * scale for gradient in ctx.gradients), None, None, None, None


def chunks(targets: Tensor, count: int, *, paired: bool) -> Iterator[slice | Tensor]:
    """So many rows at a time at most; pairs, i and N/2 + i, stay together: the first of each, then the second."""
    if not paired:
        yield from (slice(done, done + count) for done in range(0, len(targets), count))
        return
    half = len(targets) // 2
    if len(targets) != 2 * half:
        raise ValueError(f"{len(targets)} rows are no pairs")
    for done in range(0, half, max(1, count // 2)):
        firsts = torch.arange(done, min(half, done + max(1, count // 2)), device=targets.device)
        yield torch.cat([firsts, half + firsts])


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
    logs = scores.float().log_softmax(-1)
    of_target, of_all = of_logs(logs, targets)
    if slope:
        slope_of_(logs.exp_(), targets, smoothing)
    return of_target, of_all, logs.to(scores.dtype)


def of_logs(logs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """For each row of log-probabilities (n, V): -log p of its target, and the mean of -log p of all."""
    return -logs.gather(1, targets[:, None]).squeeze(1), -logs.mean(-1)


def slope_of_(probabilities: Tensor, targets: Tensor, smoothing: float) -> None:
    """The gradient in the place of the probabilities (n, V)."""
    own = targets[:, None]
    probabilities.sub_(smoothing / probabilities.size(-1))
    probabilities.scatter_add_(1, own, probabilities.new_full(own.shape, smoothing - 1))


def paired_losses_and_slope(
    scores: Tensor, targets: Tensor, smoothing: float, consistency: float, slope: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same of n pairs, rows i and n + i of the logits (2n, V), and their divergence (n,), which counts so much."""
    pairs, width = len(targets) // 2, scores.size(1)
    if usable(scores):
        of_target, of_all, apart = scores.new_empty(2 * pairs), scores.new_empty(2 * pairs), scores.new_empty(pairs)
        made = of_target.data_ptr(), of_all.data_ptr(), apart.data_ptr()
        tensors = scores.data_ptr(), targets.data_ptr()
        kernel("paired_cross_entropy", pairs, width, *tensors, smoothing, consistency, slope, *made)
        return of_target, of_all, scores, apart
    logs = scores.float().log_softmax(-1)
    of_target, of_all = of_logs(logs, targets)
    away = logs - logs.roll(pairs, 0)  # log p - log q, and log q - log p
    slopes = logs.exp()
    apart = (slopes * away).sum(-1, keepdim=True)  # KL(p, q), and KL(q, p)
    if slope:
        of_both = slopes * (away - apart) + slopes - slopes.roll(pairs, 0)
        slope_of_(slopes, targets, smoothing)
        slopes.add_(of_both, alpha=consistency / 2)
    return of_target, of_all, slopes.to(scores.dtype), (apart[:pairs] + apart[pairs:]).squeeze(1) / 2


def divergences(scores: Tensor) -> Tensor:
    """(KL(p, q) + KL(q, p)) / 2 of n pairs, rows i and n + i of the logits (2n, V): (n,)."""
    p, q = scores.log_softmax(-1, dtype=torch.float32).chunk(2)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2


def losses(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same of logits (n, V), with a gradient of the library's own."""
    return of_logs(scores.log_softmax(-1, dtype=torch.float32), targets)

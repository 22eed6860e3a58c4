"""Maximum likelihood of the target given the source, with label smoothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from saccade.data.batches import Batch
from saccade.interface import Translates
from saccade.training.objectives.objective import Loss

CHUNK = 1 << 23  # logits held at once: 32 MB in float32, small enough to stay in a shared cache


class Likelihood:
    """Cross-entropy against the target; smoothing ε spreads ε over the whole vocabulary (Vaswani et al. 2017, 5.4)."""

    def __init__(self, label_smoothing: float = 0.0, auxiliary: tuple[str, ...] = ()) -> None:
        """`auxiliary` names the sums of the model's own that are reported; its own loss always counts."""
        self.label_smoothing = label_smoothing
        self.auxiliary = auxiliary
        self.metrics: tuple[str, ...] = ("nll", *auxiliary)

    def loss(self, model: Translates, batch: Batch) -> Loss:
        """The sum over all real target tokens; padded rows never reach the output layer."""
        memory = model.encode(batch.source)
        decoded = model.decode(batch.prefix, memory)
        real = batch.target_mask.flatten().nonzero().squeeze(1)  # (N,)
        outputs = decoded.outputs.flatten(0, 1).index_select(0, real)  # (N, D)
        targets = batch.target.flatten().index_select(0, real)  # (N,)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total, likelihood = cross_entropy(model.logits, parameters, outputs, targets, self.label_smoothing)
        asked = [part for part in (memory.auxiliary, decoded.auxiliary) if part is not None]  # only in training
        for part in asked:
            total = total + part.loss * targets.numel()
        sums = {name: sum(float(part.sums[name]) for part in asked) for name in self.auxiliary}
        return Loss(total, targets.numel(), {"nll": float(likelihood), **sums})


def cross_entropy(
    logits: Callable[[Tensor], Tensor],
    parameters: Sequence[nn.Parameter],
    outputs: Tensor,
    targets: Tensor,
    smoothing: float,
) -> tuple[Tensor, Tensor]:
    """(smoothed sum, plain sum) of the cross-entropy of `logits(outputs)` (N, V) against targets (N,)."""
    wanted = torch.is_grad_enabled()  # asked here: inside of `forward` it is always off
    return ChunkedCrossEntropy.apply(wanted, logits, outputs, targets, smoothing, *parameters)  # type: ignore[no-any-return,no-untyped-call]


class ChunkedCrossEntropy(torch.autograd.Function):
    """Output layer and loss in one, a few rows at a time.

    The gradient is taken on the way forward, while the logits of a chunk are still in the cache, so that the full
    (N, V) logits never exist; `backward` only scales it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        wanted: bool,
        logits: Callable[[Tensor], Tensor],
        outputs: Tensor,
        targets: Tensor,
        smoothing: float,
        *parameters: nn.Parameter,
    ) -> tuple[Tensor, Tensor]:
        """Sum the loss and, if a gradient is asked for, take it chunk by chunk."""
        wide = torch.float32 if outputs.device.type == "mps" else torch.float64  # mps has no float64
        total = outputs.new_zeros((), dtype=wide)
        likelihood = outputs.new_zeros((), dtype=wide)
        output_gradient = torch.empty_like(outputs)
        gradients: list[Tensor | None] = [None] * len(parameters)
        rows = max(1, CHUNK // vocabulary_size(logits, outputs))
        for done in range(0, len(targets), rows):
            with torch.set_grad_enabled(wanted):
                chunk = outputs[done : done + rows].detach().requires_grad_(wanted)
                scores = logits(chunk)  # (n, V)
            target = targets[done : done + rows, None]
            logs = scores.detach().float().log_softmax(-1)
            negative = -logs.gather(1, target).sum(dtype=wide)
            uniform = -logs.mean(-1).sum(dtype=wide)
            likelihood += negative
            total += (1 - smoothing) * negative + smoothing * uniform
            if wanted:
                # d loss / d logits = softmax - (1 - ε) one-hot - ε / V
                slope = logs.exp_().sub_(smoothing / logs.size(-1))
                slope.scatter_add_(1, target, slope.new_full(target.shape, smoothing - 1))
                leaves = [chunk, *parameters]
                found = torch.autograd.grad(scores, leaves, slope.to(scores.dtype), allow_unused=True)
                output_gradient[done : done + rows] = found[0]
                for place, gradient in enumerate(found[1:]):
                    if gradient is not None:
                        old = gradients[place]
                        # Two parameters may share one gradient tensor: each gets a copy before anything is added.
                        gradients[place] = gradient.clone() if old is None else old.add_(gradient)
        ctx.gradients = [output_gradient, *gradients]
        ctx.mark_non_differentiable(likelihood)
        return total.float(), likelihood

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Any, ...]:
        """The gradient that `forward` took, times the gradient of what came after."""
        output_gradient, *gradients = (None if g is None else g * scale for g in ctx.gradients)
        return (None, None, output_gradient, None, None, *gradients)


def vocabulary_size(logits: Callable[[Tensor], Tensor], outputs: Tensor) -> int:
    """The width of the output layer, from no rows at all; autocast must not cache weights without a gradient for it."""
    with torch.autocast(outputs.device.type, enabled=False):
        return logits(outputs[:0].float()).size(-1)

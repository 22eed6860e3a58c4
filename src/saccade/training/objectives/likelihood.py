"""Maximum likelihood of the target given the source: cross-entropy with label smoothing, and R-Drop."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.data.sampling.batches import Batch
from saccade.interface import Decoder, EncoderDecoder
from saccade.ops.cross_entropy import CrossEntropy, chunked_cross_entropy, divergence_of_pairs, losses_of
from saccade.training.objectives.objective import Loss


class Likelihood:
    """Cross-entropy with label smoothing ε over the vocabulary (Vaswani et al. 2017, section 5.4).

    `r_drop` α > 0 is R-Drop (Liang et al. 2021, eq. 4): every example is in the batch twice, with different
    dropout, and α times the divergence of the two predictions of a token is added. As in the paper the loss is a sum
    over both copies, and so is the count.
    """

    def __init__(self, label_smoothing: float = 0.0, auxiliary: tuple[str, ...] = (), *, r_drop: float = 0.0) -> None:
        """`auxiliary` names the model's auxiliary metrics to report; its auxiliary loss is always added."""
        self.label_smoothing = label_smoothing
        self.r_drop = r_drop
        self.auxiliary = auxiliary
        self.metrics: tuple[str, ...] = ("nll", *(("divergence",) if r_drop else ()), *auxiliary)
        self.separable = not auxiliary  # the load balancing of experts depends on the complete batch
        self.passes = 2 if r_drop else 1

    def loss(self, model: EncoderDecoder, batch: Batch) -> Loss:
        """Sum the loss over all target tokens; padding does not reach the output layer."""
        batch = duplicate_batch(batch) if self.r_drop else batch
        memory = model.encode(batch.source)
        decoded = model.decode(batch.prefix, memory)
        real = batch.target_mask.flatten().nonzero().squeeze(1)  # (N,)
        outputs = decoded.outputs.flatten(0, 1).index_select(0, real)  # (N, D)
        targets = batch.target.flatten().index_select(0, real)  # (N,)
        total, likelihood, divergence = cross_entropy(model, outputs, targets, self.label_smoothing, self.r_drop)
        auxiliary = [part for part in (memory.auxiliary, decoded.auxiliary) if part is not None]  # only in training
        for part in auxiliary:
            total = total + part.loss * targets.numel()
        sums = {name: sum(float(part.sums[name]) for part in auxiliary) for name in self.auxiliary}
        if self.r_drop:
            sums["divergence"] = 2 * float(divergence)  # the count has both tokens of a pair
        return Loss(total, targets.numel(), {"nll": float(likelihood), **sums})


def duplicate_batch(batch: Batch) -> Batch:
    """Return the batch concatenated with itself."""
    rows = torch.arange(batch.target.size(0), device=batch.target.device)
    return batch.take(torch.cat([rows, rows]))


def cross_entropy(
    model: Decoder, outputs: Tensor, targets: Tensor, smoothing: float, r_drop: float = 0.0
) -> CrossEntropy:
    """Return the cross-entropy of a model's outputs (N, D) against targets (N,).

    With a weight of `r_drop`, tokens i and N/2 + i are a pair, and their divergence is added.
    """
    projection = model.output_projection(outputs)
    if projection is not None:
        return chunked_cross_entropy(*projection, targets, smoothing=smoothing, r_drop=r_drop)
    logits = model.logits(outputs)
    target, mean = losses_of(logits.log_softmax(-1, dtype=torch.float32), targets)
    divergence = divergence_of_pairs(logits) if r_drop else target.new_zeros(0)
    total = ((1 - smoothing) * target + smoothing * mean).sum() + r_drop * divergence.sum()
    sums = (part.detach().sum(dtype=torch.float64) for part in (target, divergence))
    return CrossEntropy(total, *sums)

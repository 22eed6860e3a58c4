"""A sparsely-gated mixture of experts in place of a feed-forward network (Shazeer et al. 2017, section 2).

y = Σ_i G(x)_i E_i(x) (eq. 1), where each expert E_i is a feed-forward network and all but k of the gates are 0, so that
a place costs k experts however many there are. Departures: instead of the losses of section 4, one loss that keeps the
experts evenly busy and a capacity for each of them, as in the Switch Transformer (Fedus et al. 2021, section 2.2), with
k choices instead of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import Auxiliary
from saccade.ops.rng import normal_like

TILE = 32
"""Rows of one product in evaluation."""

SUMS = ("balance", "dropped", "routed")
"""What a model with experts reports, see `auxiliary_of`."""


class Routing(NamedTuple):
    """How a batch was shared out in training."""

    balance: Tensor  # a scalar, 1 if all experts are equally busy; a gradient flows from it
    dropped: Tensor  # places that an expert had no room for, each counted as 1/k
    routed: Tensor  # real places


class Mixed(NamedTuple):
    """What the experts made of a batch, and in training how it was shared out."""

    output: Tensor  # (B, T, D)
    routing: Routing | None


class MixtureOfExperts(nn.Module):
    """E feed-forward networks, of which a router chooses k for each place.

    In training an expert takes `capacity_factor` times its even share of a batch; what comes later in the sequence is
    dropped, and the residual connection alone carries it on. In evaluation nothing is dropped: a place's output depends
    neither on the batch nor on padding.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        experts: int,
        per_token: int,
        capacity_factor: float = 1.25,
        noise: bool = False,
    ) -> None:
        super().__init__()
        self.experts = experts
        self.per_token = per_token
        self.capacity_factor = capacity_factor
        self.router = nn.Parameter(torch.empty(experts, width))  # W_g
        nn.init.normal_(self.router, std=width**-0.5)
        self.noise = nn.Parameter(torch.empty(experts, width)) if noise else None  # W_noise
        if self.noise is not None:
            nn.init.zeros_(self.noise)
        self.expand = nn.Parameter(torch.empty(experts, width, inner))  # W1 of each expert
        self.expand_bias = nn.Parameter(torch.empty(experts, inner))
        self.contract = nn.Parameter(torch.empty(experts, inner, width))  # W2
        self.contract_bias = nn.Parameter(torch.empty(experts, width))
        bound = math.sqrt(6 / (width + inner))  # each expert begins as a plain feed-forward network does
        for weight in (self.expand, self.contract):
            nn.init.uniform_(weight, -bound, bound)
        for bias in (self.expand_bias, self.contract_bias):
            nn.init.zeros_(bias)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Mixed:
        """x (B, T, D); places where `real` (B, T) is False go to no expert and come out as 0."""
        flat = x.flatten(0, 1)  # (B·T, D)
        scores = self.scores(flat)  # (B·T, E)
        best, chosen = scores.topk(self.per_token, -1)  # (B·T, k)
        gates = self.gates(scores, best)  # (B·T, k)
        # Assignments of a place to an expert, place by place over all sequences: what the capacity leaves out depends
        # on the choices of earlier places alone: the future stays hidden, in training and in the tiles of evaluation.
        order = torch.arange(len(flat), device=x.device).view(x.shape[:2]).t().flatten()
        if real is not None:
            order = order[real.t().flatten()]
        tokens = order.repeat_interleave(self.per_token)  # (A,)
        experts = chosen.index_select(0, order).flatten()  # (A,)
        weights = gates.index_select(0, order).flatten()  # (A,)
        counts = experts.bincount(minlength=self.experts)  # (E,)
        by_expert = experts.argsort(stable=True)
        routing = None
        if self.training:
            room = capacity(self.capacity_factor, self.per_token, len(order), self.experts)
            rank = torch.arange(len(tokens), device=x.device) - (counts.cumsum(0) - counts)[experts[by_expert]]
            routing = Routing(
                balance(scores.index_select(0, order), counts),
                (counts - room).clamp(min=0).sum() / self.per_token,
                counts.sum() / self.per_token,
            )
            by_expert, counts = by_expert[rank < room], counts.clamp(max=room)
        tokens = tokens[by_expert]
        made = self.products(flat.index_select(0, tokens), counts.tolist())  # (A, D), by expert
        weighted = made * weights[by_expert, None].to(made.dtype)
        output = weighted.new_zeros(flat.shape).index_add(0, tokens, weighted)
        return Mixed(output.view(x.shape), routing)

    def scores(self, flat: Tensor) -> Tensor:
        """The router's scores (B·T, E), in training with noise of a learned size if asked for (eq. 4).

        They stay in full precision under autocast: a choice rests on them (Fedus et al. 2021, section 2.4).
        """
        wide = flat.to(torch.promote_types(flat.dtype, torch.float32))
        with torch.autocast(flat.device.type, enabled=False):
            scores = F.linear(wide, self.router.to(wide.dtype))
            if self.noise is None or not self.training:
                return scores
            return scores + normal_like(scores) * F.softplus(F.linear(wide, self.noise.to(wide.dtype)))

    def gates(self, scores: Tensor, best: Tensor) -> Tensor:
        """The softmax over the k best scores (eq. 3 and 5), (B·T, k).

        That of one alone is always 1 and would teach the router nothing; with k = 1 the gate is the probability among
        all experts (Fedus et al. 2021, eq. 1).
        """
        return best.softmax(-1) if self.per_token > 1 else (best - scores.logsumexp(-1, keepdim=True)).exp()

    def products(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows (A, D), the first `counts[0]` for the first expert and so on, each through its expert.

        In training an expert is two products over its rows. The last bits of such a product depend on the number of
        rows, and so on where later places go; in evaluation it is made of tiles of one size, and a row's result is the
        same whatever else there is.
        """
        network = feed if self.training else feed_in_tiles
        weights = zip(*(weight.unbind() for weight in self.stacks()), strict=True)
        parts = rows.split(list(counts))  # type: ignore[no-untyped-call]
        return torch.cat([network(part, *own) for part, own in zip(parts, weights, strict=True)])

    def stacks(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The weights of all experts."""
        return self.expand, self.expand_bias, self.contract, self.contract_bias


def feed(x: Tensor, expand: Tensor, expand_bias: Tensor, contract: Tensor, contract_bias: Tensor) -> Tensor:
    """One expert, x (n, D): FFN(x) = max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2)."""
    return torch.addmm(contract_bias, torch.addmm(expand_bias, x, expand).relu_(), contract)


def feed_in_tiles(x: Tensor, expand: Tensor, expand_bias: Tensor, contract: Tensor, contract_bias: Tensor) -> Tensor:
    """The same as `feed`, `TILE` rows at a time."""
    tiles = F.pad(x, (0, 0, 0, -len(x) % TILE)).view(-1, TILE, x.size(1))
    inner = F.relu(torch.bmm(tiles, expand.expand(len(tiles), -1, -1)) + expand_bias)  # (n, TILE, inner)
    outer = torch.bmm(inner, contract.expand(len(tiles), -1, -1)) + contract_bias  # (n, TILE, D)
    return outer.flatten(0, 1)[: len(x)]


def capacity(factor: float, per_token: int, tokens: int, experts: int) -> int:
    """The places that an expert takes of a batch (Fedus et al. 2021, eq. 3, times k)."""
    return math.ceil(min(factor * per_token * tokens / experts, tokens))


def balance(scores: Tensor, counts: Tensor) -> Tensor:
    """E Σ_i f_i P_i: the share of the places that expert i gets, and its mean probability (Fedus et al. 2021, eq. 4-6).

    scores (n, E), counts (E,); 1 if both are even, E if one expert gets all. The weight α comes later.
    """
    shares = counts / counts.sum().clamp(min=1)
    probabilities = scores.softmax(-1).sum(0) / max(1, len(scores))
    return counts.numel() * (shares * probabilities).sum()


def auxiliary_of(routings: Iterable[Routing | None], weight: float) -> Auxiliary | None:
    """What a stack of layers asks for: the balance of each layer with experts, times the weight; None without such.

    The sums are over places: `dropped / routed` is the share that found no room and `balance / routed` the balance,
    both as means over the layers.
    """
    found = [routing for routing in routings if routing is not None]
    if not found:
        return None
    balances, dropped, routed = (torch.stack(parts) for parts in zip(*found, strict=True))
    means = ((balances * routed).mean(), dropped.mean(), routed.mean())
    return Auxiliary(weight * balances.sum(), {name: mean.detach() for name, mean in zip(SUMS, means, strict=True)})

"""A sparsely-gated mixture of experts in place of a feed-forward network (Shazeer et al. 2017, section 2).

y = Σ_i G(x)_i E_i(x) (eq. 1), where each expert E_i is a feed-forward network and all but k of the gates are 0, so that
a token costs k experts however many there are. Departures: instead of the losses of section 4, one loss that keeps the
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
from saccade.layers.residual import SublayerOutput
from saccade.ops.packed import PackedLayout
from saccade.ops.rng import normal_like

TILE = 32
"""Rows of one product in evaluation."""

SUMS = ("balance", "dropped", "routed")
"""Names of the auxiliary metrics of a model with experts, see `auxiliary_loss`."""


class Routing(NamedTuple):
    """How a batch was distributed over the experts in training."""

    balance: Tensor  # a scalar, 1 if all experts are equally busy; differentiable
    dropped: Tensor  # tokens that an expert had no room for, each counted as 1/k
    routed: Tensor  # all tokens


class MixtureOfExperts(nn.Module):
    """E feed-forward networks, of which a router chooses k for each token.

    In training an expert takes `capacity_factor` times its even share of a batch; later positions beyond that are
    dropped, and only the residual connection carries them on. In evaluation nothing is dropped: a token's output does
    not depend on the batch.
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

    def forward(self, x: Tensor, layout: PackedLayout | None = None) -> SublayerOutput:
        """x (N, D) packed; without a layout all tokens are at one position."""
        scores = self.scores(x)  # (N, E)
        best, chosen = scores.topk(self.per_token, -1)  # (N, k)
        gates = self.gates(scores, best)  # (N, k)
        # Assignments of a token to an expert, position by position over all sequences: what exceeds the capacity then
        # depends on the choices of earlier positions only, and the future stays hidden.
        order = torch.arange(len(x), device=x.device) if layout is None else layout.positions().argsort(stable=True)
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
        outputs = self.products(x.index_select(0, tokens), counts.tolist())  # (A, D), by expert
        weighted = outputs * weights[by_expert, None].to(outputs.dtype)
        return SublayerOutput(weighted.new_zeros(x.shape).index_add(0, tokens, weighted), None, routing=routing)

    def scores(self, x: Tensor) -> Tensor:
        """The router's scores (N, E), in training with noise of a learned scale if configured (eq. 4).

        They stay in full precision under autocast, because they decide a choice (Fedus et al. 2021, section 2.4).
        """
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        with torch.autocast(x.device.type, enabled=False):
            scores = F.linear(wide, self.router.to(wide.dtype))
            if self.noise is None or not self.training:
                return scores
            return scores + normal_like(scores) * F.softplus(F.linear(wide, self.noise.to(wide.dtype)))

    def gates(self, scores: Tensor, best: Tensor) -> Tensor:
        """The softmax over the k best scores (eq. 3 and 5), (N, k).

        With k = 1 it would always be 1 and give the router no gradient; the gate is then the probability among all
        experts (Fedus et al. 2021, eq. 1).
        """
        return best.softmax(-1) if self.per_token > 1 else (best - scores.logsumexp(-1, keepdim=True)).exp()

    def products(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Rows (A, D), the first `counts[0]` for the first expert and so on, each through its expert.

        In training an expert is two products over its rows. The last bits of such a product depend on the number of
        rows, and so on the experts of later positions; in evaluation it is computed in tiles of one size, so that a
        row's result does not depend on other rows.
        """
        network = expert_forward if self.training else expert_forward_tiled
        weights = zip(*(weight.unbind() for weight in self.stacks()), strict=True)
        parts = rows.split(list(counts))  # type: ignore[no-untyped-call]
        return torch.cat([network(part, *own) for part, own in zip(parts, weights, strict=True)])

    def stacks(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The weights of all experts."""
        return self.expand, self.expand_bias, self.contract, self.contract_bias


def expert_forward(x: Tensor, expand: Tensor, expand_bias: Tensor, contract: Tensor, contract_bias: Tensor) -> Tensor:
    """One expert, x (n, D): FFN(x) = max(0, x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2)."""
    return torch.addmm(contract_bias, torch.addmm(expand_bias, x, expand).relu_(), contract)


def expert_forward_tiled(
    x: Tensor, expand: Tensor, expand_bias: Tensor, contract: Tensor, contract_bias: Tensor
) -> Tensor:
    """One expert, `TILE` rows of x (n, D) at a time."""
    tiles = F.pad(x, (0, 0, 0, -len(x) % TILE)).view(-1, TILE, x.size(1))
    inner = F.relu(torch.bmm(tiles, expand.expand(len(tiles), -1, -1)) + expand_bias)  # (n, TILE, inner)
    outer = torch.bmm(inner, contract.expand(len(tiles), -1, -1)) + contract_bias  # (n, TILE, D)
    return outer.flatten(0, 1)[: len(x)]


def capacity(factor: float, per_token: int, tokens: int, experts: int) -> int:
    """The number of tokens that an expert takes of a batch (Fedus et al. 2021, eq. 3, times k)."""
    return math.ceil(min(factor * per_token * tokens / experts, tokens))


def balance(scores: Tensor, counts: Tensor) -> Tensor:
    """E Σ_i f_i P_i: the share of the tokens that expert i gets, and its mean probability (Fedus et al. 2021, eq. 4-6).

    scores (n, E), counts (E,); 1 if both are even, E if one expert gets all. `auxiliary_loss` applies the weight α.
    """
    shares = counts / counts.sum().clamp(min=1)
    probabilities = scores.softmax(-1).sum(0) / max(1, len(scores))
    return counts.numel() * (shares * probabilities).sum()


def auxiliary_loss(routings: Iterable[Routing | None], weight: float) -> Auxiliary | None:
    """The balance loss of a stack of layers, times its weight; None for layers without experts.

    The sums are over tokens: `dropped / routed` is the share of tokens over capacity and `balance / routed` the
    balance, both as means over the layers.
    """
    found = [routing for routing in routings if routing is not None]
    if not found:
        return None
    balances, dropped, routed = (torch.stack(parts) for parts in zip(*found, strict=True))
    means = ((balances * routed).mean(), dropped.mean(), routed.mean())
    return Auxiliary(weight * balances.sum(), {name: mean.detach() for name, mean in zip(SUMS, means, strict=True)})

"""Muon: momentum with orthogonalized updates for weight matrices (Jordan et al. 2024), Adam for the other parameters.

The momentum of a matrix has a few large singular values; orthogonalization gives all directions the same size. This
suits matrices that multiply activations. Lookup tables (embeddings, positions, the output layer) and vectors use Adam.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

FUSED = {"query_key_value.weight": 3, "key_value.weight": 2}
"""Fused projections and their number of matrices; each matrix is orthogonalized separately."""

NON_MATRIX_SUFFIXES = ("table", "bias", "depthwise")
"""Suffixes of two-dimensional parameters that are not linear maps."""

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the Newton-Schulz polynomial; steep at 0, so small values grow fast
ITERATIONS = 5
ADAM_RMS = 0.2  # typical RMS of Adam's updates (Liu et al. 2025): one learning rate suits both


class Muon(torch.optim.Optimizer):
    """Optimizer with two parameter groups: matrices (Muon) and all others (AdamW)."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        momentum: float,
        betas: tuple[float, float],
        epsilon: float,
        weight_decay: float,
    ) -> None:
        named = list(parameters)
        matrices = [(name, parameter) for name, parameter in named if is_matrix(name, parameter)]
        self.parts: dict[Tensor, int] = {parameter: matrix_count(name) for name, parameter in matrices}
        others = [parameter for _, parameter in named if parameter not in self.parts]
        groups = [{"params": group} for group in ([parameter for _, parameter in matrices], others) if group]
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})
        self.momentum, self.betas, self.epsilon = momentum, betas, epsilon

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            given = [parameter for parameter in group["params"] if parameter.grad is not None]
            matrices = [parameter for parameter in given if parameter in self.parts]
            self.step_matrices(matrices, group["lr"], group["weight_decay"])
            self.step_adam([p for p in given if p not in self.parts], group["lr"], group["weight_decay"])

    def step_matrices(self, matrices: Sequence[Tensor], rate: float, decay: float) -> None:
        """Update with orthogonalized Nesterov momentum, scaled to Adam's RMS; equal shapes are batched."""
        together: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for matrix in matrices:
            assert matrix.grad is not None
            state = self.state[matrix]
            if not state:
                state["momentum"] = torch.zeros_like(matrix)
            state["momentum"].lerp_(matrix.grad, 1 - self.momentum)
            ahead = matrix.grad.lerp(state["momentum"], self.momentum)
            matrix.mul_(1 - rate * decay)
            count = self.parts[matrix]
            for weights, direction in zip(split_matrices(matrix, count), split_matrices(ahead, count), strict=True):
                together[weights.size(0), weights.size(1)].append((weights, direction))
        for (height, width), pairs in together.items():
            directions = orthogonalize(torch.stack([direction for _, direction in pairs]))
            size = -rate * ADAM_RMS * math.sqrt(max(height, width))
            for (weights, _), direction in zip(pairs, directions, strict=True):
                weights.add_(direction, alpha=size)

    def step_adam(self, parameters: Sequence[Tensor], rate: float, decay: float) -> None:
        """Update with fused AdamW."""
        for parameter in parameters:
            if not self.state[parameter]:
                zeros = torch.zeros((), dtype=torch.float32, device=parameter.device)
                moments = torch.zeros_like(parameter), torch.zeros_like(parameter)
                self.state[parameter] |= {"step": zeros, "exp_avg": moments[0], "exp_avg_sq": moments[1]}
        if parameters:
            kept = [[self.state[p][key] for p in parameters] for key in ("exp_avg", "exp_avg_sq", "step")]
            adamw(
                list(parameters),
                [p.grad for p in parameters if p.grad is not None],
                kept[0],
                kept[1],
                [],
                kept[2],
                fused=True,
                amsgrad=False,
                beta1=self.betas[0],
                beta2=self.betas[1],
                lr=rate,
                weight_decay=decay,
                eps=self.epsilon,
                maximize=False,
            )


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Return whether a parameter is a matrix, or a stack of matrices (experts); lookup tables are not."""
    return parameter.ndim in (2, 3) and min(parameter.shape[-2:]) > 1 and not name.endswith(NON_MATRIX_SUFFIXES)


def split_matrices(parameter: Tensor, parts: int) -> Sequence[Tensor]:
    """Return views of the single matrices of a parameter."""
    return parameter.unbind() if parameter.ndim == 3 else parameter.chunk(parts)


def matrix_count(name: str) -> int:
    """Return the number of matrices in a (fused) parameter of this name."""
    return next((parts for ending, parts in FUSED.items() if name.endswith("." + ending)), 1)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrices of a stack (K, M, N); singular values become about 0.7 to 1.2.

    Five Newton-Schulz iterations: a polynomial of the matrix that moves its singular values to 1.
    """
    if matrices.size(1) > matrices.size(2):
        return orthogonalize(matrices.mT).mT  # M <= N: the smaller Gram matrix
    a, b, c = COEFFICIENTS
    x: Tensor = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT  # (K, M, M)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x

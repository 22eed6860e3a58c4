"""Muon: momentum whose every matrix is made orthogonal before it is applied (Jordan et al. 2024); Adam for the rest.

A gradient's few large directions drown the many small ones; orthogonal, all count alike. The product of a matrix of
weights with a vector is what it is for, so tables (embeddings, positions, the output layer) and vectors stay with Adam.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

FUSED = {"query_key_value.weight": 3, "key_value.weight": 2}
"""Matrices that are several side by side, each orthogonal by itself."""

NO_MATRICES = ("table", "places", "bias", "depthwise")
"""How the names of parameters end that have rows, but do not map vectors to vectors."""

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the polynomial; steepest at 0, so that small directions grow fastest
ITERATIONS = 5
LIKE_ADAM = 0.2  # the root mean square of Adam's steps, by experience (Liu et al. 2025): one learning rate suits both


class Muon(torch.optim.Optimizer):
    """Two groups: the matrices, and all else."""

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
        self.parts: dict[Tensor, int] = {parameter: parts_of(name) for name, parameter in matrices}
        others = [parameter for _, parameter in named if parameter not in self.parts]
        groups = [{"params": group} for group in ([parameter for _, parameter in matrices], others) if group]
        super().__init__(groups, {"lr": 0.0, "weight_decay": weight_decay})
        self.momentum, self.betas, self.epsilon = momentum, betas, epsilon

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all parameters that have a gradient."""
        for group in self.param_groups:
            given = [parameter for parameter in group["params"] if parameter.grad is not None]
            matrices = [parameter for parameter in given if parameter in self.parts]
            self.step_matrices(matrices, group["lr"], group["weight_decay"])
            self.step_others([p for p in given if p not in self.parts], group["lr"], group["weight_decay"])

    def step_matrices(self, matrices: Sequence[Tensor], rate: float, decay: float) -> None:
        """Nesterov's momentum, orthogonal, in steps as large as Adam's; matrices of one shape are done together."""
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
            for weights, direction in zip(single(matrix, count), single(ahead, count), strict=True):
                together[weights.size(0), weights.size(1)].append((weights, direction))
        for (height, width), pairs in together.items():
            directions = orthogonal(torch.stack([direction for _, direction in pairs]))
            size = -rate * LIKE_ADAM * math.sqrt(max(height, width))
            for (weights, _), direction in zip(pairs, directions, strict=True):
                weights.add_(direction, alpha=size)

    def step_others(self, parameters: Sequence[Tensor], rate: float, decay: float) -> None:
        """AdamW, on the fused kernel."""
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
    """Whether a parameter is a matrix or, of several experts, a stack of them; a table is looked up row by row."""
    return parameter.ndim in (2, 3) and min(parameter.shape[-2:]) > 1 and not name.endswith(NO_MATRICES)


def single(parameter: Tensor, parts: int) -> Sequence[Tensor]:
    """The matrices that a parameter holds."""
    return parameter.unbind() if parameter.ndim == 3 else parameter.chunk(parts)


def parts_of(name: str) -> int:
    """How many matrices one parameter holds."""
    return next((parts for ending, parts in FUSED.items() if name.endswith("." + ending)), 1)


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest orthogonal matrices to a stack (K, M, N), nearly: all singular values between about 0.7 and 1.2.

    A polynomial of the matrix that draws singular values to 1, five times over (Newton-Schulz).
    """
    if matrices.size(1) > matrices.size(2):
        return orthogonal(matrices.mT).mT  # at most as high as wide: the smaller square
    a, b, c = COEFFICIENTS
    x: Tensor = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT  # (K, M, M)
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x

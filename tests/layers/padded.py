"""Layers over packed sequences, called with padded batches; the largest tensor of a computation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from saccade.layers.mixture_of_experts import Routing
from saccade.layers.residual import SublayerOutput
from saccade.ops.packed import PackedLayout


class PaddedOutput(NamedTuple):
    """The output of a sublayer with the bias of its last linear layer."""

    values: Tensor  # (B, T, D)
    weights: Tensor | None
    routing: Routing | None


def run_padded(
    layer: torch.nn.Module,
    x: Tensor,
    mask: Tensor | None = None,
    *,
    memory: Tensor | None = None,
    memory_mask: Tensor | None = None,
    **options: bool,
) -> PaddedOutput:
    """Pack x (B, T, D) and, if given, the memory (B, S, D), run a layer and unpack its output."""
    layout = layout_of(x, mask)
    given = () if memory is None else packed_memory(memory, memory_mask)
    found = layer(layout.pack(x), layout, *given, **options)
    return PaddedOutput(layout.unpack(with_bias(found)), found.weights, found.routing)


def packed_memory(memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, PackedLayout]:
    """A padded memory (B, S, D) as cross-attention takes it."""
    layout = layout_of(memory, mask)
    return layout.pack(memory), layout


def layout_of(x: Tensor, mask: Tensor | None) -> PackedLayout:
    return PackedLayout.of(torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask)


def with_bias(output: SublayerOutput) -> Tensor:
    """(N, D), as the residual connection adds it."""
    return output.values if output.bias is None else output.values + output.bias


class LargestTensor(TorchDispatchMode):
    """The size of the largest tensor that any operation makes, forward and backward."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.entries = max(self.entries, leaf.numel())
        return made

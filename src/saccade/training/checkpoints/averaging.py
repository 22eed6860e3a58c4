"""The average of several sets of weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.folder import damaged, verify
from saccade.model_folder import WEIGHTS, load_tensors


def average_weights(folders: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in model folders or checkpoints, summed in float64 (Vaswani et al. 2017, section 6.1)."""
    if not folders:
        raise SaccadeError("there is nothing to average", do="name model folders or checkpoints")
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for folder in folders:
        verify(folder, WEIGHTS)
        tensors = load_tensors(folder / WEIGHTS)
        if sums and tensors.keys() != sums.keys():
            raise damaged(folder / WEIGHTS, "holds other tensors than the first: they are not of one model")
        for name, tensor in tensors.items():
            if name in sums and sums[name].shape != tensor.shape:
                raise damaged(folder / WEIGHTS, f"the tensor '{name}' has another shape than in the first")
            kinds[name] = tensor.dtype
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
    return {name: (total / len(folders)).to(kinds[name]) for name, total in sums.items()}

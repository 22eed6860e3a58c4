"""Checkpoint averaging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from saccade.errors import SaccadeError
from saccade.folder import damaged, verify
from saccade.model_folder import WEIGHTS, load_tensors


def average_weights(folders: Sequence[Path], advance: Callable[[int], None] = lambda count: None) -> dict[str, Tensor]:
    """Average the weights of model folders or checkpoints in float64 (Vaswani et al. 2017, section 6.1).

    `advance` is called after each folder.
    """
    if not folders:
        raise SaccadeError("no weights to average", hint="name model folders or checkpoints")
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for folder in folders:
        verify(folder, WEIGHTS)
        tensors = load_tensors(folder / WEIGHTS)
        if sums and tensors.keys() != sums.keys():
            raise damaged(folder / WEIGHTS, "tensor names differ from the first folder: another model")
        for name, tensor in tensors.items():
            if name in sums and sums[name].shape != tensor.shape:
                raise damaged(folder / WEIGHTS, f"the shape of tensor '{name}' differs from the first folder")
            dtypes[name] = tensor.dtype
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
        advance(1)
    return {name: (total / len(folders)).to(dtypes[name]) for name, total in sums.items()}

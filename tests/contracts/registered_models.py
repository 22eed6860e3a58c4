"""The models that contract tests run on: the miniature of each registered family, and its variants."""

from __future__ import annotations

from typing import Any

import torch

from saccade.config import build
from saccade.data.sampling.batches import Batch
from saccade.interface import Source, VocabularySizes
from saccade.layers.masks import padding_mask
from saccade.models.registry import FAMILIES, Choice, load_family
from saccade.symbols import Symbols

SIZES = VocabularySizes(source=23, target=23, joint=True)
SEPARATE = VocabularySizes(source=19, target=23, joint=False)


def registered_models() -> list[Any]:
    """Pytest parameters (family, changed settings) for all models under test."""
    import pytest

    found = [pytest.param((name, {}), id=name) for name in FAMILIES]
    for name in FAMILIES:
        for changes in load_family(name).variants:
            label = ",".join(f"{key}={value}" for key, value in changes.items())
            found.append(pytest.param((name, dict(changes)), id=f"{name}[{label}]"))
    return found


def choice_of(subject: tuple[str, dict[str, Any]]) -> Choice:
    name, changes = subject
    family = load_family(name)
    values = {**family.miniature.model_dump(), **changes}
    return Choice(name, build(family.config, values, where="contract"))


def build_model(subject: tuple[str, dict[str, Any]], sizes: VocabularySizes = SIZES, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = choice_of(subject).build(sizes).eval()
    with torch.no_grad():  # no contract may hold only because a bias starts at zero
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_batch(
    source_lengths: list[int], target_lengths: list[int], sizes: VocabularySizes = SIZES, seed: int = 1
) -> Batch:
    """Random examples of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    symbols = Symbols()
    source_mask = padding_mask(torch.tensor(source_lengths))
    target_mask = padding_mask(torch.tensor(target_lengths))
    source = torch.randint(4, sizes.source, source_mask.shape, generator=generator).masked_fill(
        ~source_mask, symbols.pad
    )
    target = torch.randint(4, sizes.target, target_mask.shape, generator=generator)
    target[torch.arange(len(target)), torch.tensor(target_lengths) - 1] = symbols.end
    target = target.masked_fill(~target_mask, symbols.pad)
    prefix = torch.cat([torch.full_like(target[:, :1], symbols.begin), target[:, :-1]], 1).masked_fill(~target_mask, 0)
    return Batch(Source(source, source_mask), prefix, target, target_mask, tuple(range(len(source_lengths))))


def take(batch: Batch, rows: list[int]) -> Batch:
    """Some examples of a batch, with no more padding than they need."""
    index = torch.tensor(rows)
    width = int(batch.source.mask[index].sum(1).max())
    length = int(batch.target_mask[index].sum(1).max())
    assert isinstance(batch.source.values, torch.Tensor)
    source = Source(batch.source.values[index, :width], batch.source.mask[index, :width])
    cut = (batch.prefix[index, :length], batch.target[index, :length], batch.target_mask[index, :length])
    return Batch(source, *cut, tuple(rows))

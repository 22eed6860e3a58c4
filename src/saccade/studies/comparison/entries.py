"""The models of a comparison, by the names that people give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from saccade.errors import UsageError, did_you_mean
from saccade.models.registry import FAMILIES, load_family, presets


class Entry(NamedTuple):
    """One model of a comparison."""

    name: str  # as it was given: a family or a preset
    family: str
    preset: str

    @property
    def attends(self) -> bool:
        """Whether it has a cross-attention, and so an alignment to draw."""
        return "cross" in load_family(self.family).attention


def find_entries(names: Sequence[str]) -> list[Entry]:
    """The models of these names; that of a family means its first preset."""
    known = presets()
    entries: list[Entry] = []
    for name in names:
        if name in known:
            entry = Entry(name, known[name].family, name)
        elif name in FAMILIES:
            entry = Entry(name, name, next(iter(load_family(name).presets)))
        else:
            raise UsageError(f"unknown model '{name}'", do=did_you_mean(name, {*FAMILIES, *known}))
        for other in entries:
            if other.preset == entry.preset:
                raise UsageError(f"'{name}' is {entry.preset}, which is named twice", do="name each model once")
        entries.append(entry)
    if not entries:
        raise UsageError("no models are named", do=f"give --models, such as --models {','.join(list(FAMILIES)[:3])}")
    return entries

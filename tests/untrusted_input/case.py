"""Crafted inputs: each is a function that makes it, named after its fault, and what the refusal must name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Case(NamedTuple):
    """One crafted input; `make` gets a folder of its own and writes the input into it."""

    name: str
    make: Callable[[Path], object]
    file: str  # the file that the refusal must name
    says: str  # a pattern of the setting, value or position that the refusal must name; empty if the file is enough


class Catalog:
    """All crafted inputs of one kind."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def refused(self, file: str, says: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
        """Add an input whose refusal names `file` and matches `says`."""

        def add(make: Callable[[Path], object]) -> Callable[[Path], object]:
            self.add(make.__name__, make, file, says)
            return make

        return add

    def accepted(self, make: Callable[[Path], object]) -> Callable[[Path], object]:
        """Add an input that is accepted."""
        self.add(make.__name__, make, "", "")
        return make

    def add(self, name: str, make: Callable[[Path], object], file: str, says: str) -> None:
        """Add an input under a name, which no other one has."""
        assert name not in {case.name for case in self.cases}, name
        self.cases.append(Case(name, make, file, says))

    def parameters(self) -> list[object]:
        """The cases for `pytest.mark.parametrize`."""
        return [pytest.param(case, id=case.name) for case in self.cases]


def check_refusal(message: str, case: Case) -> None:
    """A refusal names the file and the fault, says what to do, and is short."""
    assert case.file in message
    assert re.search(case.says, message), message
    assert "\n  " in message, f"no advice: {message}"
    assert len(message) < 3000

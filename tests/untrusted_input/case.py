"""Crafted inputs: each has a function that writes it, named after its fault, and a pattern of the expected error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest


class Case(NamedTuple):
    """One crafted input; `make` writes the input into a folder."""

    name: str
    make: Callable[[Path], object]
    file: str  # the file that the error must name
    pattern: str  # of the setting, value or position that the error must name; empty if the file is enough


class Catalog:
    """All crafted inputs of one kind."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def rejected(self, file: str, pattern: str) -> Callable[[Callable[[Path], object]], Callable[[Path], object]]:
        """Add an input whose error names `file` and matches `pattern`."""

        def add(make: Callable[[Path], object]) -> Callable[[Path], object]:
            self.add(make.__name__, make, file, pattern)
            return make

        return add

    def accepted(self, make: Callable[[Path], object]) -> Callable[[Path], object]:
        """Add an input that is accepted."""
        self.add(make.__name__, make, "", "")
        return make

    def add(self, name: str, make: Callable[[Path], object], file: str, pattern: str) -> None:
        """Add an input under a unique name."""
        assert name not in {case.name for case in self.cases}, name
        self.cases.append(Case(name, make, file, pattern))

    def parameters(self) -> list[object]:
        """Return the cases for `pytest.mark.parametrize`."""
        return [pytest.param(case, id=case.name) for case in self.cases]


def check_error(message: str, case: Case) -> None:
    """Check that an error names the file and the fault, gives advice, and is short."""
    assert case.file in message
    assert re.search(case.pattern, message), message
    assert "\n  " in message, f"no advice: {message}"
    assert len(message) < 3000

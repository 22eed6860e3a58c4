"""References: several acceptable ones for each sentence, looked up, checked, and in the order sacreBLEU wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from saccade.errors import SaccadeError


def keyed_references(sources: Sequence[str], rows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """All references of each source, from (source, reference) rows in any order; a repeated row counts once."""
    found: dict[str, list[str]] = {}
    for source, reference in rows:
        accepted = found.setdefault(source, [])
        if reference not in accepted:
            accepted.append(reference)
    for line, source in enumerate(sources, start=1):
        if source not in found:
            raise SaccadeError(
                f"the source '{source}' has no reference",
                where=f"line {line}",
                do="give at least one row of source and reference for it",
            )
    return [list(found[source]) for source in sources]


def check_references(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Refuse a test set that cannot be scored: unequal counts, nothing at all, a sentence without a reference."""
    if len(hypotheses) != len(references):
        raise SaccadeError(
            f"the number of hypotheses ({len(hypotheses)}) is not the number of references ({len(references)})",
            do="both need one line for each sentence, in the same order",
        )
    if not hypotheses:
        raise SaccadeError("there is nothing to score: 0 hypotheses and 0 references")
    for line, accepted in enumerate(references, start=1):
        # A string is a sequence of strings too, and would be taken for references of one character each.
        if isinstance(accepted, str):
            raise SaccadeError(
                "the references of a sentence are a list of strings, not one string", where=f"line {line}"
            )
        if not accepted:
            raise SaccadeError("the sentence has no reference", where=f"line {line}")


def reference_streams(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """The first references of all sentences, then all second ones …, with None where a sentence has fewer."""
    # Typed loosely because sacreBLEU takes None for a missing reference, though its annotations do not say so.
    return [list(stream) for stream in zip_longest(*references)]

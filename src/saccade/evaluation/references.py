"""References of a test set, several per sentence: grouping by source, checks, and conversion for sacreBLEU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from saccade.errors import SaccadeError
from saccade.untrusted_files import shown


def keyed_references(sources: Sequence[str], rows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return all references of each source, from (source, reference) rows in any order; duplicate rows count once."""
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
                hint="give at least one row of source and reference for it",
            )
    return [list(found[source]) for source in sources]


def check_references(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Raise an error for a test set that cannot be scored: unequal counts, no sentences, or no reference."""
    hint = "give a list of strings; references are a list of lists, with all references of each sentence"
    if not isinstance(hypotheses, Sequence) or not isinstance(references, Sequence) or isinstance(hypotheses, str):
        raise SaccadeError("hypotheses and references are lists", hint=hint)
    if len(hypotheses) != len(references):
        raise SaccadeError(
            f"{len(hypotheses)} hypotheses, but {len(references)} references",
            hint="give one hypothesis and one reference per sentence, in the same order",
        )
    if not hypotheses:
        raise SaccadeError("the test set is empty: 0 hypotheses and 0 references")
    for line, accepted in enumerate(references, start=1):
        # A string is a sequence of strings too: each character would count as a reference.
        if isinstance(accepted, str):
            raise SaccadeError(
                "the references of a sentence are a list of strings, not one string", where=f"line {line}"
            )
        if not accepted:
            raise SaccadeError("the sentence has no reference", where=f"line {line}")
        for text in (hypotheses[line - 1], *accepted):
            if not isinstance(text, str):
                raise SaccadeError(f"{shown(text)} is not a string", where=f"line {line}", hint=hint)


def reference_streams(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Transpose references for sacreBLEU: stream k has reference k of every sentence, None if there are fewer."""
    # Any, because sacreBLEU accepts None for a missing reference, but its annotations do not.
    return [list(stream) for stream in zip_longest(*references)]

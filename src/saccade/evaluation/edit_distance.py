"""Edit distance between each hypothesis and the closest of its references."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Literal, NamedTuple

import jiwer

Unit = Literal["word", "symbol", "character"]


class Edits(NamedTuple):
    """The edits that turn one reference into a hypothesis."""

    substitutions: int
    insertions: int
    deletions: int
    reference_length: int

    @property
    def total(self) -> int:
        """The edit distance."""
        return self.substitutions + self.insertions + self.deletions


def closest_edits(hypotheses: Sequence[str], references: Sequence[Sequence[str]], unit: Unit) -> list[Edits]:
    """The edits to the reference of the smallest distance, for each hypothesis.

    Of two references at the same distance the shorter one counts: the choice then depends on no order, and it flatters
    no system with a larger denominator.
    """
    pairs = [
        (hypothesis, reference)
        for hypothesis, accepted in zip(hypotheses, references, strict=True)
        for reference in accepted
    ]
    edits = iter(pairwise_edits([pair[0] for pair in pairs], [pair[1] for pair in pairs], unit))
    return [
        min(islice(edits, len(accepted)), key=lambda edit: (edit.total, edit.reference_length))
        for accepted in references
    ]


def pairwise_edits(hypotheses: Sequence[str], references: Sequence[str], unit: Unit) -> list[Edits]:
    """The edits of each pair of one hypothesis and one reference."""
    process = jiwer.process_characters if unit == "character" else jiwer.process_words
    output = process([clean(text, unit) for text in references], [clean(text, unit) for text in hypotheses])
    return [
        count_edits(chunks, len(reference))
        for chunks, reference in zip(output.alignments, output.references, strict=True)
    ]


def clean(text: str, unit: Unit) -> str:
    """Text whose words are separated by single plain spaces, the only separator that jiwer knows; characters stay."""
    return text.strip() if unit == "character" else " ".join(text.split())


def count_edits(chunks: Sequence[jiwer.AlignmentChunk], reference_length: int) -> Edits:
    """The edits of one alignment."""
    counts = {"substitute": 0, "insert": 0, "delete": 0, "equal": 0}
    for chunk in chunks:
        kind = "substitute" if chunk.type == "replace" else chunk.type
        counts[kind] += max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
    return Edits(counts["substitute"], counts["insert"], counts["delete"], reference_length)

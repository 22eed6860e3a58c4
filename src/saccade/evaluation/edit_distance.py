"""Edit distance between each hypothesis and the closest of its references."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Literal, NamedTuple

import jiwer

Unit = Literal["word", "symbol", "character"]


class Edits(NamedTuple):
    """The edits that transform a reference into a hypothesis."""

    substitutions: int
    insertions: int
    deletions: int
    reference_length: int

    @property
    def total(self) -> int:
        """The edit distance."""
        return self.substitutions + self.insertions + self.deletions


def closest_edits(hypotheses: Sequence[str], references: Sequence[Sequence[str]], unit: Unit) -> list[Edits]:
    """Return the edits from each hypothesis to its closest reference.

    Of two references at equal distance the shorter one counts: the choice does not depend on their order, and no system
    gains from a larger denominator.
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
    """Return the edits of each pair of hypothesis and reference."""
    process = jiwer.process_characters if unit == "character" else jiwer.process_words
    output = process([clean(text, unit) for text in references], [clean(text, unit) for text in hypotheses])
    return [
        count_edits(chunks, len(reference))
        for chunks, reference in zip(output.alignments, output.references, strict=True)
    ]


def clean(text: str, unit: Unit) -> str:
    """Separate words by single spaces, the only separator of jiwer; for characters, only strip the text."""
    return text.strip() if unit == "character" else " ".join(text.split())


def count_edits(chunks: Sequence[jiwer.AlignmentChunk], reference_length: int) -> Edits:
    """Return the edits of one alignment."""
    counts = {"substitute": 0, "insert": 0, "delete": 0, "equal": 0}
    for chunk in chunks:
        kind = "substitute" if chunk.type == "replace" else chunk.type
        counts[kind] += max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
    return Edits(counts["substitute"], counts["insert"], counts["delete"], reference_length)

"""Notes under the table: what a reader must know to compare its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from saccade.evaluation.length_buckets import LONG, MIN_SENTENCES, Bucket
from saccade.studies.comparison.budget import VALIDATION_SHARE
from saccade.studies.comparison.machine import describe_differences
from saccade.studies.comparison.results import MAX_PIECES

if TYPE_CHECKING:
    from saccade.studies.comparison.scores import Row

UNITS = {"char": "characters", "byte": "bytes", "word": "words", "bpe": "BPE pieces", "unigram": "unigram pieces"}


def make_notes(rows: Sequence[Row], buckets: Sequence[Bucket], long_sentences: int) -> list[str]:
    """Return all notes, first those on single models."""
    notes = [note for row in rows for note in notes_on_model(row)]
    notes += notes_on_tokens(rows)
    different = describe_differences({row.entry.name: row.result.machine for row in rows})
    if different:
        notes.append(f"different machines or versions, so costs cannot be compared: {'; '.join(different)}")
    without = [row.entry.name for row in rows if not row.entry.has_cross_attention]
    if without:
        notes.append(f"no cross-attention, so no alignment: {', '.join(without)}")
    small_buckets = [bucket for bucket in buckets if len(bucket.indices) < MIN_SENTENCES]
    if small_buckets:
        listing = ", ".join(f"{bucket} words: {len(bucket.indices)}" for bucket in small_buckets)
        notes.append(f"few sentences, so wide confidence intervals: {listing}")
    if not long_sentences:
        notes.append(f"no test sentence has more than {LONG} words, so there are no differences on long ones")
    return notes


def notes_on_model(row: Row) -> list[str]:
    """Return the notes on one model."""
    notes: list[str] = []
    name, result, plan = row.entry.name, row.result, row.result.plan
    if row.bleu is None:
        notes.append(f"{name} failed: {result.reason or f'it is only {result.status}'}")
    elif result.early_end is not None and result.trained is not None:
        notes.append(f"{name} ended early, before its learning rate had decayed to 0 ({result.early_end})")
    if plan and plan.valid_sentences is not None:
        share = f"a validation takes more than {VALIDATION_SHARE:.0%} of the budget"
        when = "one is made" if plan.validations else "none is made before the end"
        notes.append(f"{name}: {share}, so {when}, on {plan.valid_sentences} sentences")
    elif plan and not plan.validations:
        notes.append(
            f"{name}: a validation takes more than {VALIDATION_SHARE:.0%} of the budget, so it has one at its end"
        )
    if row.bleu is not None and row.entry.has_cross_attention:
        alignment = row.alignment
        if alignment is None or alignment.fault is not None:
            notes.append(f"{name} has no alignment: {alignment.fault if alignment else 'it was not computed'}")
        elif alignment.cut:
            notes.append(f"{name}: the plot shows the first {MAX_PIECES} pieces of its alignment")
    return notes


def notes_on_tokens(rows: Sequence[Row]) -> list[str]:
    """Return a note if the tokens of the models are different units, such as characters and words."""
    counted: dict[str, list[str]] = {}
    for row in rows:
        if row.result.config is not None:
            data = row.result.config["data"]
            kind = data.get("target_tokenizer") or data.get("tokenizer")
            counted.setdefault(UNITS.get(str(kind), str(kind)), []).append(row.entry.name)
    if len(counted) < 2:
        return []
    parts = [f"{', '.join(names)} {'count' if len(names) > 1 else 'counts'} {unit}" for unit, names in counted.items()]
    return [f"tokens are not the same for all: {'; '.join(parts)}; compare sentences/s, and not tok/s"]

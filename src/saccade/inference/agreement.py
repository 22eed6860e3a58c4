"""What tokenizers must share for their models to decode together."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.errors import SaccadeError


def check_same_target(tokenizers: Sequence[Tokenizer], names: Sequence[str]) -> None:
    """Refuse models whose ids do not all mean the same; `names` say where they come from."""
    for tokenizer, name in zip(tokenizers[1:], names[1:], strict=True):
        difference = first_difference(tokenizer, tokenizers[0])
        if difference is not None:
            raise SaccadeError(
                f"has another target vocabulary than {names[0]}: {difference}",
                where=name,
                do="models decode together if they write the same tokens: train them on the same data and settings",
            )


def first_difference(tokenizer: Tokenizer, other: Tokenizer) -> str | None:
    """In which respect two tokenizers give their ids another meaning, or None."""
    if tokenizer.kind != other.kind:
        return f"{tokenizer.kind} tokens, not {other.kind}"
    if tokenizer.normalization != other.normalization:
        return f"text normalised by {tokenizer.normalization}, not {other.normalization}"
    if tokenizer.size != other.size:
        return f"{tokenizer.size:,} tokens, not {other.size:,}"
    for token, (piece, expected) in enumerate(zip(tokenizer.vocabulary, other.vocabulary, strict=True)):
        if piece != expected:
            return f"id {token} is '{piece}', not '{expected}'"
    return None


def same_reading(tokenizers: Sequence[Tokenizer]) -> bool:
    """Whether all tokenizers read every text as the same ids: their files would be the same."""
    return len({tokenizer.document() for tokenizer in tokenizers}) == 1

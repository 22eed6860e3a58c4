"""One translator from several: an ensemble of models whose target vocabularies are equal."""

from __future__ import annotations

from collections.abc import Sequence

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.decoding.ensemble import Ensemble, Mean
from saccade.errors import SaccadeError
from saccade.inference.batching import collate_sources
from saccade.inference.translator import Translator


def build_ensemble(
    translators: Sequence[Translator],
    names: Sequence[str],
    *,
    mean: Mean = "arithmetic",
    weights: Sequence[float] | None = None,
) -> Translator:
    """Return an ensemble of the models of several translators, with the decoding defaults of the first.

    `names` say in errors where the models come from.
    """
    first = translators[0]
    check_equal_targets([translator.tokenizers.target for translator in translators], names)
    source_tokenizers = [translator.tokenizers.source for translator in translators]
    if are_equal(source_tokenizers):
        source_tokenizers = source_tokenizers[:1]
    example = collate_sources([([],) * len(source_tokenizers)], source_tokenizers, first.device)
    ensemble = Ensemble([translator.model for translator in translators], example, mean=mean, weights=weights)
    return Translator(
        *(ensemble, first.tokenizers, first.decoding, first.device),
        source_tokenizers=source_tokenizers,
        precision=first.precision,
    )


def check_equal_targets(tokenizers: Sequence[Tokenizer], names: Sequence[str]) -> None:
    """Raise an error if a target id means different tokens in different models; `names` are those of the models."""
    for tokenizer, name in zip(tokenizers[1:], names[1:], strict=True):
        difference = first_difference(tokenizer, tokenizers[0])
        if difference is not None:
            raise SaccadeError(
                f"the target vocabulary differs from that of {names[0]}: {difference}",
                where=name,
                hint="the models of an ensemble need one target vocabulary: train them on the same data and settings",
            )


def first_difference(tokenizer: Tokenizer, other: Tokenizer) -> str | None:
    """Return the first property in which the ids of two tokenizers differ in meaning, or None."""
    if tokenizer.kind != other.kind:
        return f"{tokenizer.kind} tokens, not {other.kind}"
    if tokenizer.normalization != other.normalization:
        return f"text normalized by {tokenizer.normalization}, not {other.normalization}"
    if tokenizer.size != other.size:
        return f"{tokenizer.size:,} tokens, not {other.size:,}"
    for token, (piece, expected) in enumerate(zip(tokenizer.vocabulary, other.vocabulary, strict=True)):
        if piece != expected:
            return f"id {token} is '{piece}', not '{expected}'"
    return None


def are_equal(tokenizers: Sequence[Tokenizer]) -> bool:
    """Return whether all tokenizers give the same ids for every text: their files are equal."""
    return len({tokenizer.document() for tokenizer in tokenizers}) == 1

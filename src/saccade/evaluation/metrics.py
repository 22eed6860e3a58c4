"""Metrics: BLEU, chrF and TER by sacreBLEU, exact match, and error rates from edit distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from saccade.arguments import check_choice
from saccade.errors import SaccadeError, did_you_mean
from saccade.evaluation.edit_distance import Unit, closest_edits
from saccade.evaluation.references import check_references, reference_streams

References = Sequence[Sequence[str]]
"""The references of each sentence, one or several; their number may vary."""


@dataclass(frozen=True)
class Score:
    """A score of a system, with the signature that makes it reproducible."""

    name: str
    value: float
    signature: str | None = None
    higher_is_better: bool = True
    details: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"{self.name} = {self.value:.2f}"
        return text if self.signature is None else f"{text}  {self.signature}"

    def to_json(self) -> dict[str, Any]:
        """Return the score as plain data; infinity and NaN become null, because JSON has neither."""
        return {
            "name": self.name,
            "value": finite(self.value),
            "signature": self.signature,
            "higher_is_better": self.higher_is_better,
            "details": {key: finite(value) for key, value in self.details.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Score:
        """Read a score that `to_json` wrote."""
        details = {key: null_to_nan(value) for key, value in values["details"].items()}
        value = null_to_nan(values["value"])
        return cls(values["name"], value, values["signature"], values["higher_is_better"], details)


def null_to_nan(value: float | None) -> float:
    """Return a number from JSON, NaN for null."""
    return math.nan if value is None else float(value)


def finite(value: float) -> float | None:
    """Return a number for JSON, None for infinity and NaN."""
    return value if math.isfinite(value) else None


def score(name: str, hypotheses: Sequence[str], references: References) -> Score:
    """Score a test set by the metric `name`; references[i] has all references of sentence i."""
    return find_metric(name)(hypotheses, references)


def find_metric(name: str) -> Callable[[Sequence[str], References], Score]:
    """Return the function of a metric."""
    check_choice(name, "metric", METRICS)
    return METRICS[name]


def bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    advise: bool = False,
) -> Score:
    """Compute corpus BLEU (Papineni et al. 2002) by sacreBLEU (Post 2018); `tokenize` "none" is for tokenized text.

    With `advise` sacreBLEU warns if the text seems to be tokenized.
    """
    check_references(hypotheses, references)
    metric = bleu_metric(tokenize=tokenize, lowercase=lowercase, advise=advise)
    result = metric.corpus_score(hypotheses, reference_streams(references))
    details = {f"precision_{order}": float(value) for order, value in enumerate(result.precisions, start=1)}
    details |= {
        "brevity_penalty": float(result.bp),
        "hypothesis_length": float(result.sys_len),
        "reference_length": float(result.ref_len),
    }
    return Score("BLEU", float(result.score), signature_of(metric), True, details)


def bleu_metric(*, tokenize: str = "13a", lowercase: bool = False, advise: bool = False) -> BLEU:
    """Return the sacreBLEU object for these options; invalid options are an error."""
    if tokenize not in BLEU.TOKENIZERS:
        raise SaccadeError(f"unknown BLEU tokenizer '{tokenize}'", hint=did_you_mean(tokenize, BLEU.TOKENIZERS))
    try:
        # With tokenizer none the text is meant to be tokenized.
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=not advise or tokenize == "none")
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise SaccadeError(f"the BLEU tokenizer '{tokenize}' cannot be used", hint=reason) from None


def chrf(hypotheses: Sequence[str], references: References) -> Score:
    """Compute the character n-gram F-score chrF2 (Popović 2015) by sacreBLEU."""
    check_references(hypotheses, references)
    metric = CHRF()
    result = metric.corpus_score(hypotheses, reference_streams(references))
    return Score(str(result.name), float(result.score), signature_of(metric), True)


def ter(hypotheses: Sequence[str], references: References) -> Score:
    """Compute the translation edit rate (Snover et al. 2006) by sacreBLEU; lower is better."""
    check_references(hypotheses, references)
    metric = TER()
    result = metric.corpus_score(hypotheses, reference_streams(references))
    details = {"edits": float(result.num_edits), "reference_length": float(result.ref_length)}
    return Score("TER", float(result.score), signature_of(metric), False, details)


def signature_of(metric: Metric) -> str:
    """Return the sacreBLEU signature of a metric that has just been computed."""
    return str(metric.get_signature())


def exact_match(hypotheses: Sequence[str], references: References) -> Score:
    """Compute the share of hypotheses that equal one of their references; outer whitespace is ignored."""
    check_references(hypotheses, references)
    matches = sum(exact_matches(hypotheses, references))
    details = {"matches": float(matches), "sentences": float(len(hypotheses))}
    value = 100 * matches / len(hypotheses)
    return Score("exact-match", value, f"nrefs:{reference_count(references)}|case:mixed", True, details)


def sequence_error(hypotheses: Sequence[str], references: References) -> Score:
    """Compute 100 - exact match, the word error rate of grapheme-to-phoneme conversion; lower is better."""
    match = exact_match(hypotheses, references)
    return Score("sequence-error", 100 - match.value, match.signature, False, match.details)


def exact_matches(hypotheses: Sequence[str], references: References) -> list[bool]:
    """Return whether each hypothesis equals one of its references."""
    return [
        hypothesis.strip() in {reference.strip() for reference in accepted}
        for hypothesis, accepted in zip(hypotheses, references, strict=True)
    ]


def word_error(hypotheses: Sequence[str], references: References) -> Score:
    """Compute the word error rate of speech recognition: edits over words of closest references; lower is better."""
    return error_rate("word-error", "word", hypotheses, references)


def symbol_error(hypotheses: Sequence[str], references: References) -> Score:
    """Compute the error rate over whitespace-separated symbols, such as the phoneme error rate (PER); lower is better.

    It is computed like `word_error`; papers report it under another name.
    """
    return error_rate("symbol-error", "symbol", hypotheses, references)


def character_error(hypotheses: Sequence[str], references: References) -> Score:
    """Compute the character error rate, with spaces between words; lower is better."""
    return error_rate("character-error", "character", hypotheses, references)


def error_rate(name: str, unit: Unit, hypotheses: Sequence[str], references: References) -> Score:
    """Compute edits to the closest references over their length, in percent; many insertions give more than 100.

    If all references are empty, the rate is 0 for empty hypotheses and 100 otherwise, as in TER.
    """
    check_references(hypotheses, references)
    edits = closest_edits(hypotheses, references, unit)
    total = sum(edit.total for edit in edits)
    length = sum(edit.reference_length for edit in edits)
    value = 100 * total / length if length else 100.0 * (total > 0)
    details = {
        "substitutions": float(sum(edit.substitutions for edit in edits)),
        "insertions": float(sum(edit.insertions for edit in edits)),
        "deletions": float(sum(edit.deletions for edit in edits)),
        "reference_length": float(length),
    }
    signature = f"nrefs:{reference_count(references)}|case:mixed|unit:{unit}|jiwer:{version('jiwer')}"
    return Score(name, value, signature, False, details)


def reference_count(references: References) -> str:
    """Return the number of references per sentence, or "var" if it varies, as in sacreBLEU signatures."""
    counts = {len(accepted) for accepted in references}
    return str(counts.pop()) if len(counts) == 1 else "var"


METRICS: dict[str, Callable[[Sequence[str], References], Score]] = {
    "bleu": bleu,
    "chrf": chrf,
    "ter": ter,
    "exact-match": exact_match,
    "sequence-error": sequence_error,
    "word-error": word_error,
    "symbol-error": symbol_error,
    "character-error": character_error,
}

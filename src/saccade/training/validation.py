"""Validation: loss on held-out data, scores of translations, sample outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saccade.data.cache.corpus import Corpus
from saccade.data.reading.pair_files import Pair
from saccade.data.sampling.batches import collate, sorted_batches
from saccade.evaluation.metrics import Score, finite, score
from saccade.evaluation.perplexity import perplexity
from saccade.inference.engines.parity import MAX_SOURCES, SOURCES_FILE
from saccade.inference.translator import Translator
from saccade.training.objectives.objective import Objective


@dataclass(frozen=True)
class Sample:
    """One validation sentence with its reference and the model's output."""

    source: str
    reference: str
    output: str


@dataclass(frozen=True)
class Validation:
    """Loss of the complete validation set, scores of the part that was translated."""

    loss: float  # negative log-likelihood per token, without label smoothing
    perplexity: float
    scores: Mapping[str, Score]  # by the name of the metric
    samples: tuple[Sample, ...]

    def value(self, criterion: str) -> float:
        """Return the criterion as a number to minimize."""
        if criterion == "loss":
            return self.loss
        found = self.scores[criterion]
        return -found.value if found.higher_is_better else found.value

    def to_json(self) -> dict[str, Any]:
        """Return loss and scores as plain data."""
        scores = {name: found.to_json() for name, found in self.scores.items()}
        return {"loss": finite(self.loss), "perplexity": finite(self.perplexity), "scores": scores}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Validation:
        """Read what `to_json` wrote; it does not contain the samples."""
        figures = [math.inf if values[name] is None else float(values[name]) for name in ("loss", "perplexity")]
        scores = {name: Score.from_json(found) for name, found in values["scores"].items()}
        return cls(figures[0], figures[1], scores, ())

    def __str__(self) -> str:
        parts = [f"loss {self.loss:.4f}", f"perplexity {self.perplexity:.2f}"]
        return ", ".join(parts + [f"{name} {found.value:.2f}" for name, found in self.scores.items()])


def validate(
    translator: Translator,
    corpus: Corpus,
    objective: Objective,
    *,
    metrics: Sequence[str],
    batch_tokens: int,
    sentences: int,
    samples: int,
    beam: int = 1,
) -> Validation:
    """Validate a model in evaluation mode; its mode is restored afterwards."""
    model = translator.model
    training = bool(getattr(model, "training", False))
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for indices in sorted_batches(corpus, batch_tokens):
            loss = objective.loss(model, collate(corpus, indices, translator.symbols).to(translator.device))
            total += loss.metrics["nll"]
            count += loss.count
    sources, references = group_by_source(corpus.pairs or [], sentences)
    changes: dict[str, Any] = {"beam": beam, "nbest": 1, "sample": False, "replace_unknown": "none", "max_source": 0}
    if beam == 1:
        changes["coverage_beta"] = 0.0  # greedy search has no hypotheses to rank
    settings = translator.decoding.model_copy(update={**changes, "batch_tokens": batch_tokens})
    outputs = [found.text for found in translator.stream(sources, settings)]
    scores = {name: score(name, outputs, references) for name in metrics} if sources else {}
    shown = [Sample(s, r[0], o) for s, r, o in zip(sources, references, outputs, strict=True)][:samples]
    model.train(training)
    return Validation(total / max(1, count), perplexity(total, count), scores, tuple(shown))


def group_by_source(pairs: Sequence[Pair], limit: int) -> tuple[list[str], list[list[str]]]:
    """Return the first `limit` distinct sources, each with all its targets as references."""
    targets: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.source in targets or len(targets) < limit:
            targets.setdefault(pair.source, []).append(pair.target)
    return list(targets), list(targets.values())


def save_validation_sources(run: Path, corpus: Corpus) -> None:
    """Save validation sources in the run directory: exported models are verified on them."""
    sources, _ = group_by_source(corpus.pairs or [], MAX_SOURCES)
    (run / SOURCES_FILE).write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")

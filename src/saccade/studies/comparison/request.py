"""What is compared: models, data, test set and budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.config import merge
from saccade.data.reading.pair_files import read_lines
from saccade.data.reading.pair_stream import training_pairs, validation_pairs
from saccade.errors import SaccadeError, UsageError
from saccade.studies.comparison.budget import Budget
from saccade.studies.comparison.entries import Entry
from saccade.studies.comparison.planning import Plan, planned_settings
from saccade.training.compute_settings import resolve_compute
from saccade.training.config import RunConfig
from saccade.training.config_resolution import check_complete, resolve_config

LIMITS = ("max_steps", "max_epochs", "max_minutes")
PATHS = ("source", "target", "valid_source", "valid_target")
SOME_STEPS = 1000  # stands for the end of a run before that is planned


@dataclass(frozen=True)
class Request:
    """A comparison as it was asked for."""

    entries: tuple[Entry, ...]
    settings: Mapping[str, Any]  # of every run: model, data, training, decoding; what is not there, a family decides
    budget: Budget
    test_source: Path
    test_references: tuple[Path, ...]
    output: Path
    sentence: str | None = None  # to draw the alignments of; by default one of the test set

    def config(
        self, entry: Entry, planned: Mapping[str, Any] | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """The run of one model: the family's own settings, then what was planned, then what the user said.

        `settings` are what he said at another time.
        """
        base = planned or {"training": {"max_steps": SOME_STEPS}}
        limits = {"training": {name: base["training"].get(name) for name in LIMITS}}
        fixed = {"model": {"preset": entry.preset}, "output": str(self.output / "runs" / entry.name)}
        values = merge(merge(merge(base, self.settings if settings is None else settings), limits), fixed)
        return resolve_config(values, where=f"model {entry.name}")

    def rehearsed(self, entry: Entry) -> RunConfig:
        """The run of one model with all that a plan decides, but of some length: this is not known yet."""
        family = self.config(entry)
        return self.config(entry, planned_settings(Plan(SOME_STEPS, 1, 0.0), self.budget, family))

    def check(self) -> None:
        """Refuse at once what would fail after minutes of training."""
        training: Mapping[str, Any] = self.settings.get("training", {})
        if training.get("start") or training.get("objective", "likelihood") != "likelihood":
            raise UsageError(
                "a comparison trains fresh models on the likelihood",
                do="leave out --training.start and --training.objective",
            )
        for entry in self.entries:
            config = self.rehearsed(entry)
            if config.data.source:
                check_complete(config)
                resolve_compute(config.training)
            if config.decoding.nbest != 1 or config.decoding.sample:
                raise UsageError("a comparison scores one output a sentence", do="leave out nbest and sample")
            if config.decoding.replace_unknown == "lexicon":
                raise UsageError("a comparison decodes without a lexicon", do="set replace-unknown to source or none")
            if config.decoding.replace_unknown == "source" and not entry.attends:
                raise UsageError(
                    f"{entry.name} has no cross-attention to replace unknown words by",
                    do="leave out --decoding.replace-unknown, or this model",
                )

    def check_data(self) -> None:
        """Refuse files that cannot be read or hold nothing, by their first pair."""
        data = self.config(self.entries[0]).data
        for pairs in (*(training_pairs(data, corpus) for corpus in range(len(data.source))), validation_pairs(data)):
            next(pairs, None)

    def sources(self) -> list[str]:
        """The test sentences."""
        lines = list(read_lines(self.test_source))
        if not any(line.strip() for line in lines):
            raise SaccadeError("has no sentence", where=str(self.test_source), do="name a test set")
        return lines

    def references(self) -> list[list[str]]:
        """All references of each test sentence."""
        expected = len(self.sources())
        columns = [list(read_lines(path)) for path in self.test_references]
        for path, column in zip(self.test_references, columns, strict=True):
            if len(column) != expected:
                raise SaccadeError(
                    f"has {len(column):,} lines, but {expected:,} are expected",
                    where=str(path),
                    do="line n of each reference file must answer line n of the test source; an empty line counts",
                )
        return [list(row) for row in zip(*columns, strict=True)]

    def drawn_sentence(self) -> str:
        """The sentence whose alignments are drawn."""
        return self.sentence or chosen_sentence(self.sources())


def chosen_sentence(sources: Sequence[str], low: int = 12, high: int = 18) -> str:
    """The first sentence of 12 to 18 words, or the one that comes nearest to 15."""
    lengths = [len(source.split()) for source in sources]
    suited = (source for source, length in zip(sources, lengths, strict=True) if low <= length <= high)
    nearest = min(range(len(sources)), key=lambda row: (lengths[row] == 0, abs(lengths[row] - (low + high) // 2)))
    return next(suited, sources[nearest])

"""The request for a comparison: models, data, test set and budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from saccade.config import merge
from saccade.data.reading.pair_files import read_lines
from saccade.data.reading.pair_stream import training_pairs, validation_pairs
from saccade.errors import SaccadeError, UsageError, did_you_mean
from saccade.models.registry import FAMILIES, load_family, presets
from saccade.studies.comparison.budget import Budget, TrainingPlan, planned_settings
from saccade.training.compute_settings import resolve_compute
from saccade.training.config import RunConfig
from saccade.training.config_resolution import check_complete, resolve_config

LIMITS = ("max_steps", "max_epochs", "max_minutes")
PROVISIONAL_STEPS = 1000  # length of a run before it is planned


class Entry(NamedTuple):
    """One model of a comparison."""

    name: str  # of a family or a preset, as the user gave it
    family: str
    preset: str

    @property
    def has_cross_attention(self) -> bool:
        """Whether the model has cross-attention, so that an alignment can be plotted."""
        return "cross" in load_family(self.family).attention


def find_entries(names: Sequence[str]) -> list[Entry]:
    """Return the models with these names; the name of a family means its first preset."""
    known = presets()
    entries: list[Entry] = []
    for name in names:
        if name in known:
            entry = Entry(name, known[name].family, name)
        elif name in FAMILIES:
            entry = Entry(name, name, next(iter(load_family(name).presets)))
        else:
            raise UsageError(f"unknown model '{name}'", hint=did_you_mean(name, {*FAMILIES, *known}))
        for other in entries:
            if other.preset == entry.preset:
                raise UsageError(f"'{name}' is {entry.preset}, which is named twice", hint="name each model once")
        entries.append(entry)
    if not entries:
        raise UsageError("no models are named", hint=f"give --models, such as --models {','.join(list(FAMILIES)[:3])}")
    return entries


@dataclass(frozen=True)
class Request:
    """The request for a comparison."""

    entries: tuple[Entry, ...]
    settings: Mapping[str, Any]  # of every run: model, data, training, decoding; others are defaults of the family
    budget: Budget
    test_source: Path
    test_references: tuple[Path, ...]
    output: Path
    sentence: str | None = None  # plotted with its alignments; by default a sentence of the test set

    def config(
        self, entry: Entry, planned: Mapping[str, Any] | None = None, *, settings: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """Return the config of one run: settings of the family, overridden by the plan, overridden by the user.

        `settings` replaces the settings of the user.
        """
        base = planned or {"training": {"max_steps": PROVISIONAL_STEPS}}
        limits = {"training": {name: base["training"].get(name) for name in LIMITS}}
        fixed = {"model": {"preset": entry.preset}, "output": str(self.output / "runs" / entry.name)}
        values = merge(merge(merge(base, self.settings if settings is None else settings), limits), fixed)
        return resolve_config(values, where=f"model {entry.name}")

    def provisional_config(self, entry: Entry) -> RunConfig:
        """Return the config of one run with all planned settings, for a provisional number of updates."""
        family = self.config(entry)
        return self.config(entry, planned_settings(TrainingPlan(PROVISIONAL_STEPS, 1, 0.0), self.budget, family))

    def check(self) -> None:
        """Raise an error for settings that would otherwise fail after minutes of training."""
        training: Mapping[str, Any] = self.settings.get("training", {})
        if training.get("start") or training.get("objective", "likelihood") != "likelihood":
            raise UsageError(
                "a comparison trains fresh models on the likelihood",
                hint="leave out --training.start and --training.objective",
            )
        for entry in self.entries:
            config = self.provisional_config(entry)
            if config.data.source:
                check_complete(config)
                resolve_compute(config.training)
            if config.decoding.nbest != 1 or config.decoding.sample:
                raise UsageError("a comparison scores one output per sentence", hint="leave out nbest and sample")
            if config.decoding.replace_unknown == "lexicon":
                raise UsageError("a comparison decodes without a lexicon", hint="set replace-unknown to source or none")
            if config.decoding.replace_unknown == "source" and not entry.has_cross_attention:
                raise UsageError(
                    f"{entry.name} has no cross-attention to replace unknown words by",
                    hint="leave out --decoding.replace-unknown, or this model",
                )

    def check_data(self) -> None:
        """Raise an error for files that are empty or unreadable, by reading their first pair."""
        data = self.config(self.entries[0]).data
        for pairs in (*(training_pairs(data, corpus) for corpus in range(len(data.source))), validation_pairs(data)):
            next(pairs, None)

    def sources(self) -> list[str]:
        """Read the test sentences."""
        lines = list(read_lines(self.test_source))
        if not any(line.strip() for line in lines):
            raise SaccadeError("has no sentence", where=str(self.test_source), hint="name a test set")
        return lines

    def references(self) -> list[list[str]]:
        """Read all references of each test sentence."""
        expected = len(self.sources())
        columns = [list(read_lines(path)) for path in self.test_references]
        for path, column in zip(self.test_references, columns, strict=True):
            if len(column) != expected:
                raise SaccadeError(
                    f"has {len(column):,} lines, but {expected:,} are expected",
                    where=str(path),
                    hint="line n of each reference file must translate line n of the test source; an empty line counts",
                )
        return [list(row) for row in zip(*columns, strict=True)]

    def plotted_sentence(self) -> str:
        """Return the sentence whose alignments are plotted."""
        return self.sentence or choose_sentence(self.sources())


def choose_sentence(sources: Sequence[str], low: int = 12, high: int = 18) -> str:
    """Return the first sentence of 12 to 18 words, otherwise the one whose length is nearest to 15."""
    lengths = [len(source.split()) for source in sources]
    suitable = (source for source, length in zip(sources, lengths, strict=True) if low <= length <= high)
    nearest = min(range(len(sources)), key=lambda index: (lengths[index] == 0, abs(lengths[index] - (low + high) // 2)))
    return next(suitable, sources[nearest])

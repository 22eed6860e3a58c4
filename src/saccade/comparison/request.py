"""What is compared: models, data, test set and budget; and whether an output folder is of the same comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.comparison.budget import Budget
from saccade.comparison.entries import Entry
from saccade.config import merge, underscored
from saccade.data.files import read_lines
from saccade.data.inputs import InputFile, Inputs
from saccade.errors import SaccadeError, UsageError
from saccade.folder import read_json
from saccade.training.config import RunConfig, run_config
from saccade.untrusted import shown

LIMITS = ("max_steps", "max_epochs", "max_minutes")
PATHS = ("source", "target", "valid_source", "valid_target")
SOME_STEPS = 1000  # stands for the end of a run before that is planned
STATE = "compare.json"


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

    def config(self, entry: Entry, planned: Mapping[str, Any] | None = None) -> RunConfig:
        """The run of one model: the family's own settings, then what was planned, then what the user said."""
        base = planned or {"training": {"max_steps": SOME_STEPS}}
        limits = {"training": {name: base["training"].get(name) for name in LIMITS}}
        fixed = {"model": {"preset": entry.preset}, "output": str(self.output / "runs" / entry.name)}
        values = merge(merge(merge(base, self.settings), limits), fixed)
        return run_config(values, where=f"model {entry.name}")

    def check(self) -> None:
        """Refuse at once what would fail after minutes of training."""
        training: Mapping[str, Any] = self.settings.get("training", {})
        if training.get("start") or training.get("objective", "likelihood") != "likelihood":
            raise UsageError(
                "a comparison trains fresh models on the likelihood",
                do="leave out --training.start and --training.objective",
            )
        for entry in self.entries:
            config = self.config(entry)
            if config.decoding.nbest != 1 or config.decoding.sample:
                raise UsageError("a comparison scores one output a sentence", do="leave out nbest and sample")
            if config.decoding.replace_unknown == "lexicon":
                raise UsageError("a comparison decodes without a lexicon", do="set replace-unknown to source or none")
            if config.decoding.replace_unknown == "source" and not entry.attends:
                raise UsageError(
                    f"{entry.name} has no cross-attention to replace unknown words by",
                    do="leave out --decoding.replace-unknown, or this model",
                )

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

    def identity(self) -> dict[str, Any]:
        """All that a row of the table depends on but its model; files count by their content, wherever they lie."""
        data: Mapping[str, Any] = self.settings.get("data", {})
        config = self.config(self.entries[0])
        files = Inputs(config.data).digests()
        files["test_source"] = [InputFile(str(self.test_source)).digest]
        files["test_reference"] = [InputFile(str(path)).digest for path in self.test_references]
        return {
            "budget": {"minutes": self.budget.minutes, "tokens": self.budget.tokens},
            "model": plain(self.settings.get("model", {})),
            "data": plain({name: value for name, value in data.items() if name not in (*PATHS, "cache", "workers")}),
            "training": plain(self.settings.get("training", {})),
            "decoding": plain(self.settings.get("decoding", {})),
            "sentence": self.sentence,
            "files": files,
        }


def plain(settings: Any) -> Any:
    """Settings as a JSON file gives them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in underscored(settings).items()}


def check_same(output: Path, identity: Mapping[str, Any]) -> None:
    """Refuse an output folder that holds another comparison; other models may join."""
    path = output / STATE
    if not path.exists():
        if output.exists() and (not output.is_dir() or any(one.name != ".lock" for one in output.iterdir())):
            raise SaccadeError(
                "already exists and holds no comparison", where=str(output), do="choose another --output"
            )
        return
    before = read_json(path).get("settings")
    changed = differences(before if isinstance(before, dict) else {}, identity)
    if changed:
        raise SaccadeError(
            f"holds a comparison with other settings: {'; '.join(changed[:5])}",
            where=str(output),
            do="leave the settings as they were (only --models may change), or choose another --output",
        )


def differences(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted settings in which two comparisons differ, in words."""
    words: list[str] = []
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        dotted = f"{prefix}{name}".replace("_", "-")
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            words += differences(old, new, f"{dotted}.")
        elif old != new and dotted.startswith("files."):
            words.append(f"the files of --{dotted.removeprefix('files.')} are not the same")
        elif old != new:
            words.append(f"{dotted} {shown(old)} -> {shown(new)}")
    return words

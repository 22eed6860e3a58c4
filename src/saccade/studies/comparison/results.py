"""Files with the results of each model: progress and costs, and its alignment for the sentence of the comparison."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from saccade.errors import not_written
from saccade.folder import MAX_JSON_BYTES, damaged, json_text, read_json, replace_file
from saccade.inference.explanation import Explanation
from saccade.studies.comparison.budget import TrainingPlan
from saccade.untrusted_files import shown

Status = Literal["planned", "trained", "done", "failed"]

MAX_PIECES = 400  # of source and of target: more would be smaller than a pixel of the plot
WEIGHT_SCALE = 10_000  # weights are stored as integers, multiplied by it


@dataclass(frozen=True)
class TrainingCost:
    """The cost of a training."""

    updates: int
    seconds: float  # validation included
    target_tokens: int
    tokens_a_second: float  # target tokens, without validation
    flops: float
    data: str  # digest of the training data


@dataclass(frozen=True)
class DecodingCost:
    """The cost of translating the test set; the outputs are in another file."""

    seconds: float
    sentences: int
    tokens: int  # target tokens, end symbols included


@dataclass(frozen=True)
class Result:
    """Progress and costs of one model."""

    name: str
    status: Status
    config: dict[str, Any] | None = None  # of the run
    plan: TrainingPlan | None = None
    parameters: int = 0
    peak_memory: int = 0  # bytes, in training
    trained: TrainingCost | None = None
    decoded: DecodingCost | None = None
    reason: str | None = None  # of a failure
    machine: dict[str, str] = field(default_factory=dict)  # that it was trained on

    @property
    def early_end(self) -> str | None:
        """Why the training ended before its planned number of updates; None if it did not."""
        if self.status == "failed":
            return f"failed: {self.reason or 'unknown reason'}"
        if self.trained is None or self.plan is None or self.trained.updates >= self.plan.updates:
            return None
        minutes = (self.config or {}).get("training", {}).get("max_minutes")
        time_is_up = minutes is not None and self.trained.seconds >= 60 * minutes
        reason = f"the {minutes:g} minutes are used up" if time_is_up else "early stopping"
        return f"{self.trained.updates:,} of {self.plan.updates:,} updates: {reason}"

    def failed(self, reason: str) -> Result:
        """Return this result with status 'failed' and the reason."""
        return replace(self, status="failed", reason=" ".join(reason.split()))


@dataclass(frozen=True)
class Alignment:
    """Cross-attention weights for one sentence, or the reason why there are none."""

    sentence: str
    source_pieces: tuple[str, ...] = ()
    target_pieces: tuple[str, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()  # (T, S)
    cut: bool = False  # whether there were more pieces
    fault: str | None = None
    output: str = ""


def result_path(output: Path, name: str) -> Path:
    """Return the path of the result of a model."""
    return output / "results" / f"{name}.json"


def outputs_path(output: Path, name: str) -> Path:
    """Return the path of the translations of a model."""
    return output / "outputs" / f"{name}.txt"


def run_path(output: Path, name: str) -> Path:
    """Return the run directory of a model."""
    return output / "runs" / name


def alignment_path(output: Path, name: str) -> Path:
    """Return the path of the alignment of a model."""
    return output / "alignments" / f"{name}.json"


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically; its folder is created if needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise not_written(path, error) from None


def write_result(output: Path, result: Result) -> None:
    """Write the result of a model."""
    write_text(result_path(output, result.name), json_text(asdict(result)))


def read_result(output: Path, name: str) -> Result | None:
    """Read the result of a model; None if it does not exist."""
    path = result_path(output, name)
    if not path.exists():
        return None
    values = read_json(path)
    try:
        result = TypeAdapter(Result).validate_python(values)
    except ValidationError as error:
        fault = error.errors()[0]
        dotted = ".".join(map(str, fault["loc"]))
        raise damaged(path, f"{dotted} cannot be {shown(fault['input'])}: {fault['msg']}") from None
    if result.name != name:
        raise damaged(path, f"is the result of {shown(result.name)}")
    return result


def make_alignment(sentence: str, explanation: Explanation) -> Alignment:
    """Return the alignment of an explanation: its first pieces, with weights rounded to four digits."""
    source, target = explanation.source_pieces[:MAX_PIECES], explanation.target_pieces[:MAX_PIECES]
    rows = explanation.alignment[: len(target), : len(source)].tolist()
    weights = tuple(tuple(round(WEIGHT_SCALE * weight) / WEIGHT_SCALE for weight in row) for row in rows)
    cut = len(explanation.source_pieces) > len(source) or len(explanation.target_pieces) > len(target)
    return Alignment(sentence, tuple(source), tuple(target), weights, cut, output=explanation.target)


def write_alignment(output: Path, name: str, alignment: Alignment) -> None:
    """Write the alignment of a model; one line of integers per row of weights."""
    rows = [" ".join(str(round(WEIGHT_SCALE * weight)) for weight in row) for row in alignment.weights]
    text = json.dumps({**asdict(alignment), "weights": rows}, ensure_ascii=False, indent=0) + "\n"
    if len(text.encode("utf-8")) > MAX_JSON_BYTES:
        fault = "it is too long to be drawn"
        text = json.dumps(asdict(Alignment(alignment.sentence, fault=fault)), ensure_ascii=False) + "\n"
    write_text(alignment_path(output, name), text)


def read_alignment(output: Path, name: str, sentence: str) -> Alignment | None:
    """Read the alignment of a model for this sentence; None if it does not exist."""
    path = alignment_path(output, name)
    if not path.exists():
        return None
    found = parse_alignment(path, read_json(path))
    return found if found.sentence == sentence else None


def parse_alignment(path: Path, values: dict[str, Any]) -> Alignment:
    """Parse a file of `write_alignment`, which is untrusted."""
    try:
        source, target = tuple(map(str, values["source_pieces"])), tuple(map(str, values["target_pieces"]))
        weights = tuple(tuple(int(part) / WEIGHT_SCALE for part in row.split()) for row in values["weights"])
        fault = None if values["fault"] is None else str(values["fault"])
        output = str(values.get("output", ""))  # not in files of earlier versions
        found = Alignment(str(values["sentence"]), source, target, weights, bool(values["cut"]), fault, output)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damaged(path, "is not an alignment of a comparison") from None
    if len(weights) != len(target) or any(len(row) != len(source) for row in weights):
        raise damaged(path, "does not have one weight for each pair of pieces")
    return found

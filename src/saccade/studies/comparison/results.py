"""Files with the results of each model: progress and costs, and its alignment for the sentence of the comparison."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from saccade.errors import SaccadeError
from saccade.folder import MAX_JSON_BYTES, damaged, json_text, read_json, replace_file
from saccade.inference.explanation import Explanation
from saccade.studies.comparison.budget import Plan
from saccade.untrusted_files import shown

Status = Literal["planned", "trained", "done", "failed"]

MAX_PIECES = 400  # kept of either side: more would be smaller than a dot in the plot
UNIT = 10_000  # weights are stored as multiples of 1 / UNIT


@dataclass(frozen=True)
class Trained:
    """The cost of a training."""

    updates: int
    seconds: float  # validation included
    target_tokens: int
    tokens_a_second: float  # target tokens, without validation
    flops: float
    data: str  # digest of the training data


@dataclass(frozen=True)
class Decoded:
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
    plan: Plan | None = None
    parameters: int = 0
    peak_memory: int = 0  # bytes, in training
    trained: Trained | None = None
    decoded: Decoded | None = None
    reason: str | None = None  # of a failure
    machine: dict[str, str] = field(default_factory=dict)  # it was trained on

    def failed(self, reason: str) -> Result:
        """This result with the status of a failure, and its reason."""
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


def result_path(output: Path, name: str) -> Path:
    """The file with the result of a model."""
    return output / "results" / f"{name}.json"


def outputs_path(output: Path, name: str) -> Path:
    """The file with the translations of a model."""
    return output / "outputs" / f"{name}.txt"


def run_path(output: Path, name: str) -> Path:
    """The run directory of a model."""
    return output / "runs" / name


def alignment_path(output: Path, name: str) -> Path:
    """The file with the alignment of a model."""
    return output / "alignments" / f"{name}.json"


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically, with its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(path), hint="make room, and run the same command again"
        ) from None


def write_result(output: Path, result: Result) -> None:
    """Write the result of a model."""
    write_text(result_path(output, result.name), json_text(asdict(result)))


def read_result(output: Path, name: str) -> Result | None:
    """The result of a model, if it exists."""
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


def make_alignment(sentence: str, found: Explanation) -> Alignment:
    """The alignment of an explanation: its first pieces, with weights rounded to four digits."""
    source, target = found.source_pieces[:MAX_PIECES], found.target_pieces[:MAX_PIECES]
    rows = found.alignment[: len(target), : len(source)].tolist()
    weights = tuple(tuple(round(UNIT * weight) / UNIT for weight in row) for row in rows)
    cut = len(found.source_pieces) > len(source) or len(found.target_pieces) > len(target)
    return Alignment(sentence, tuple(source), tuple(target), weights, cut)


def write_alignment(output: Path, name: str, alignment: Alignment) -> None:
    """Write the alignment of a model; one line of integers per row of weights."""
    rows = [" ".join(str(round(UNIT * weight)) for weight in row) for row in alignment.weights]
    text = json.dumps({**asdict(alignment), "weights": rows}, ensure_ascii=False, indent=0) + "\n"
    if len(text.encode("utf-8")) > MAX_JSON_BYTES:
        fault = "it is too long to be drawn"
        text = json.dumps(asdict(Alignment(alignment.sentence, fault=fault)), ensure_ascii=False) + "\n"
    write_text(alignment_path(output, name), text)


def read_alignment(output: Path, name: str, sentence: str) -> Alignment | None:
    """The alignment of a model for this sentence, if it exists."""
    path = alignment_path(output, name)
    if not path.exists():
        return None
    found = parse_alignment(path, read_json(path))
    return found if found.sentence == sentence else None


def parse_alignment(path: Path, values: dict[str, Any]) -> Alignment:
    """The inverse of `write_alignment`, for a file that may have been changed."""
    try:
        source, target = tuple(map(str, values["source_pieces"])), tuple(map(str, values["target_pieces"]))
        weights = tuple(tuple(int(part) / UNIT for part in row.split()) for row in values["weights"])
        fault = None if values["fault"] is None else str(values["fault"])
        found = Alignment(str(values["sentence"]), source, target, weights, bool(values["cut"]), fault)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damaged(path, "is no alignment of a comparison") from None
    if len(weights) != len(target) or any(len(row) != len(source) for row in weights):
        raise damaged(path, "has not one weight for each pair of pieces")
    return found

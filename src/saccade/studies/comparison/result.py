"""What is known of one model of a comparison, in one JSON file that is replaced as it gets further."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from saccade.errors import SaccadeError
from saccade.folder import damaged, json_text, read_json, replace_file
from saccade.studies.comparison.planning import Plan
from saccade.untrusted_files import shown

Status = Literal["planned", "trained", "done", "failed"]


@dataclass(frozen=True)
class Trained:
    """The cost of a training."""

    updates: int
    seconds: float  # validation included
    target_tokens: int
    tokens_a_second: float  # target tokens, validation not counted
    flops: float
    data: str  # digest of what it was trained on


@dataclass(frozen=True)
class Decoded:
    """The cost of translating the test set; the outputs have a file of their own."""

    seconds: float
    sentences: int
    tokens: int  # target tokens, end symbols included


@dataclass(frozen=True)
class Result:
    """How far one model is, and what was found."""

    name: str
    status: Status
    config: dict[str, Any] | None = None  # of the run
    plan: Plan | None = None
    parameters: int = 0
    peak_memory: int = 0  # bytes, of the training
    trained: Trained | None = None
    decoded: Decoded | None = None
    reason: str | None = None  # of a failure
    machine: dict[str, str] = field(default_factory=dict)  # that it was trained on

    def failed(self, reason: str) -> Result:
        """The same, with what went wrong."""
        return replace(self, status="failed", reason=" ".join(reason.split()))


def result_path(output: Path, name: str) -> Path:
    """Where the result of a model is kept."""
    return output / "results" / f"{name}.json"


def outputs_path(output: Path, name: str) -> Path:
    """Where the translations of a model are kept."""
    return output / "outputs" / f"{name}.txt"


def run_path(output: Path, name: str) -> Path:
    """The run directory of a model."""
    return output / "runs" / name


def write_result(output: Path, result: Result) -> None:
    """Replace what is known of a model."""
    path = result_path(output, result.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json_text(asdict(result)))
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(path), do="make room, and run the same command again"
        ) from None


def read_result(output: Path, name: str) -> Result | None:
    """What is known of a model, if anything is."""
    path = result_path(output, name)
    if not path.exists():
        return None
    values = read_json(path)
    try:
        result = TypeAdapter(Result).validate_python(values)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise damaged(path, f"{place} cannot be {shown(fault['input'])}: {fault['msg']}") from None
    if result.name != name:
        raise damaged(path, f"is the result of {shown(result.name)}")
    return result

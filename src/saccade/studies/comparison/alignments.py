"""Where each model looks in the sentence of a comparison; each alignment has a small file of its own."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError
from saccade.folder import MAX_JSON_BYTES, damaged, read_json, replace_file
from saccade.inference.explanation import Explanation

MOST_PIECES = 400  # of either side are kept: more would be smaller than a dot of the picture
UNIT = 10_000  # parts that a weight is counted in


@dataclass(frozen=True)
class Alignment:
    """Where a model looked in a sentence, or why nobody can say."""

    sentence: str
    source_pieces: tuple[str, ...] = ()
    target_pieces: tuple[str, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()  # (T, S)
    cut: bool = False  # whether there were more pieces
    fault: str | None = None


def alignment_of(sentence: str, found: Explanation) -> Alignment:
    """What is kept of an explanation: its first pieces, and weights of four digits."""
    source, target = found.source_pieces[:MOST_PIECES], found.target_pieces[:MOST_PIECES]
    rows = found.alignment[: len(target), : len(source)].tolist()
    weights = tuple(tuple(round(UNIT * weight) / UNIT for weight in row) for row in rows)
    cut = len(found.source_pieces) > len(source) or len(found.target_pieces) > len(target)
    return Alignment(sentence, tuple(source), tuple(target), weights, cut)


def alignment_path(output: Path, name: str) -> Path:
    """Where the alignment of a model is kept."""
    return output / "alignments" / f"{name}.json"


def write_alignment(output: Path, name: str, alignment: Alignment) -> None:
    """Replace the alignment of a model; a row of weights is a line of whole numbers."""
    path = alignment_path(output, name)
    rows = [" ".join(str(round(UNIT * weight)) for weight in row) for row in alignment.weights]
    text = json.dumps({**asdict(alignment), "weights": rows}, ensure_ascii=False, indent=0) + "\n"
    if len(text.encode("utf-8")) > MAX_JSON_BYTES:
        fault = "it is too long to be drawn"
        text = json.dumps(asdict(Alignment(alignment.sentence, fault=fault)), ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(path), do="make room, and run the same command again"
        ) from None


def read_alignment(output: Path, name: str, sentence: str) -> Alignment | None:
    """The alignment of a model in this sentence, if there is one."""
    path = alignment_path(output, name)
    if not path.exists():
        return None
    found = alignment_from(path, read_json(path))
    return found if found.sentence == sentence else None


def alignment_from(path: Path, values: dict[str, Any]) -> Alignment:
    """What `write_alignment` wrote, which anybody may have changed."""
    try:
        source, target = tuple(map(str, values["source_pieces"])), tuple(map(str, values["target_pieces"]))
        weights = tuple(tuple(int(part) / UNIT for part in row.split()) for row in values["weights"])
        fault = None if values["fault"] is None else str(values["fault"])
        found = Alignment(str(values["sentence"]), source, target, weights, bool(values["cut"]), fault)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damaged(path, "is no alignment of a comparison") from None
    if len(weights) != len(target) or any(len(row) != len(source) for row in weights):
        raise damaged(path, "has not a weight for each pair of pieces")
    return found

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from saccade.errors import SaccadeError
from saccade.folder import MAX_JSON_BYTES
from saccade.inference.explanation import Explanation
from saccade.inference.words import PieceWords
from saccade.studies.comparison.results import (
    MAX_PIECES,
    Alignment,
    alignment_path,
    make_alignment,
    read_alignment,
    write_alignment,
)


def explanation(target: int, source: int) -> Explanation:
    """An explanation with this many pieces and random weights."""
    torch.manual_seed(1)
    weights = torch.randn(target, source).softmax(-1)
    pieces = tuple(f"piece{number}" for number in range(max(target, source)))
    words = [PieceWords(pieces[:count], pieces[:count], tuple(range(count))) for count in (source, target)]
    return Explanation("x", "y", pieces[:source], pieces[:target], (), weights, *words)


def test_a_large_alignment_can_be_read_again(tmp_path: Path) -> None:
    written = make_alignment("a sentence", explanation(300, 300))
    write_alignment(tmp_path, "transformer", written)
    assert read_alignment(tmp_path, "transformer", "a sentence") == written
    assert alignment_path(tmp_path, "transformer").stat().st_size < MAX_JSON_BYTES / 2
    assert not written.cut
    assert written.output == "y"
    assert len(written.weights) == len(written.weights[0]) == 300
    assert written.weights[7][5] == pytest.approx(float(explanation(300, 300).alignment[7, 5]), abs=1e-4)


def test_a_long_alignment_is_cut(tmp_path: Path) -> None:
    written = make_alignment("a sentence", explanation(1000, 500))
    assert written.cut
    write_alignment(tmp_path, "transformer", written)
    found = read_alignment(tmp_path, "transformer", "a sentence")
    assert found == written
    assert len(found.target_pieces) == len(found.source_pieces) == MAX_PIECES


def test_an_alignment_that_is_too_large_becomes_a_fault(tmp_path: Path) -> None:
    write_alignment(tmp_path, "transformer", Alignment("a", ("x" * MAX_JSON_BYTES,), ("y",), ((1.0,),)))
    found = read_alignment(tmp_path, "transformer", "a")
    assert found == Alignment("a", fault="it is too long to be drawn")


def test_an_alignment_belongs_to_its_sentence(tmp_path: Path) -> None:
    assert read_alignment(tmp_path, "transformer", "a") is None
    write_alignment(tmp_path, "transformer", Alignment("a", ("x",), ("y",), ((1.0,),)))
    assert read_alignment(tmp_path, "transformer", "b") is None


@pytest.mark.parametrize("text", ["{}", '{"sentence": "a"}', "[]"])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    alignment_path(tmp_path, "a").parent.mkdir()
    alignment_path(tmp_path, "a").write_text(text, encoding="utf-8")
    with pytest.raises(SaccadeError, match=r"alignments/a\.json"):
        read_alignment(tmp_path, "a", "a")


def test_a_file_without_the_output_can_be_read(tmp_path: Path) -> None:
    write_alignment(tmp_path, "a", Alignment("a", ("x",), ("y",), ((1.0,),), output="z"))
    path = alignment_path(tmp_path, "a")
    values = json.loads(path.read_text(encoding="utf-8"))
    assert values.pop("output") == "z"
    path.write_text(json.dumps(values), encoding="utf-8")
    assert read_alignment(tmp_path, "a", "a") == Alignment("a", ("x",), ("y",), ((1.0,),))

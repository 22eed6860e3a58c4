from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command_line import Saccade

TINY = ("--lengths", "64,128", "--widths", "8,16", "--seconds", "0.01", "--path-lengths", "8", "--radius", "4")


def test_tables_json_csv_and_picture(saccade: Saccade, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("cost.json", "cost.csv", "cost.png")]
    answer = saccade("complexity", *TINY, "--json", files[0], "--csv", files[1], "--png", files[2])
    assert answer.code == 0
    for title in (
        "milliseconds",
        "peak MB",
        "exponents of n",
        "exponents of d",
        "sequential operations",
        "longest path",
    ):
        assert title in answer.out
    assert "n = 128" not in answer.out  # the path lengths are others
    written = json.loads(files[0].read_text(encoding="utf-8"))
    assert list(written["layers"]) == [
        *("explicit", "fused", "restricted", "recurrent", "convolution", "dilated", "separable")
    ]
    assert len(written["measurements"]) == 7 * 2 * 2
    assert written["layers"]["convolution"]["path_lengths"] == {"8": 7}
    assert written["layers"]["restricted"]["path_lengths_by_formula"] == {"8": 2}
    assert written["layers"]["recurrent"]["sequential_steps"] == {"8": 8}
    assert written["layers"]["fused"]["growth_in_length"]["16"]["sizes"] == [64, 128]
    assert written["machine"]["threads"] >= 1
    with files[1].open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 28
    assert all(float(row["forward_seconds"]) > 0 and row["left_out"] == "" for row in rows)
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_json_alone_goes_to_the_standard_output(saccade: Saccade) -> None:
    answer = saccade("complexity", *TINY, "--layers", "recurrent", "--json")
    assert answer.code == 0
    assert list(json.loads(answer.out)["layers"]) == ["recurrent"]
    assert "recurrent, d = 16, n = 128: " in answer.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--layers", "fusd"), 1, "did you mean 'fused'?"),
        (("--lengths", "64,0"), 2, "--lengths: '0' is not a positive whole number"),
        (("--lengths", "64,-128"), 2, "'-128' is not a positive whole number"),
        (("--widths", "wide"), 2, "--widths: 'wide' is not a positive whole number"),
        (("--path-lengths", "1.5"), 2, "--path-lengths: '1.5' is not a positive whole number"),
        (("--seconds", "0"), 2, "--seconds must be more than 0"),
        (("--memory", "-1"), 2, "--memory must be more than 0"),
        (("--kernel", "4"), 2, "--kernel must be odd"),
        (("--kernel", "1"), 2, "--kernel"),
        (("--radius", "0"), 2, "--radius"),
        (("--heads", "3"), 2, "a width of 64 cannot be split into 3 heads"),
        (("--png", "nowhere/at/all.png"), 1, "there is no such directory"),
        (("--lenghts", "64"), 2, "did you mean '--lengths'?"),
    ],
)
def test_faulty_arguments_are_refused_at_once(
    arguments: tuple[str, ...], code: int, message: str, saccade: Saccade
) -> None:
    answer = saccade("complexity", *arguments)
    assert answer.code == code
    assert message in answer.err
    assert answer.out == ""

from __future__ import annotations

from dataclasses import replace

import pytest

from saccade.cli.output.table import format_table
from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import Interval
from saccade.evaluation.length_buckets import Bucket
from saccade.models.family import Costs
from saccade.studies.comparison.budget import TrainingPlan
from saccade.studies.comparison.notes import make_notes
from saccade.studies.comparison.request import Entry, choose_sentence
from saccade.studies.comparison.results import Alignment, DecodingCost, Result, TrainingCost
from saccade.studies.comparison.scores import Row, Scores, check_same_data, find_baseline, read_curve
from saccade.studies.comparison.tables import csv_text, make_tables, split_table

BUCKETS = tuple(Bucket(low, low + 9, tuple(range(100 * low, 100 * low + 40))) for low in range(1, 72, 10))


def row(name: str, score: float | None, *, family: str = "transformer", updates: int = 100, data: str = "a") -> Row:
    entry = Entry(name, family, f"{name}-tiny")
    trained = TrainingCost(updates, 600.0, 3_000_000, 5012.3, 1.25e15, data)
    result = Result(
        name,
        "failed" if score is None else "done",
        {"data": {"vocabulary": 8000, "cache": name}, "decoding": {"beam": 5}},
        TrainingPlan(100, 6, 3000.0),
        2_349_568,
        1_250_000_000,
        trained,
        DecodingCost(20.0, 1000, 14_000),
        reason="out of memory" if score is None else None,
    )
    if score is None:
        return Row(entry, Costs("O(n^2 d)", "O(1)", "O(1)"), result)
    interval = Interval(score, score - 1, score + 1)
    return Row(entry, Costs("O(n d^2)", "O(n)", "O(n)"), result, interval, 55.0, (interval,) * len(BUCKETS))


def test_the_baseline_is_the_model_without_attention_or_the_lowest() -> None:
    first, second, third = row("a", 30.0), row("b", 20.0), row("c", 25.0, family="seq2seq")
    assert find_baseline([first, second, third]) == "c"
    assert find_baseline([first, second]) == "b"
    assert find_baseline([first, row("b", None)]) is None


def test_notes_on_single_models_and_on_all() -> None:
    aligned = replace(row("a", 30.0, updates=80), alignment=Alignment("x", ("x",), ("y",), ((1.0,),)))
    notes = make_notes([aligned, row("b", None)], [Bucket(21, None, (1, 2))], 0)
    assert "80 of 100 updates" in notes[0]
    assert notes[1] == "b failed: out of memory"
    assert "21+ words: 2" in notes[2]
    assert "no test sentence has more than 20 words" in notes[3]
    assert len(notes) == 4


def test_every_row_without_scores_has_a_note() -> None:
    for status in ("planned", "trained"):
        one = row("a", None)
        one = replace(one, result=replace(one.result, status=status, reason=None))
        assert make_notes([one], [], 1)[0] == f"a failed: it is only {status}"


def test_a_missing_or_shortened_alignment_is_noted() -> None:
    faulty = replace(row("a", 30.0), alignment=Alignment("x", fault="the output is empty"))
    cut = replace(row("b", 30.0), alignment=Alignment("x", ("x",), ("y",), ((1.0,),), cut=True))
    assert make_notes([faulty, cut], [], 1) == [
        "a has no alignment: the output is empty",
        "b: the plot shows the first 400 pieces of its alignment",
    ]


def test_tokens_of_different_kinds_are_noted() -> None:
    rows = []
    for name, data in (("a", {"tokenizer": "char"}), ("b", {"tokenizer": "bpe", "target_tokenizer": None})):
        one = row(name, None)
        rows.append(replace(one, result=replace(one.result, config={"data": data, "decoding": {"beam": 5}})))
    note = make_notes(rows, [], 1)[2]
    assert "a counts characters; b counts BPE pieces; compare sentences/s" in note
    assert len(make_notes(rows[:1], [], 1)) == 1


def test_rows_of_different_machines_are_noted() -> None:
    machines = [{"saccade": "1", "threads": "2"}, {"saccade": "1", "threads": "4"}, {}]
    rows = [row(name, None) for name in "abc"]
    rows = [
        replace(one, result=replace(one.result, machine=machine)) for one, machine in zip(rows, machines, strict=True)
    ]
    assert make_notes(rows, [], 1)[3].endswith("cannot be compared: threads 2 (a), 4 (b)")
    assert len(make_notes([rows[0], rows[2]], [], 1)) == 2


def test_a_plan_with_fewer_validations_is_noted() -> None:
    for plan, words in (
        (TrainingPlan(100, 1, 3000.0, None, 50), "so one is made, on 50 sentences"),
        (TrainingPlan(100, 0, 3000.0, None, 20), "so none is made before the end, on 20 sentences"),
        (TrainingPlan(100, 0, 3000.0), "so it has one at its end"),
    ):
        one = row("a", None)
        assert words in make_notes([replace(one, result=replace(one.result, plan=plan))], [], 1)[1]


def test_models_on_other_data_are_not_compared() -> None:
    check_same_data([row("a", 30.0), row("b", 20.0)])
    with pytest.raises(SaccadeError):
        check_same_data([row("a", 30.0), row("b", 20.0, data="b")])


def test_tables_fit_a_terminal_and_keep_every_column() -> None:
    rows = (row("transformer-small", 38.25), row("bahdanau", None))
    found = Scores(rows, BUCKETS, 1000, 0, None, (), (), ())
    for one in make_tables(found):
        parts = split_table(one, 120)
        assert max(len(line) for part in parts for line in format_table(part.cells).splitlines()) <= 120
        assert [name for part in parts for name in part.cells[0][1:]] == one.cells[0][1:]
        assert all(part.cells[0][0] == "model" for part in parts)
    quality = make_tables(found)[0].cells
    assert quality[1][2:5] == ["38.25", "[37.25, 39.25]", "55.00"]
    assert quality[2][2:5] == ["failed", "–", "–"]
    cost = make_tables(found)[1].cells
    assert cost[1][1:5] == ["5,012", "700", "50.0", "1.25 GB"]
    lines = csv_text(found).splitlines()
    assert lines[0].startswith("model,family,preset,status,reason,bleu,bleu_low,bleu_high,chrf")
    assert lines[2].startswith("bahdanau,transformer,bahdanau-tiny,failed,out of memory,,,,")


def test_minutes_of_a_validation_are_interpolated(tmp_path) -> None:
    assert read_curve(tmp_path, None) is None
    (tmp_path / "metrics.csv").write_text("step,valid_bleu\n10,\n15,4.5\n20,\n40,9\n", encoding="utf-8")
    (tmp_path / "timing.csv").write_text("step,seconds\n10,60\n20,120\n40,300\n", encoding="utf-8")
    found = read_curve(tmp_path, "early stopping")
    assert found is not None
    assert found.minutes == pytest.approx([1.5, 5.0])
    assert (found.values, found.early_end) == ([4.5, 9.0], "early stopping")


def test_the_sentence_to_plot() -> None:
    def words(count: int) -> str:
        return " ".join([f"w{count}"] * count)

    assert choose_sentence([words(3), words(19), words(18), words(12)]) == words(18)
    assert choose_sentence(["", words(30), words(8)]) == words(8)

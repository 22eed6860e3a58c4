from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
from command_line import Saccade


@pytest.fixture
def test_set(data: Path) -> list[object]:
    return ["--source", data / "test.en", "--reference", data / "test.de"]


def test_scores_are_printed_and_saved(run: Path, test_set: list[object], tmp_path: Path, saccade: Saccade) -> None:
    saved = run / "eval" / "test.json"
    saved.unlink(missing_ok=True)  # other tests evaluate this run too
    result = saccade("evaluate", run, *test_set, "--output", tmp_path / "out", "--beam", 1)
    assert result.code == 0
    names = [line.split()[0] for line in result.out.splitlines()]
    assert names == ["exact-match", "chrF2", "TER", "BLEU", "perplexity", "8"]  # the references are single words
    assert "tok:13a" in result.out
    assert result.err.endswith(f"saved as {saved}\n")
    values = json.loads(saved.read_text())
    assert [score["name"] for score in values["scores"]] == names[:-1]
    assert values["decoding"]["beam"] == 1
    assert values["model"] == str(run)
    source = Path(str(test_set[1])).read_text()
    assert (tmp_path / "out").read_text() == saccade("translate", run, "--beam", 1, stdin=source).out
    assert f"replaced {saved}" in saccade("evaluate", run, *test_set, "--metric", "bleu").err


def test_name_of_the_saved_result(run: Path, test_set: list[object], saccade: Saccade) -> None:
    saccade("evaluate", run, *test_set, "--metric", "chrf", "--name", "other")
    assert (run / "eval" / "other.json").is_file()


def test_results_are_not_saved_in_a_model_folder(run: Path, test_set: list[object], saccade: Saccade) -> None:
    result = saccade("evaluate", run / "model-best", *test_set, "--metric", "chrf")
    assert (result.code, result.err) == (0, "")
    assert not (run / "model-best" / "eval").exists()


def test_json_on_stdout_and_in_a_file(run: Path, test_set: list[object], tmp_path: Path, saccade: Saccade) -> None:
    printed = json.loads(saccade("evaluate", "--json", run, *test_set, "--metric", "chrf", "--metric", "bleu").out)
    assert [score["name"] for score in printed["scores"]] == ["chrF2", "BLEU"]
    saccade("evaluate", run, *test_set, "--json", tmp_path / "a.json", "--metric", "chrf", "--metric", "bleu")
    assert json.loads((tmp_path / "a.json").read_text()) == printed


def test_perplexity(run: Path, test_set: list[object], saccade: Saccade) -> None:
    values = json.loads(saccade("evaluate", run, *test_set, "--metric", "perplexity", "--json").out)
    assert values["scores"][0]["name"] == "perplexity"
    assert 1 < values["scores"][0]["value"] < 1000


def test_hypotheses_without_a_model(tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "out").write_text("a b c d\nE f g h\n")
    (tmp_path / "one").write_text("a b c d\ne f g h\n")
    (tmp_path / "two").write_text("x\nE f g h\n")
    files = ["--hypotheses", tmp_path / "out", "--reference", tmp_path / "one"]
    both = ["--reference", tmp_path / "two", "--metric", "exact-match"]
    assert saccade("evaluate", *files).out.startswith("BLEU")
    assert "exact-match  50.00" in saccade("evaluate", *files, "--metric", "exact-match").out
    assert "exact-match  100.00" in saccade("evaluate", *files, *both).out
    lower = saccade("evaluate", *files, "--metric", "bleu", "--lowercase", "--tokenize", "none").out
    assert "BLEU  100.00" in lower
    assert "case:lc" in lower
    assert "tok:none" in lower


def test_keyed_references(tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "source").write_text("READ\nLEAD\n")
    (tmp_path / "out").write_text("R EH D\nL IY D\n")
    (tmp_path / "keyed").write_text("LEAD\tL EH D\nLEAD\tL IY D\nREAD\tR IY D\nREAD\tR EH D\n")
    result = saccade(
        *("evaluate", "--hypotheses", tmp_path / "out", "--source", tmp_path / "source"),
        *("--reference", tmp_path / "keyed", "--keyed-references", "--metric", "sequence-error"),
    )
    assert "sequence-error  0.00  ↓  nrefs:2" in result.out


def test_comparison_with_a_baseline(run: Path, test_set: list[object], tmp_path: Path, saccade: Saccade) -> None:
    metrics = ["--metric", "chrf", "--metric", "exact-match", "--metric", "perplexity"]
    reference = tmp_path / "right"
    reference.write_text(Path(str(test_set[3])).read_text())
    values = json.loads(saccade("evaluate", run, *test_set, *metrics, "--baseline-output", reference, "--json").out)
    assert [comparison["name"] for comparison in values["comparisons"]] == ["chrf", "exact-match"]
    assert values["comparisons"][1]["baseline"]["value"] == 100
    same = saccade("evaluate", run, *test_set, *metrics, "--baseline", run / "model-last")
    assert same.out.count("p = ") == 2


def test_bootstrap_with_another_bleu_is_an_error(tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "a").write_text("one\n")
    files = ["--hypotheses", tmp_path / "a", "--reference", tmp_path / "a", "--baseline-output", tmp_path / "a"]
    assert saccade("evaluate", *files, "--lowercase").code == 2


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_one_file_of_pairs(
    suffix: str, run: Path, data: Path, test_set: list[object], tmp_path: Path, saccade: Saccade
) -> None:
    pairs = list(zip(*((data / f"test.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    path = tmp_path / f"pairs{suffix}"
    with path.open("w", newline="") as file:
        if suffix == ".tsv":
            file.writelines(f"{source}\t{target}\n" for source, target in pairs)
        elif suffix == ".csv":
            csv.writer(file).writerows([("target", "source"), *((target, source) for source, target in pairs)])
        else:
            file.writelines(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs)
    result = saccade("evaluate", run, "--source", path, "--no-save")
    assert result.code == 0, result.err
    assert result.out == saccade("evaluate", run, *test_set, "--no-save").out


def test_plain_text_without_references_is_an_error(run: Path, data: Path, saccade: Saccade) -> None:
    result = saccade("evaluate", run, "--source", data / "test.en")
    assert result.code == 2
    assert "--reference" in result.err


def test_confidence_intervals(tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "out").write_text("a b c d\nx y\n" * 20)
    (tmp_path / "right").write_text("a b c d\ne f\n" * 20)
    files = ["evaluate", "--hypotheses", tmp_path / "out", "--reference", tmp_path / "right"]
    scores = json.loads(saccade(*files, "--confidence", "--json").out)["scores"]
    assert len(scores) == 4
    for score in scores:
        low, high = score["interval"]
        assert low < score["value"] < high
    assert "[" in saccade(*files, "--confidence").out
    assert "interval" not in json.loads(saccade(*files, "--json").out)["scores"][0]
    assert saccade(*files, "--confidence", "--lowercase").code == 2


def test_no_save_leaves_the_run_untouched(run: Path, test_set: list[object], saccade: Saccade) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert saccade("evaluate", run, *test_set, "--no-save").code == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert saccade("evaluate", run, *test_set, "--no-save", "--name", "x").code == 2


def test_read_only_run(run: Path, test_set: list[object], monkeypatch: pytest.MonkeyPatch, saccade: Saccade) -> None:
    (run / "eval" / "test.json").unlink(missing_ok=True)
    # Permissions do not bind the superuser, who may run the tests.
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    result = saccade("evaluate", run, *test_set, "--metric", "chrf")
    assert result.code == 0
    assert result.out.startswith("chrF2")
    assert "read-only" in result.err
    assert not (run / "eval" / "test.json").exists()


@pytest.mark.parametrize("name", ["../model-best/config", "/tmp/x", "a/b", "..", "", ".hidden", "a\nb", "x" * 300])
def test_the_name_of_a_result_stays_in_its_folder(
    name: str, run: Path, test_set: list[object], saccade: Saccade
) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert saccade("evaluate", run, *test_set, "--name", name).code == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before

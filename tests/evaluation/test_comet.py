"""COMET by a stub of the package unbabel-comet: its weights are too large for a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from comet_stub import HUB, comet_stub, make_comet_model

from saccade.cli.main import main
from saccade.errors import SaccadeError
from saccade.evaluation.bootstrap import compare_means, interval, mean_interval, paired_bootstrap
from saccade.evaluation.comet import CometTestSet, load_comet

CPU = torch.device("cpu")
SOURCES = ["a dog", "two cats", "a bird"]
REFERENCES = ["ein Hund bellt", "zwei Katzen schlafen", "ein Vogel singt"]
OUTPUTS = ["ein Hund bellt", "zwei Katzen", "eine Maus"]

Calls = list[tuple[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    """Install the stub; the list of calls of its functions."""
    module, calls = comet_stub(tmp_path)
    monkeypatch.setitem(sys.modules, "comet", module)
    return calls


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    """Options of `saccade evaluate` for outputs, sources and references."""
    for name, lines in (("src", SOURCES), ("out", OUTPUTS), ("ref", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    options = (("--hypotheses", "out"), ("--source", "src"), ("--reference", "ref"))
    return [part for option, name in options for part in (option, tmp_path / name)]


def evaluate(*arguments: object) -> int:
    return main([str(argument) for argument in ("evaluate", *arguments)])


class TestLoading:
    def test_folder_and_checkpoint_are_not_downloaded(self, calls: Calls, tmp_path: Path) -> None:
        checkpoint = make_comet_model(tmp_path / "my-comet")
        for path in (checkpoint, tmp_path / "my-comet"):
            assert load_comet(str(path), CPU).name == "my-comet"
        assert calls == [("load", (str(checkpoint), True))] * 2

    def test_name_is_downloaded(self, calls: Calls) -> None:
        assert load_comet(HUB, CPU).name == HUB
        assert [name for name, _ in calls] == ["download", "load"]
        assert calls[1][1][1] is False

    @pytest.mark.parametrize("model", ["/no/such/model", "./folder", "model.ckpt", "~/model"])
    def test_missing_path_is_not_taken_for_a_name(self, calls: Calls, model: str) -> None:
        with pytest.raises(SaccadeError):
            load_comet(model, CPU)
        assert not calls

    def test_unknown_name_and_folder_without_a_model(self, calls: Calls, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "model.ckpt").write_bytes(b"x")
        for model in ("nobody/nothing", str(tmp_path / "empty"), str(tmp_path / "a" / "b" / "model.ckpt")):
            with pytest.raises(SaccadeError) as caught:
                load_comet(model, CPU)
            assert caught.value.hint

    def test_missing_package(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "comet", None)
        with pytest.raises(SaccadeError) as caught:
            load_comet(str(tmp_path), CPU)
        assert caught.value.hint == "pip install 'saccade[comet]'"


class TestScores:
    def test_score_is_the_mean_of_all_sentences(self, calls: Calls, recwarn: pytest.WarningsRecorder) -> None:
        found = CometTestSet(load_comet(HUB, CPU), SOURCES, [[reference, "another"] for reference in REFERENCES])
        score = found.score(OUTPUTS)
        assert score.value == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
        assert score.higher_is_better
        assert HUB in str(score.signature)
        found.interval(OUTPUTS)
        found.compare(SOURCES, OUTPUTS)
        assert [name for name, _ in calls].count("predict") == 2  # once for each system
        assert calls[2][1][1] == {"src": "two cats", "mt": "zwei Katzen", "ref": "zwei Katzen schlafen"}
        assert not recwarn.list

    def test_other_numbers_of_lines(self, calls: Calls) -> None:
        model = load_comet(HUB, CPU)
        with pytest.raises(SaccadeError):
            model.sentence_scores(SOURCES[:2], OUTPUTS, [[one] for one in REFERENCES])
        with pytest.raises(SaccadeError):
            model.sentence_scores(SOURCES, OUTPUTS[:2], [[one] for one in REFERENCES])

    def test_nan(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "comet", comet_stub(tmp_path, nan=True)[0])
        with pytest.raises(SaccadeError):
            load_comet(HUB, CPU).sentence_scores(SOURCES, OUTPUTS, [[one] for one in REFERENCES])

    def test_bootstrap_of_means_equals_that_of_a_metric_that_is_a_mean(self) -> None:
        references = [[reference] for reference in REFERENCES * 20]
        system, baseline = (OUTPUTS * 20, REFERENCES[:1] * 60)
        scores = [[100.0 * (output == one[0]) for output, one in zip(outputs, references, strict=True)]
                  for outputs in (baseline, system)]  # fmt: skip
        expected = paired_bootstrap("exact-match", baseline, system, references)
        assert compare_means("exact-match", *scores) == expected
        assert mean_interval(scores[1]) == interval("exact-match", system, references)


class TestCommand:
    def test_scores_are_printed(self, calls: Calls, files: list[object], capsys: pytest.CaptureFixture[str]) -> None:
        metrics = ("--metric", "bleu", "--metric", "comet", "--metric", "chrf", "--comet-model", HUB)
        assert evaluate(*files, *metrics, "--confidence") == 0
        names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
        assert names == ["BLEU", "COMET", "chrF2", "3"]

    def test_json_has_interval_and_comparison(
        self, calls: Calls, files: list[object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ("--metric", "comet", "--comet-model", HUB, "--confidence", "--baseline-output", tmp_path / "src")
        assert evaluate(*files, *options, "--json") == 0
        values = json.loads(capsys.readouterr().out)
        [score], [comparison] = values["scores"], values["comparisons"]
        assert score["interval"][0] <= score["value"] <= score["interval"][1]
        assert comparison["baseline"]["value"] == 0

    def test_usage_errors(self, calls: Calls, files: list[object]) -> None:
        assert evaluate(*files, "--metric", "comet") == 2
        assert evaluate(*files, "--comet-model", HUB) == 2
        without_source = [*files[:2], *files[4:]]
        assert evaluate(*without_source, "--metric", "comet", "--comet-model", HUB) == 2
        assert not calls

    def test_missing_package_is_reported_before_translating(
        self, files: list[object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "comet", None)
        assert evaluate(*files, "--metric", "comet", "--comet-model", HUB) == 1
        assert "pip install 'saccade[comet]'" in capsys.readouterr().err

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import TINY, Saccade

from saccade.config import read_yaml
from saccade.training.config import RunConfig


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configs that training was asked for; nothing is trained."""
    configs: list[RunConfig] = []

    def train(config: RunConfig) -> Any:
        configs.append(config)
        return SimpleNamespace(interrupted=None)

    monkeypatch.setattr("saccade.training.run.train", train)
    return configs


def test_a_run_leaves_a_model_and_its_settings(run: Path) -> None:
    values = read_yaml(run / "config.yaml")
    assert values["model"]["width"] == 16
    assert values["training"]["max_steps"] == 12
    assert (run / "model-best" / "model.safetensors").is_file()


def test_training_says_everything_on_stderr_and_where_it_lies_first_and_last(
    data: Path, tmp_path: Path, saccade: Saccade
) -> None:
    answer = saccade(
        *("train", "--source", data / "train.en", "--target", data / "train.de", "--output", tmp_path / "x"),
        *("--training.max-steps", 1, *TINY),
    )
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.splitlines()[0] == answer.err.splitlines()[-1] == f"run directory: {tmp_path / 'x'}"


def test_resume_goes_on_in_place(run: Path, saccade: Saccade) -> None:
    answer = saccade("train", "--resume", run, "--training.max-steps", 13)
    assert answer.code == 0
    assert (run / "checkpoints" / "step-13").is_dir()


def test_a_run_is_never_overwritten(run: Path, data: Path, saccade: Saccade) -> None:
    answer = saccade("train", "--source", data / "train.en", "--target", data / "train.de", "--output", run)
    assert answer.code == 1
    assert f"saccade train --resume {run}" in answer.err


def test_a_recipe_takes_settings_before_and_after_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunConfig], saccade: Saccade
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(data))
    recipe = tmp_path / "numbers.yaml"
    recipe.write_text("model: {preset: transformer-tiny}\ndata: {source: train.en, target: train.de}\n")
    answer = saccade(
        *("train", "--training.learning-rate", "7e-4", recipe, "--training.metrics=bleu,chrf"),
        *("--model.norm", "pre", "--output", tmp_path / "x"),
    )
    assert answer == (0, "", "")
    config = started[0]
    assert config.data.source == (str(data / "train.en"),)
    assert config.training.learning_rate == 7e-4
    assert config.training.metrics == ("bleu", "chrf")
    assert config.model["norm"] == "pre"


def test_several_corpora_are_named_one_after_the_other(
    data: Path, tmp_path: Path, started: list[RunConfig], saccade: Saccade
) -> None:
    files = [str(data / "train.en"), str(data / "train.de")]
    both = [option for source, target in (files, files[::-1]) for option in ("--source", source, "--target", target)]
    answer = saccade("train", *both, "--data.weights", "3,1", "--output", tmp_path / "x")
    assert answer == (0, "", "")
    data_config = started[0].data
    assert data_config.source == tuple(files)
    assert data_config.target == tuple(files[::-1])
    assert data_config.weights == (3.0, 1.0)
    answer = saccade("train", *both[:6], "--output", tmp_path / "y")
    assert answer.code == 2
    assert "2 source files have 1 target files: give one for each, or none" in answer.err


def test_a_recipe_lists_several_corpora(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunConfig], saccade: Saccade
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(data))
    recipe = tmp_path / "mixed.yaml"
    corpora = "source: [train.en, train.de], target: [train.de, train.en], temperature: 5"
    recipe.write_text(f"model: {{preset: transformer-tiny}}\ndata: {{{corpora}}}\n")
    assert saccade("train", recipe, "--output", tmp_path / "x") == (0, "", "")
    assert started[0].data.source == (str(data / "train.en"), str(data / "train.de"))
    assert started[0].data.target == (str(data / "train.de"), str(data / "train.en"))


def test_without_an_output_the_first_free_number_is_taken(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunConfig], saccade: Saccade
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "transformer-tiny-1").mkdir(parents=True)
    for arguments in ([], ["--preset", "transformer-small"]):
        assert saccade("train", "--source", data / "train.en", "--target", data / "train.de", *arguments).code == 0
    assert [config.output for config in started] == ["runs/transformer-tiny-2", "runs/transformer-small-1"]
    assert [config.model["width"] for config in started] == [128, 256]


@pytest.mark.parametrize(("name", "code"), [("Ctrl-C", 130), ("SIGTERM", 143)])
def test_a_signal_shows_in_the_exit_code(
    name: str, code: int, data: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
) -> None:
    monkeypatch.setattr("saccade.training.run.train", lambda _: SimpleNamespace(interrupted=name))
    assert saccade("train", "--source", data / "train.en", "--target", data / "train.de").code == code


def test_ctrl_c_saves_and_leaves(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "saccade.cli.main", "train", "--output", str(tmp_path / "x")]
    command += ["--source", str(data / "train.en"), "--target", str(data / "train.de"), *TINY]
    command += ["--training.max-steps", "100000", "--training.log-every", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step "):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert (tmp_path / "x" / "model-last" / "model.safetensors").is_file()

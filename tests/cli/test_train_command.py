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
    """Collects the configs passed to training; nothing is trained."""
    configs: list[RunConfig] = []

    def train(config: RunConfig) -> Any:
        configs.append(config)
        return SimpleNamespace(interrupted=None)

    monkeypatch.setattr("saccade.training.run.train", train)
    return configs


def test_run_directory_has_model_and_config(run: Path) -> None:
    values = read_yaml(run / "config.yaml")
    assert values["model"]["width"] == 16
    assert values["training"]["max_steps"] == 12
    assert (run / "model-best" / "model.safetensors").is_file()


def test_stderr_starts_and_ends_with_the_run_directory(data: Path, tmp_path: Path, saccade: Saccade) -> None:
    result = saccade(
        *("train", "--source", data / "train.en", "--target", data / "train.de", "--output", tmp_path / "x"),
        *("--training.max-steps", 1, *TINY),
    )
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines()[0] == result.err.splitlines()[-1] == f"run directory: {tmp_path / 'x'}"


def test_resume_continues_the_run(run: Path, saccade: Saccade) -> None:
    result = saccade("train", "--resume", run, "--training.max-steps", 13)
    assert result.code == 0
    assert (run / "checkpoints" / "step-13").is_dir()


def test_existing_run_is_not_overwritten(run: Path, data: Path, saccade: Saccade) -> None:
    result = saccade("train", "--source", data / "train.en", "--target", data / "train.de", "--output", run)
    assert result.code == 1
    assert f"saccade train --resume {run}" in result.err


def test_settings_before_and_after_a_recipe(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunConfig], saccade: Saccade
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(data))
    recipe = tmp_path / "numbers.yaml"
    recipe.write_text("model: {preset: transformer-tiny}\ndata: {source: train.en, target: train.de}\n")
    result = saccade(
        *("train", "--training.learning-rate", "7e-4", recipe, "--training.metrics=bleu,chrf"),
        *("--model.norm", "pre", "--output", tmp_path / "x"),
    )
    assert result == (0, "", "")
    config = started[0]
    assert config.data.source == (str(data / "train.en"),)
    assert config.training.learning_rate == 7e-4
    assert config.training.metrics == ("bleu", "chrf")
    assert config.model["norm"] == "pre"


def test_several_corpora(data: Path, tmp_path: Path, started: list[RunConfig], saccade: Saccade) -> None:
    files = [str(data / "train.en"), str(data / "train.de")]
    both = [option for source, target in (files, files[::-1]) for option in ("--source", source, "--target", target)]
    result = saccade("train", *both, "--data.weights", "3,1", "--output", tmp_path / "x")
    assert result == (0, "", "")
    data_config = started[0].data
    assert data_config.source == tuple(files)
    assert data_config.target == tuple(files[::-1])
    assert data_config.weights == (3.0, 1.0)
    result = saccade("train", *both[:6], "--output", tmp_path / "y")
    assert result.code == 2
    assert "2 source files" in result.err


def test_several_corpora_in_a_recipe(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunConfig], saccade: Saccade
) -> None:
    monkeypatch.setenv("SACCADE_DATA", str(data))
    recipe = tmp_path / "mixed.yaml"
    corpora = "source: [train.en, train.de], target: [train.de, train.en], temperature: 5"
    recipe.write_text(f"model: {{preset: transformer-tiny}}\ndata: {{{corpora}}}\n")
    assert saccade("train", recipe, "--output", tmp_path / "x") == (0, "", "")
    assert started[0].data.source == (str(data / "train.en"), str(data / "train.de"))
    assert started[0].data.target == (str(data / "train.de"), str(data / "train.en"))


def test_default_output_is_the_first_free_number(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[RunConfig], saccade: Saccade
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "transformer-tiny-1").mkdir(parents=True)
    for arguments in ([], ["--preset", "transformer-small"]):
        assert saccade("train", "--source", data / "train.en", "--target", data / "train.de", *arguments).code == 0
    assert [config.output for config in started] == ["runs/transformer-tiny-2", "runs/transformer-small-1"]
    assert [config.model["width"] for config in started] == [128, 256]


@pytest.mark.parametrize(("name", "code"), [("Ctrl-C", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_exit_code_after_a_signal(
    name: str, code: int, data: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
) -> None:
    monkeypatch.setattr("saccade.training.run.train", lambda _: SimpleNamespace(interrupted=name))
    assert saccade("train", "--source", data / "train.en", "--target", data / "train.de").code == code


def test_ctrl_c_saves_the_model(data: Path, tmp_path: Path) -> None:
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

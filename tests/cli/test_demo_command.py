from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import Saccade

from saccade.cli import demo
from saccade.data.number_words import number_pairs
from saccade.training.config import RunConfig


@pytest.fixture
def small_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A smaller demo, in an empty current directory."""
    numbers = number_pairs(train=300, valid=10, test=10, below=1000, seed=1)
    full_config = demo.demo_config

    def short(directory: Path, minutes: float) -> RunConfig:
        config = full_config(directory, minutes)
        model: dict[str, Any] = {**config.model, "width": 16, "feed_forward": 32}
        return config.model_copy(
            update={"model": model, "training": config.training.model_copy(update={"max_steps": 5})}
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "make_numbers", lambda: numbers)
    monkeypatch.setattr(demo, "demo_config", short)
    return tmp_path


def test_demo_output_and_suggested_commands(small_demo: Path, saccade: Saccade) -> None:
    result = saccade("demo")
    assert result.code == 0
    assert result.out.startswith("demo directory: demo\n")
    assert "exact match on 10 unseen numbers" in result.out
    assert "█" in result.out
    assert (small_demo / "demo" / "alignment.png").is_file()
    assert {path.name for path in (small_demo / "demo").glob("*.??")} >= {"train.en", "train.de", "test.en", "test.de"}

    commands = result.out.partition("what to try next:")[2].splitlines()
    for command in ("translate", "attention", "evaluate"):
        line = next(line for line in commands if f" {command} demo/run" in line)
        arguments = shlex.split(line.partition(f" {command} ")[2])
        assert saccade(command, *arguments, stdin="seven\n").code == 0


def test_demo_chooses_a_new_directory(small_demo: Path) -> None:
    for name in ("demo", "demo-2"):
        (small_demo / name).mkdir()
    assert demo.new_directory(None) == Path("demo-3")


def test_demo_config(tmp_path: Path) -> None:
    config = demo.demo_config(tmp_path)
    assert config.training.max_minutes == 3
    assert config.output == str(tmp_path / "run")


def test_test_numbers_are_not_in_the_training_data() -> None:
    numbers = number_pairs(train=300, valid=10, test=10, below=1000, seed=1)
    assert not {pair.source for pair in numbers.test} & {pair.source for pair in (*numbers.train, *numbers.valid)}

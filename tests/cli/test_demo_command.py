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
    """The demo with less to learn, in a directory of its own."""
    numbers = number_pairs(train=300, valid=10, test=10, below=1000, seed=1)
    whole = demo.demo_config

    def short(directory: Path, minutes: float) -> RunConfig:
        config = whole(directory, minutes)
        model: dict[str, Any] = {**config.model, "width": 16, "feed_forward": 32}
        return config.model_copy(
            update={"model": model, "training": config.training.model_copy(update={"max_steps": 5})}
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "make_numbers", lambda: numbers)
    monkeypatch.setattr(demo, "demo_config", short)
    return tmp_path


def test_the_demo_tells_its_story_and_its_commands_work(small_demo: Path, saccade: Saccade) -> None:
    answer = saccade("demo")
    assert answer.code == 0
    assert answer.out.startswith("demo directory: demo\n")
    assert "exact match on 10 unseen numbers" in answer.out
    assert "█" in answer.out
    assert (small_demo / "demo" / "alignment.png").is_file()
    assert {path.name for path in (small_demo / "demo").glob("*.??")} >= {"train.en", "train.de", "test.en", "test.de"}

    commands = answer.out.partition("what to try next:")[2].splitlines()
    for verb in ("translate", "attention", "evaluate"):
        line = next(line for line in commands if f" {verb} demo/run" in line)
        arguments = shlex.split(line.partition(f" {verb} ")[2])
        assert saccade(verb, *arguments, stdin="seven\n").code == 0


def test_the_demo_never_overwrites(small_demo: Path) -> None:
    for name in ("demo", "demo-2"):
        (small_demo / name).mkdir()
    assert demo.new_directory(None) == Path("demo-3")


def test_the_demo_config_is_complete(tmp_path: Path) -> None:
    config = demo.demo_config(tmp_path)
    assert config.training.max_minutes == 3
    assert config.output == str(tmp_path / "run")


def test_the_test_numbers_are_unseen() -> None:
    numbers = number_pairs(train=300, valid=10, test=10, below=1000, seed=1)
    assert not {pair.source for pair in numbers.test} & {pair.source for pair in (*numbers.train, *numbers.valid)}

"""Sequences of recipes in the time-to-quality benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import quality

TEXTS = {"train": 4, "val": 2, "test_2016_flickr": 3}


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tok"
    folder.mkdir()
    for name, lines in TEXTS.items():
        for language in ("en", "de"):
            text = "".join(f"{language} line {number} of {name}\n" for number in range(lines))
            (folder / f"{name}.lc.norm.tok.{language}").write_text(text)
    monkeypatch.setattr(quality, "CACHE", tmp_path / "cache")
    return folder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Records the commands; a fake run is finished after it was resumed once."""
    seen: list[list[str]] = []

    def call(command: list[str], _: str) -> None:
        words = command[len(quality.SACCADE) :]
        seen.append(words)
        if words[0] == "translate":
            source, output = (Path(words[words.index(name) + 1]) for name in ("--input", "--output"))
            output.write_text(source.read_text().replace("en line", "de line"))
            return
        run = Path(words[words.index("--resume" if "--resume" in words else "--output") + 1])
        (run / "checkpoints" / ("step-7" if "--resume" in words else "step-3")).mkdir(parents=True)
        (run / "config.yaml").write_text("training:\n  max_steps: 7\n")

    monkeypatch.setattr(quality, "call", call)
    return seen


def recipe(path: Path, target: str) -> Path:
    path.write_text(f"data:\n  target: {target}\n")
    return path


def test_recipe_with_two_targets_trains_on_translations(origin, calls, tmp_path, monkeypatch):
    monkeypatch.setattr(quality.Stopwatch, "minutes", lambda _: 4.9)  # for every reading of the stopwatch
    recipes = [recipe(tmp_path / "first.yaml", "a.de"), recipe(tmp_path / "second.yaml", "[a.de, b.de]")]
    points = list(quality.saccade_points(origin, recipes, [10.0, 20.0, 40.0]))
    assert [point.bleu for point in points] == pytest.approx([100.0] * 3)
    assert [point.minutes for point in points] == pytest.approx([9.8, 19.6, 39.2])
    assert [point.setting for point in points] == ["first.yaml", "first.yaml", "first.yaml, second.yaml"]
    kinds = ["resume" if "--resume" in words else "from" if "--from" in words else words[0] for words in calls]
    assert kinds == ["train", "translate", "resume", "translate", "translate", "from", "resume", "translate"]
    work = tmp_path / "cache" / "quality" / "saccade" / "work"
    second = calls[5]
    sources, targets = (
        [second[at + 1] for at, word in enumerate(second) if word == side] for side in ("--source", "--target")
    )
    assert sources == [str(work / "train.source")] * 2
    assert targets == [str(work / "train.target"), str(work / "train.translated")]
    assert (work / "train.translated").read_text() == (work / "train.target").read_text()
    minutes = [float(words[-1]) for words in calls if words[0] == "train"]
    assert minutes == pytest.approx([4.7, 9.6, 15.1, 20.4])  # cumulative training time of each run

from __future__ import annotations

import json
from pathlib import Path

from command_line import Saccade


def test_training_cost_and_scores_of_a_run(run: Path, data: Path, saccade: Saccade) -> None:
    saccade("evaluate", run, "--source", data / "test.en", "--reference", data / "test.de", "--name", "named")
    result = saccade("info", run)
    assert result.code == 0
    for words in (
        "Vaswani",
        "80 bpe tokens for both sides",
        "width 16",
        "length-penalty gnmt",
        "FLOPs",
        "named: exact-match",
    ):
        assert words in result.out
    values = json.loads(saccade("info", run, "--json").out)
    assert values["family"] == "transformer"
    assert values["parameters"] > 0
    assert values["training"]["step"] >= 12
    assert values["evaluations"]["named"]["exact-match"] == 0


def test_model_folder_without_a_run(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    saccade("average", run, "--last", 2, "--output", tmp_path / "alone")
    result = saccade("info", tmp_path / "alone")
    assert result.code == 0
    assert "see the model card" in result.out


def test_damaged_folder_is_an_error(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    saccade("average", run, "--last", 2, "--output", tmp_path / "damaged")
    with (tmp_path / "damaged" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    result = saccade("info", tmp_path / "damaged")
    assert result.code == 1
    assert "SHA-256" in result.err

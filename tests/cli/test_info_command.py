from __future__ import annotations

import json
from pathlib import Path

from command_line import Saccade


def test_a_run_tells_its_cost_and_its_scores(run: Path, data: Path, saccade: Saccade) -> None:
    saccade("evaluate", run, "--source", data / "test.en", "--reference", data / "test.de", "--name", "told")
    answer = saccade("info", run)
    assert answer.code == 0
    for words in ("Vaswani", "80 bpe tokens for both sides", "width 16", "length-penalty gnmt", "FLOPs", "told: BLEU"):
        assert words in answer.out
    values = json.loads(saccade("info", run, "--json").out)
    assert values["family"] == "transformer"
    assert values["parameters"] > 0
    assert values["training"]["step"] >= 12
    assert values["evaluations"]["told"]["exact-match"] == 0


def test_a_model_folder_alone(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    saccade("average", run, "--last", 2, "--output", tmp_path / "alone")
    answer = saccade("info", tmp_path / "alone")
    assert answer.code == 0
    assert "see the model card" in answer.out


def test_a_damaged_folder_is_noticed(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    saccade("average", run, "--last", 2, "--output", tmp_path / "damaged")
    with (tmp_path / "damaged" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    answer = saccade("info", tmp_path / "damaged")
    assert answer.code == 1
    assert "SHA-256 differs" in answer.err

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from command_line import Saccade

from saccade.config import read_yaml
from saccade.layers import attention

CHECKS = ["cached = uncached", "alone = in a batch", "explicit = fused", "scorer = search", "saved = loaded"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On models this small a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_sound_run(run: Path, saccade: Saccade) -> None:
    answer = saccade("verify", run)
    assert answer.code == 0
    assert answer.err.startswith(f"{run / 'model-best'}: 10 pairs on ")
    lines = answer.out.splitlines()
    assert [line[:18].strip() for line in lines[0:10:2]] == CHECKS
    assert all(line.split()[3 if "batch" not in line else 5] == "ok" for line in lines[0:10:2])
    assert lines[-1] == "5 of 5 hold"
    assert all("largest difference" in line and "tolerance" in line for line in lines[0:10:2])


def test_json_on_the_standard_output_and_in_a_file(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    values = json.loads(saccade("verify", run, "--sentences", 3, "--json").out)
    assert values["passed"] is True
    assert values["pairs"] == 3
    assert [each["name"] for each in values["equivalences"]] == CHECKS
    assert all(each["largest_difference"] <= each["tolerance"] for each in values["equivalences"])
    answer = saccade("verify", run, "--sentences", 3, "--json", tmp_path / "a.json")
    assert answer.out.endswith("5 of 5 hold\n")
    assert json.loads((tmp_path / "a.json").read_text()) == values


def test_a_broken_promise(run: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade) -> None:
    sound = attention.masked_softmax
    monkeypatch.setattr(attention, "masked_softmax", lambda scores, mask: sound(2 * scores, mask))
    answer = saccade("verify", run, "--sentences", 3)
    assert answer.code == 1
    assert "explicit = fused    FAILED" in answer.out
    assert answer.out.endswith("4 of 5 hold\n")
    answer = saccade("verify", run, "--sentences", 3, "--json")
    assert answer.code == 1
    assert json.loads(answer.out)["passed"] is False


def test_a_damaged_file_is_named(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "model-best" / "generation.json").write_text("{}")
    answer = saccade("verify", tmp_path / "copy")
    assert (answer.code, answer.out) == (1, "")
    assert "generation.json" in answer.err


def test_given_pairs(run: Path, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    files = ["--source", data / "test.en", "--target", data / "test.de"]
    assert json.loads(saccade("verify", run, *files, "--json").out)["pairs"] == 8
    shutil.copytree(run / "model-best", tmp_path / "model")
    assert saccade("verify", tmp_path / "model", *files, "--sentences", 2).code == 0
    (tmp_path / "pairs.tsv").write_text("one\teins\ntwo\tzwei\n")
    assert json.loads(saccade("verify", run, "--source", tmp_path / "pairs.tsv", "--json").out)["pairs"] == 2
    answer = saccade("verify", run, "--target", data / "test.de")
    assert answer.code == 2
    assert "--target is given without --source" in answer.err


def test_a_model_folder_of_a_run_has_its_data(run: Path, saccade: Saccade) -> None:
    assert json.loads(saccade("verify", run / "model-last", "--json", "--sentences", 4).out)["pairs"] == 4


def test_without_validation_data_the_training_pairs_are_taken(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    shutil.copytree(run, tmp_path / "copy")
    config = tmp_path / "copy" / "config.yaml"
    values = read_yaml(config)
    values["data"]["valid_source"] = values["data"]["valid_target"] = None
    config.write_text(json.dumps(values))
    assert json.loads(saccade("verify", tmp_path / "copy", "--json", "--sentences", 12).out)["pairs"] == 12


def test_data_that_is_not_there(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    shutil.copytree(run / "model-best", tmp_path / "model")
    answer = saccade("verify", tmp_path / "model")
    assert (answer.code, answer.out) == (1, "")
    assert "give pairs: --source FILE --target FILE" in answer.err
    shutil.copytree(run, tmp_path / "copy")
    config = tmp_path / "copy" / "config.yaml"
    values = read_yaml(config)
    values["data"]["valid_source"] = str(tmp_path / "nowhere.en")
    config.write_text(json.dumps(values))
    answer = saccade("verify", tmp_path / "copy")
    assert (answer.code, answer.out) == (1, "")
    assert "nowhere.en" in answer.err
    assert "give --source FILE --target FILE" in answer.err

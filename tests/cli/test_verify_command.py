from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Saccade

from saccade.config import read_yaml
from saccade.ops import varlen_attention

CHECKS = ["cached = uncached", "alone = in a batch", "explicit = fused", "scorer = search", "saved = loaded"]


pytestmark = pytest.mark.usefixtures("one_thread")


def test_all_checks_pass(run: Path, saccade: Saccade) -> None:
    result = saccade("verify", run)
    assert result.code == 0
    assert result.err.startswith(f"{run / 'model-best'}: 10 pairs on ")
    lines = result.out.splitlines()
    assert [line[:18].strip() for line in lines[0:10:2]] == CHECKS
    assert all(line.split()[3 if "batch" not in line else 5] == "ok" for line in lines[0:10:2])
    assert lines[-1] == "5 of 5 passed"
    assert all("largest difference" in line and "tolerance" in line for line in lines[0:10:2])


def test_json_on_stdout_and_in_a_file(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    values = json.loads(saccade("verify", run, "--sentences", 3, "--json").out)
    assert values["passed"] is True
    assert values["pairs"] == 3
    assert [each["name"] for each in values["equivalences"]] == CHECKS
    assert all(each["largest_difference"] <= each["tolerance"] for each in values["equivalences"])
    result = saccade("verify", run, "--sentences", 3, "--json", tmp_path / "a.json")
    assert result.out.endswith("5 of 5 passed\n")
    assert json.loads((tmp_path / "a.json").read_text()) == values


def test_failed_check_exits_with_1(run: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade) -> None:
    original = varlen_attention.attend_padded

    def attend_padded(query, *others, record, **options):
        """Recorded attention, with a wrong scale."""
        return original(2 * query if record else query, *others, record=record, **options)

    monkeypatch.setattr(varlen_attention, "attend_padded", attend_padded)
    result = saccade("verify", run, "--sentences", 3)
    assert result.code == 1
    assert "explicit = fused    FAILED" in result.out
    assert result.out.endswith("4 of 5 passed\n")
    result = saccade("verify", run, "--sentences", 3, "--json")
    assert result.code == 1
    assert json.loads(result.out)["passed"] is False


def test_damaged_file_is_named(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "model-best" / "generation.json").write_text("{}")
    result = saccade("verify", tmp_path / "copy")
    assert (result.code, result.out) == (1, "")
    assert "generation.json" in result.err


def test_pairs_from_files(run: Path, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    files = ["--source", data / "test.en", "--target", data / "test.de"]
    assert json.loads(saccade("verify", run, *files, "--json").out)["pairs"] == 8
    shutil.copytree(run / "model-best", tmp_path / "model")
    assert saccade("verify", tmp_path / "model", *files, "--sentences", 2).code == 0
    (tmp_path / "pairs.tsv").write_text("one\teins\ntwo\tzwei\n")
    assert json.loads(saccade("verify", run, "--source", tmp_path / "pairs.tsv", "--json").out)["pairs"] == 2
    result = saccade("verify", run, "--target", data / "test.de")
    assert result.code == 2
    assert "--target is given without --source" in result.err


def test_model_folder_uses_the_data_of_its_run(run: Path, saccade: Saccade) -> None:
    assert json.loads(saccade("verify", run / "model-last", "--json", "--sentences", 4).out)["pairs"] == 4


def test_training_pairs_are_used_without_validation_data(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    shutil.copytree(run, tmp_path / "copy")
    config = tmp_path / "copy" / "config.yaml"
    values = read_yaml(config)
    values["data"]["valid_source"] = values["data"]["valid_target"] = None
    config.write_text(json.dumps(values))
    assert json.loads(saccade("verify", tmp_path / "copy", "--json", "--sentences", 12).out)["pairs"] == 12


def test_missing_data(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    shutil.copytree(run / "model-best", tmp_path / "model")
    result = saccade("verify", tmp_path / "model")
    assert (result.code, result.out) == (1, "")
    assert "--source FILE --target FILE" in result.err
    shutil.copytree(run, tmp_path / "copy")
    config = tmp_path / "copy" / "config.yaml"
    values = read_yaml(config)
    values["data"]["valid_source"] = str(tmp_path / "nowhere.en")
    config.write_text(json.dumps(values))
    result = saccade("verify", tmp_path / "copy")
    assert (result.code, result.out) == (1, "")
    assert "nowhere.en" in result.err
    assert "give --source FILE --target FILE" in result.err

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Saccade

from saccade.cli.errors import answer_to
from saccade.errors import SaccadeError, UsageError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("trian", "did you mean 'train'"),
        ("--versoin", "--version"),
        ("train --ouput x", "did you mean '--output'?"),
        ("train --learning-rate 1", "did you mean '--training.learning-rate'?"),
        ("train", "give --source FILE and --target FILE"),
        ("train --source a --training.learnin-rate 1", "did you mean 'learning-rate'?"),
        ("train --source a --trainig.seed 1", "did you mean 'training'?"),
        ("train --source a --training.max-steps many", "'training.max-steps' cannot be 'many'"),
        ("train --source a --training.schedule linear", "needs max-steps or max-epochs"),
        ("train --source a --model.heads 3", "width 128 cannot be shared evenly by 3 heads"),
        ("train --source a --preset transformer-tinny", "did you mean 'transformer-tiny'?"),
        ("train --target a", "target is given without source"),
        ("train --resume runs/x --source a", "--resume goes on with the data and the model of the run"),
        ("train a.yaml b.yaml", "b.yaml"),
        ("translate", "missing argument 'RUN'"),
        ("translate runs/x --format xml", "'xml' is not one of 'text', 'jsonl', 'tsv'"),
        ("translate runs/x --input", "requires an argument"),
        ("translate runs/x --device tpu", "unknown device 'tpu'"),
        ("evaluate --reference a", "name a RUN, or --hypotheses FILE"),
        ("evaluate runs/x --source a --reference b --metric blue", "did you mean 'bleu'?"),
        ("evaluate runs/x --reference b", "give --source FILE"),
        ("evaluate runs/x --source a --reference b --tokenize 13b", "did you mean '13a'?"),
        ("evaluate --hypotheses a --reference b --metric perplexity", "perplexity needs a model"),
        ("attention runs/x sentence --heads", "--png heads.png"),
        ("average a --output b", "name several folders"),
        ("average a b --last 2 --output c", "name one run"),
        ("models --vocabulary none", "valid integer"),
        ("info --jso runs/x", "did you mean '--json'?"),
        ("demo --minuts 1", "did you mean '--minutes'?"),
    ],
)
def test_faulty_usage_exits_with_2(arguments: str, said: str, saccade: Saccade) -> None:
    answer = saccade(*arguments.split())
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith("saccade: error: ")
    assert said.lower() in answer.err.lower()
    assert "Traceback" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --source missing.en --target missing.de --output runs/new", "missing.en: no such file"),
        ("train --source {lines} --target {empty} --output runs/new", "empty.txt: is empty"),
        ("train --source {lines} --target {latin} --output runs/new", "latin.txt, line 2: byte 2 of the line is not"),
        ("train --source {lines} --target {lines} --output {full}", "already exists and is not empty"),
        ("train missing.yaml", "missing.yaml: cannot be read"),
        ("train {faulty}", "did you mean 'max-steps'?"),
        ("train --resume {full}", "is no run directory"),
        ("translate missing", "missing: there is no such run or model folder"),
        ("translate {full}", "holds no model"),
        ("info {lines}", "holds no model"),
        ("evaluate --hypotheses {lines} --reference {three}", "number of hypotheses (2)"),
        ("evaluate --hypotheses {empty} --reference {three}", "empty.txt: is empty"),
        ("evaluate missing --source {lines} --reference {three}", "three.txt: has 3 lines, but 2 are expected"),
        ("evaluate missing --source {lines} --reference {lines}", "missing: there is no such run"),
        ("attention missing sentence", "missing: there is no such run"),
        ("average missing other --output new", "missing: there is no such run"),
        ("average {full} --last 2 --output new", "holds 0 checkpoints, not 2"),
        ("demo --output {full}", "already exists"),
    ],
)
def test_faulty_input_exits_with_1(
    arguments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "lines": b"one\ntwo\n",
        "three": b"one\ntwo\nthree\n",
        "empty": b"",
        "latin": b"one\nf\xfcnf\n",
        "faulty": b"model: {preset: transformer-tiny}\ntraining: {max-stps: 3}\n",
    }
    for name, content in files.items():
        Path(f"{name}.txt").write_bytes(content)
    Path("full").mkdir()
    Path("full/something").touch()
    answer = saccade(*arguments.format(full="full", **{name: f"{name}.txt" for name in files}).split())
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.splitlines()[-2 if "\n  " in answer.err else -1].startswith("saccade: error: ")
    assert said in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("arguments", [("--debug", "info", "missing"), ("info", "missing", "--debug")])
def test_debug_shows_the_traceback_before_and_after_the_verb(arguments: tuple[str, ...], saccade: Saccade) -> None:
    answer = saccade(*arguments)
    assert answer.code == 1
    assert answer.err.startswith("Traceback")
    assert "saccade: error: missing: there is no such run" in answer.err


def test_a_fault_of_ours_is_called_one(monkeypatch: pytest.MonkeyPatch, saccade: Saccade) -> None:
    def fail(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("saccade.model_folder.find_model_folder", fail)
    answer = saccade("info", "x")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("saccade: internal error: KeyError: 'surprise'")
    assert "--debug" in answer.err
    assert "Traceback" not in answer.err


def test_every_kind_of_error_has_its_answer() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x/model.safetensors")
    assert answer_to(full).exit_code == 1
    assert "runs/x/model.safetensors: No space left on device\n  the disk is full" in str(answer_to(full).message)
    assert "check the permissions" in str(answer_to(PermissionError(errno.EACCES, "Permission denied", "a")).message)
    assert answer_to(KeyboardInterrupt()).exit_code == 130
    assert answer_to(BrokenPipeError()) == (None, 141)
    assert answer_to(UsageError("what")).exit_code == 2
    assert answer_to(SaccadeError("what", where="where", do="do")) == ("error: where: what\n  do", 1)
    for memory in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")):
        assert "batch-tokens" in str(answer_to(memory).message)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device /dev/full")
def test_a_full_disk_is_reported_once() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "saccade.cli.main", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "saccade: error: the output: No space left on device",
        "  the disk is full: free some space, or write elsewhere",
    ]

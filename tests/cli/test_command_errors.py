from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Saccade

from saccade.cli.output.errors import describe_error
from saccade.errors import SaccadeError, UsageError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "did you mean 'train'"),
        ("--versoin", "--version"),
        ("train --ouput x", "did you mean '--output'?"),
        ("train --learning-rate 1", "did you mean '--training.learning-rate'?"),
        ("train", "give --source FILE and --target FILE"),
        ("train --source a --training.learnin-rate 1", "did you mean 'learning-rate'?"),
        ("train --lr 1", "did you mean '--training.learning-rate'?"),
        ("train --layers 1", "did you mean '--model.encoder-layers' or '--model.decoder-layers'?"),
        ("translate runs/x --lr 1", "--training.learning-rate is an option of saccade train"),
        ("translate --model runs/x", "name it without an option, as RUN"),
        ("train --config a.yaml", "name it without an option, as RECIPE"),
        ("compare --epochs 3", "did you mean '--budget'?"),
        ("compare --dropout 0.1", "did you mean '--model.dropout'?"),
        ("train --quite", "did you mean '--quiet'?"),
        ("train --epochs 3", "did you mean '--training.max-epochs'?"),
        ("train --fp16", "did you mean '--training.precision'?"),
        ("train --src a", "did you mean '--source'?"),
        ("train --source a --training.batch-size 1", "did you mean 'data.batch-tokens'?"),
        ("train --source a --model.hidden-size 1", "did you mean 'model.width'?"),
        ("train --source a --preset transformer", "'transformer' is a family; its presets: transformer-tiny"),
        ("train --source a --training.optimizer adamw", "did you mean 'adam'?"),
        ("train --source a --training.metrics blue", "did you mean 'bleu'?"),
        ("train --source a --training.criterion bleu", "validation data"),
        ("train --source a --training.max-steps", "'training.max-steps' needs a value"),
        ("train --source a --data.cache", "'data.cache' needs a value"),
        ("train --source a --training.betas 0.9", "'training.betas' has too few values"),
        ("train --source a --training.betas 0.9,0.9,0.9", "'training.betas' has too many values"),
        ("train --source a --model.dropout 2", "'model.dropout'"),
        ("check --source a --training.metrics blue", "did you mean 'bleu'?"),
        ("complexity --layers fuse", "did you mean 'fused'?"),
        ("complexity --memory 0", "--memory 4"),
        ("translate runs/x --beam-size 3", "did you mean '--beam'?"),
        ("export runs/x --output y", "choose from: huggingface, onnx, ctranslate2"),
        ("export runs/x --format hf --output y", "did you mean 'huggingface'?"),
        ("evaluate runs/x --source a --reference b --metric wer", "did you mean 'word-error'?"),
        ("train --source a --trainig.seed 1", "did you mean 'training'?"),
        ("train --source a --training.max-steps many", "'training.max-steps'"),
        ("train --source a --training.schedule linear", "max-steps or max-epochs"),
        ("train --source a --model.heads 3", "3 heads"),
        ("train --source a --preset transformer-tinny", "did you mean 'transformer-tiny'?"),
        ("train --target a", "without source"),
        ("train --resume runs/x --source a", "--resume uses the data and the model of the run"),
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
        ("attention runs/x sentence --heads", "--plot heads.png"),
        ("average a --output b", "name several folders"),
        ("average a b --last 2 --output c", "name one run"),
        ("models --vocabulary none", "valid integer"),
        ("info --jso runs/x", "did you mean '--json'?"),
        ("demo --minuts 1", "did you mean '--minutes'?"),
    ],
)
def test_usage_errors_exit_with_2(arguments: str, message: str, saccade: Saccade) -> None:
    result = saccade(*arguments.split())
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("saccade: error: ")
    assert message.lower() in result.err.lower()
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --source missing.en --target missing.de --output runs/new", "missing.en: "),
        ("train --source {lines} --target {empty} --output runs/new", "empty.txt: "),
        ("train --source {lines} --target {latin} --output runs/new", "latin.txt, line 2: "),
        ("train --source {lines} --target {lines} --output {full}", "already exists"),
        ("train missing.yaml", "missing.yaml: "),
        ("train --source {lines} --target {lines} --from missing --output runs/new", "'missing': "),
        ("check --source {lines} --target {lines} --from {lines}", "'lines.txt': contains no model"),
        (
            "compare --models luong --source {lines} --target {lines} --test-source missing --test-reference x",
            "missing: ",
        ),
        ("train {faulty}", "did you mean 'max-steps'?"),
        ("train --resume {full}", "full: "),
        ("translate missing", "missing: "),
        ("translate {full}", "full: "),
        ("info {lines}", "lines.txt: "),
        ("evaluate --hypotheses {lines} --reference {three}", "2 hypotheses"),
        ("evaluate --hypotheses {empty} --reference {three}", "empty.txt: "),
        ("evaluate missing --source {lines} --reference {three}", "three.txt: has 3 lines"),
        ("evaluate missing --source {lines} --reference {lines}", "missing: "),
        ("attention missing sentence", "missing: "),
        ("average missing other --output new", "missing: "),
        ("average {full} --last 2 --output new", "holds 0 checkpoints, not 2"),
        ("demo --output {full}", "already exists"),
    ],
)
def test_input_errors_exit_with_1(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
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
    result = saccade(*arguments.format(full="full", **{name: f"{name}.txt" for name in files}).split())
    assert result.code == 1
    assert result.out == ""
    assert result.err.splitlines()[-2 if "\n  " in result.err else -1].startswith("saccade: error: ")
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ("--source lines.txt", "--target"),
        ("--source lines.txt --target lines.txt --valid-source lines.txt", "--valid-target"),
    ],
)
def test_missing_target_file_is_a_usage_error_and_leaves_no_run_directory(
    arguments: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines.txt").write_text("one\ntwo\n")
    result = saccade("train", *arguments.split())
    assert result.code == 2
    assert f"give {option} FILE" in result.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("arguments", [("--debug", "info", "missing"), ("info", "missing", "--debug")])
def test_debug_shows_the_traceback_before_and_after_the_command(arguments: tuple[str, ...], saccade: Saccade) -> None:
    result = saccade(*arguments)
    assert result.code == 1
    assert result.err.startswith("Traceback")
    assert "saccade: error: missing: " in result.err


def test_unexpected_exceptions_are_internal_errors(monkeypatch: pytest.MonkeyPatch, saccade: Saccade) -> None:
    def fail(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("saccade.model_folder.find_model_folder", fail)
    result = saccade("info", "x")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("saccade: internal error: KeyError: 'surprise'")
    assert "--debug" in result.err
    assert "Traceback" not in result.err


def test_messages_and_exit_codes_of_exceptions() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "runs/x/model.safetensors")
    assert describe_error(full).exit_code == 1
    assert "runs/x/model.safetensors: No space left on device\n  the disk is full" in str(describe_error(full).message)
    assert "check the permissions" in str(
        describe_error(PermissionError(errno.EACCES, "Permission denied", "a")).message
    )
    assert describe_error(KeyboardInterrupt()).exit_code == 130
    assert describe_error(BrokenPipeError()) == (None, 141)
    assert describe_error(UsageError("what")).exit_code == 2
    assert describe_error(SaccadeError("what", where="where", hint="do")) == ("error: where: what\n  do", 1)
    for memory in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried …")):
        assert "batch-tokens" in str(describe_error(memory).message)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs the device /dev/full")
def test_full_disk_is_reported_once() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "saccade.cli.main", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    error, advice = done.stderr.splitlines()
    assert error == "saccade: error: the output: No space left on device"
    assert "disk is full" in advice

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Saccade

from saccade.cli.main import main

TEXT = "seven\n\none hundred and twenty-one\nfive\nnine hundred\n"


def test_engines_agree_in_greedy_search(run: Path, saccade: Saccade) -> None:
    answers = {
        engine: saccade("translate", run, "--beam", 1, "--engine", engine, stdin=TEXT)
        for engine in ("auto", "torch", "ctranslate2")
    }
    assert answers["auto"] == answers["torch"] == answers["ctranslate2"]
    assert (answers["auto"].code, answers["auto"].err) == (0, "")
    assert (run / "model-best" / "ctranslate2" / "proof.json").is_file()
    assert saccade("verify", run, "--sentences", 5).code == 0  # the manifest of the model says nothing of it


def test_scores_and_alignment_of_both_engines(run: Path, saccade: Saccade) -> None:
    records = []
    for engine in ("torch", "ctranslate2"):
        options = ["--beam", 1, "--engine", engine, "--scores", "--alignment", "--format", "jsonl"]
        answer = saccade("translate", run, *options, stdin=TEXT)
        records.append([json.loads(line) for line in answer.out.splitlines()])
    for one, other in zip(*records, strict=True):
        assert other["text"] == one["text"]
        assert other["alignment"] == one["alignment"]
        assert other["score"] == pytest.approx(one["score"], abs=1e-4)
        assert other["token_log_probabilities"] == pytest.approx(one["token_log_probabilities"], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "ctranslate2", "--sample"], "random numbers depend on the batch"),
        (["--engine", "ctranslate2", "--decoding.coverage-beta", "0.2"], "coverage penalty is another one"),
        (["--engine", "tensorflow"], "'tensorflow' is not one of"),
        (["--engine", "ctranslate2", "--device", "abacus"], "unknown device 'abacus'"),
    ],
)
def test_careless_engine_options(options: list[str], said: str, run: Path, saccade: Saccade) -> None:
    answer = saccade("translate", run, *options, stdin=TEXT)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_an_ensemble_is_searched_with_torch(run: Path, saccade: Saccade) -> None:
    options = ["translate", run, "--ensemble", run]
    assert saccade(*options, stdin=TEXT).code == 0
    answer = saccade(*options, "--engine", "ctranslate2", stdin=TEXT)
    assert answer.code == 2
    assert "one model" in answer.err


@pytest.mark.parametrize("engine", ["ctranslate2", "auto"])
def test_int8(engine: str, run: Path, saccade: Saccade) -> None:
    options = ["translate", run, "--engine", engine, "--format", "jsonl", "--scores"]
    answer = saccade(*options, "--precision", "int8", stdin=TEXT)
    assert (answer.code, answer.err, answer.out.count("\n")) == (0, "", 5)
    changed = answer.out != saccade(*options, stdin=TEXT).out
    assert changed == (engine == "auto")  # scores of bytes are not quite those of floats; CTranslate2's are torch's


def test_an_evaluation_says_which_precision_it_was(run: Path, data: Path, saccade: Saccade) -> None:
    files = ["--reference", data / "test.de", "--precision", "int8", "--json"]
    found = json.loads(saccade("evaluate", run, "--source", data / "test.en", "--beam", 1, *files).out)
    assert found["precision"] == "int8"
    answer = saccade("evaluate", "--hypotheses", data / "test.de", *files)
    assert answer.code == 2
    assert "--precision is for a model" in answer.err


def test_an_evaluation_says_which_engine_it_was(run: Path, data: Path, saccade: Saccade) -> None:
    files = ["--source", data / "test.en", "--reference", data / "test.de", "--beam", 1, "--json"]
    found = [json.loads(saccade("evaluate", run, *files, "--engine", name).out) for name in ("torch", "ctranslate2")]
    assert [values.pop("engine") for values in found] == ["torch", "ctranslate2"]
    assert found[0]["scores"] == found[1]["scores"]
    hypotheses = ["--hypotheses", data / "test.de", "--reference", data / "test.de"]
    answer = saccade("evaluate", *hypotheses, "--engine", "torch")
    assert answer.code == 2
    assert "--engine is for a model that translates" in answer.err


def test_a_pipe_that_pauses_gets_what_is_finished(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first window comes out before the second is whole; otherwise both ends of the pipe could wait for ever."""
    monkeypatch.setattr("saccade.inference.translator.WINDOW", 2)
    reader, writer = os.pipe()
    os.write(writer, b"one\ntwo\nthree\n")
    seen: list[int] = []
    with os.fdopen(reader, "rb", buffering=0) as pipe:

        def readline(size: int) -> bytes:
            if not seen and not select.select([pipe], [], [], 0)[0]:
                seen.append(capsys.readouterr().out.count("\n"))  # the writer waits for these
                os.write(writer, b"four\n")
                os.close(writer)
            return pipe.readline(size)

        monkeypatch.setattr(sys, "stdin", StandIn(readline, pipe.fileno))
        assert main(["translate", str(run), "--beam", "1"]) == 0
    assert seen == [2]
    assert capsys.readouterr().out.count("\n") == 2


class StandIn:
    """A standard input that is a pipe."""

    def __init__(self, readline: Callable[[int], bytes], fileno: Callable[[], int]) -> None:
        self.buffer = self
        self.readline = readline
        self.fileno = fileno
        self.isatty = lambda: False

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
from saccade.ops.int8_linear import int8_available

TEXT = "seven\n\none hundred and twenty-one\nfive\nnine hundred\n"


def test_engines_agree_in_greedy_search(run: Path, saccade: Saccade) -> None:
    results = {
        engine: saccade("translate", run, "--beam", 1, "--engine", engine, stdin=TEXT)
        for engine in ("auto", "torch", "ctranslate2")
    }
    assert results["auto"] == results["torch"] == results["ctranslate2"]
    assert (results["auto"].code, results["auto"].err) == (0, "")
    assert (run / "model-best" / "ctranslate2" / "parity.json").is_file()
    assert saccade("verify", run, "--sentences", 5).code == 0  # the manifest does not list the cached export


def test_scores_and_alignment_of_both_engines(run: Path, saccade: Saccade) -> None:
    records = []
    for engine in ("torch", "ctranslate2"):
        options = ["--beam", 1, "--engine", engine, "--scores", "--alignment", "--format", "jsonl"]
        result = saccade("translate", run, *options, stdin=TEXT)
        records.append([json.loads(line) for line in result.out.splitlines()])
    for one, other in zip(*records, strict=True):
        assert other["text"] == one["text"]
        assert other["alignment"] == one["alignment"]
        assert other["score"] == pytest.approx(one["score"], abs=1e-4)
        assert other["token_log_probabilities"] == pytest.approx(one["token_log_probabilities"], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "ctranslate2", "--sample"], "random numbers"),
        (["--engine", "ctranslate2", "--decoding.coverage-beta", "0.2"], "coverage"),
        (["--engine", "tensorflow"], "'tensorflow' is not one of"),
        (["--engine", "ctranslate2", "--device", "abacus"], "unknown device 'abacus'"),
    ],
)
def test_invalid_engine_options(options: list[str], message: str, run: Path, saccade: Saccade) -> None:
    result = saccade("translate", run, *options, stdin=TEXT)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_ensembles_need_torch(run: Path, saccade: Saccade) -> None:
    options = ["translate", run, "--ensemble", run]
    assert saccade(*options, stdin=TEXT).code == 0
    result = saccade(*options, "--engine", "ctranslate2", stdin=TEXT)
    assert result.code == 2
    assert "ensembles" in result.err


@pytest.mark.parametrize("engine", ["ctranslate2", "auto"])
def test_int8(engine: str, run: Path, saccade: Saccade) -> None:
    options = ["translate", run, "--engine", engine, "--format", "jsonl", "--scores"]
    result = saccade(*options, "--precision", "int8", stdin=TEXT)
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 5)
    changed = result.out != saccade(*options, stdin=TEXT).out
    # Int8 changes the scores of torch. Those of CTranslate2, and of torch without int8 kernels, are float32.
    assert changed == (engine == "auto" and int8_available())


def test_evaluation_records_the_precision(run: Path, data: Path, saccade: Saccade) -> None:
    files = ["--reference", data / "test.de", "--precision", "int8", "--json"]
    found = json.loads(saccade("evaluate", run, "--source", data / "test.en", "--beam", 1, *files).out)
    assert found["precision"] == "int8"
    result = saccade("evaluate", "--hypotheses", data / "test.de", *files)
    assert result.code == 2
    assert "--precision needs a model" in result.err


def test_evaluation_records_the_engine(run: Path, data: Path, saccade: Saccade) -> None:
    files = ["--source", data / "test.en", "--reference", data / "test.de", "--beam", 1, "--json"]
    found = [json.loads(saccade("evaluate", run, *files, "--engine", name).out) for name in ("torch", "ctranslate2")]
    assert [values.pop("engine") for values in found] == ["torch", "ctranslate2"]
    assert found[0]["scores"] == found[1]["scores"]
    hypotheses = ["--hypotheses", data / "test.de", "--reference", data / "test.de"]
    result = saccade("evaluate", *hypotheses, "--engine", "torch")
    assert result.code == 2
    assert "--engine needs a model" in result.err


def test_finished_lines_are_written_while_the_pipe_pauses(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first window is written before the second is complete; otherwise writer and reader could deadlock."""
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

        monkeypatch.setattr(sys, "stdin", FakeStandardInput(readline, pipe.fileno))
        assert main(["translate", str(run), "--beam", "1"]) == 0
    assert seen == [2]
    assert capsys.readouterr().out.count("\n") == 2


class FakeStandardInput:
    """A fake standard input that reads from a pipe."""

    def __init__(self, readline: Callable[[int], bytes], fileno: Callable[[], int]) -> None:
        self.buffer = self
        self.readline = readline
        self.fileno = fileno
        self.isatty = lambda: False

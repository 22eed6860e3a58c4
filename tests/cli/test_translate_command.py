from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Saccade

from saccade.cli.main import main
from saccade.inference.translator import WINDOW

LINES = ["seven", "", "one hundred and twenty-one", "   ", "five", "nine hundred"]
TEXT = "".join(f"{line}\n" for line in LINES)


def test_one_output_line_per_input_line(run: Path, saccade: Saccade) -> None:
    result = saccade("translate", run, stdin=TEXT)
    assert (result.code, result.err) == (0, "")
    outputs = result.out.split("\n")
    assert len(outputs) == len(LINES) + 1
    assert [not line for line in outputs[:-1]] == [not line.strip() for line in LINES]
    alone = saccade("translate", run, stdin="one hundred and twenty-one").out  # without a line feed at the end
    assert alone == outputs[2] + "\n"


def test_input_and_output_files(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "in").write_text(TEXT)
    result = saccade("translate", run, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert (result.code, result.out) == (0, "")
    assert result.err.splitlines()[-1].endswith(str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == saccade("translate", run, stdin=TEXT).out


def test_empty_input_gives_empty_output(run: Path, saccade: Saccade) -> None:
    assert saccade("translate", run) == (0, "", "")


def test_run_and_model_folder_translate_equally(run: Path, saccade: Saccade) -> None:
    assert saccade("translate", run / "model-best", stdin="one\n") == saccade("translate", run, stdin="one\n")


def test_text_with_scores_and_alignment(run: Path, saccade: Saccade) -> None:
    plain = saccade("translate", run, stdin=TEXT).out.splitlines()
    result = saccade("translate", run, "--scores", "--alignment", stdin=TEXT)
    fields = [line.split(" ||| ") for line in result.out.splitlines()]
    assert [line[0] for line in fields] == plain
    assert all(float(line[1]) <= 0 for line in fields)
    pairs = [pair.split("-") for pair in fields[2][2].split()]
    assert [int(target) for _, target in pairs] == list(range(len(pairs)))
    assert fields[1] == ["", "0.0000", ""]


def test_nbest_lines_start_with_the_input_number(run: Path, saccade: Saccade) -> None:
    result = saccade("translate", run, "--nbest", 2, "--beam", 3, stdin="one\n\ntwo\n")
    assert [line.split(" ||| ")[0] for line in result.out.splitlines()] == ["0", "0", "1", "2", "2"]


def test_jsonl(run: Path, saccade: Saccade) -> None:
    plain = saccade("translate", run, stdin=TEXT).out.splitlines()
    result = saccade("translate", run, "--format", "jsonl", "--nbest=2", "--scores", "--alignment", stdin=TEXT)
    records = [json.loads(line) for line in result.out.splitlines()]
    assert [record["source"] for record in records] == LINES
    assert [record["text"] for record in records] == plain
    best, second = records[2]["candidates"]
    assert best["text"] == records[2]["text"]
    assert best["score"] >= second["score"]
    assert len(best["alignment"].split()) == len(best["target_pieces"])
    positions = [int(pair.split("-")[0]) for pair in best["alignment"].split()]
    assert max(positions) < len(best["source_pieces"])


def test_tsv(run: Path, saccade: Saccade) -> None:
    plain = saccade("translate", run, stdin=TEXT).out.splitlines()
    result = saccade("translate", run, "--format", "tsv", stdin=TEXT + "a\tb\n")
    assert [line.split("\t") for line in result.out.splitlines()][:-1] == [
        list(pair) for pair in zip(LINES, plain, strict=True)
    ]
    assert result.out.splitlines()[-1].startswith("a b\t")


def test_prefixes(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "prefix").write_text("hundert\n\n")
    result = saccade("translate", run, "--prefix", tmp_path / "prefix", stdin="one\ntwo\n")
    assert result.code == 0
    assert result.out.startswith("hundert")
    assert "prefix" in saccade("translate", run, "--prefix", tmp_path / "prefix", stdin="one\n").err
    assert "prefix" in saccade("translate", run, "--prefix", tmp_path / "prefix", stdin="1\n2\n3\n").err


def test_samples_depend_only_on_the_seed(run: Path, saccade: Saccade) -> None:
    def sample(*options: object) -> str:
        return saccade("translate", run, "--sample", "--temperature", 2, *options, stdin=TEXT).out

    assert sample("--seed", 1) == sample("--seed", 1, "--batch-tokens", 8)
    assert sample("--seed", 1) != sample("--seed", 2)
    assert sample("--top-k", 1) == sample("--top-p", 1e-9)


def test_dotted_and_plain_decoding_options_agree(run: Path, saccade: Saccade) -> None:
    results = [
        saccade("translate", *arguments, stdin=TEXT).out
        for arguments in ([run, "--beam", 1], [run, "--decoding.beam", 1], ["--decoding.beam=1", run])
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--decoding.beem", "3"], "did you mean 'beam'?"),
        (["--beam", "0"], "--beam cannot be 0"),
        (["--beam", "0"], "saccade translate --help-all"),
        (["--decoding.beam", "many"], "--decoding.beam cannot be 'many'"),
        (["--nbest", "9"], "beam"),
        (["--temperature", "0.5"], "add --sample, or leave --temperature out"),
        (["--decoding.top-k", "5"], "add --sample, or leave --decoding.top-k out"),
        (["--training.seed", "3"], "decoding"),
    ],
)
def test_invalid_decoding_options(options: list[str], message: str, run: Path, saccade: Saccade) -> None:
    result = saccade("translate", run, *options, stdin=TEXT)
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_invalid_utf8_names_the_line(run: Path, saccade: Saccade) -> None:
    result = saccade("translate", run, stdin=b"one\nf\xfcnf\n")
    assert result.code == 1
    assert "standard input, line 2: " in result.err


class Stream:
    """A fake standard input that returns one line per read."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self.lines = lines

    def readline(self, _: int) -> bytes:
        return next(self.lines, b"")


def test_input_is_translated_in_windows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"\n"

    class Reader(io.StringIO):
        """Closes the pipe after one and a half windows."""

        lines = 0

        def write(self, text: str) -> int:
            self.lines += text.count("\n")
            if self.lines > 1.5 * WINDOW:
                raise BrokenPipeError
            return len(text)

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Stream(endless()), isatty=lambda: False))
    monkeypatch.setattr(sys, "stdout", Reader())
    assert main(["translate", str(run)]) == 141
    assert read == 2 * WINDOW


def test_interactive_input_is_translated_line_by_line(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[int] = []

    def typed() -> Iterator[bytes]:
        for line in (b"one\n", b"two\n"):
            yield line
            seen.append(capsys.readouterr().out.count("\n"))

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Stream(typed()), isatty=lambda: True))
    assert main(["translate", str(run)]) == 0
    assert seen == [1, 1]


def test_ctrl_c_prints_no_traceback(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterator[bytes]:
        yield b"one\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Stream(interrupted()), isatty=lambda: False))
    assert main(["translate", str(run)]) == 130
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("saccade: interrupted after 0 lines")


def test_closed_pipe_prints_no_error(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n" * 200_000)
    command = [sys.executable, "-m", "saccade.cli.main", "translate", str(run), "--input", str(tmp_path / "in")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        message = process.stderr.read()
    assert (process.returncode, message) == (141, b"")


def test_output_over_input_is_an_error(run: Path, saccade: Saccade, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("seven\n")
    result = saccade("translate", run, "--input", text, "--output", text)
    assert result.code == 2
    assert text.read_text() == "seven\n"


def test_unreadable_input_keeps_the_old_output(run: Path, saccade: Saccade, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old\n")
    for wrong in (b"\xff\xfe\xfa\n", None):
        source = tmp_path / "source"
        source.unlink(missing_ok=True)
        if wrong is not None:
            source.write_bytes(wrong)
        assert saccade("translate", run, "--input", source, "--output", old).code != 0
        assert old.read_text() == "old\n"


def test_sentences_as_arguments(run: Path, saccade: Saccade) -> None:
    expected = saccade("translate", run, stdin=TEXT).out
    assert saccade("translate", run, *TEXT.splitlines()) == (0, expected, "")
    assert saccade("translate", run, TEXT.removesuffix("\n")).out == expected  # several lines in one argument
    assert saccade("translate", run, "").out == "\n"


def test_dash_is_standard_input_and_output(run: Path, saccade: Saccade) -> None:
    expected = saccade("translate", run, stdin=TEXT)
    assert saccade("translate", run, "--input", "-", "--output", "-", stdin=TEXT) == expected


def test_a_file_name_as_a_sentence_is_a_warning(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "in").write_text(TEXT)
    result = saccade("translate", run, tmp_path / "in", "--quiet")
    assert result.code == 0
    assert f"--input {tmp_path / 'in'}" in result.err


@pytest.mark.parametrize("arguments", [("two", "--input", "file"), ("tw\udcff",)])
def test_unusable_sentences_are_usage_errors(
    arguments: tuple[str, ...], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saccade: Saccade
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text(TEXT)
    result = saccade("translate", run, *arguments)
    assert (result.code, result.out) == (2, "")
    assert saccade("attention", run, "tw\udcff").code == 2

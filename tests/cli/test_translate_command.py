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


def test_one_line_in_one_line_out(run: Path, saccade: Saccade) -> None:
    answer = saccade("translate", run, stdin=TEXT)
    assert (answer.code, answer.err) == (0, "")
    outputs = answer.out.split("\n")
    assert len(outputs) == len(LINES) + 1
    assert [not line for line in outputs[:-1]] == [not line.strip() for line in LINES]
    alone = saccade("translate", run, stdin="one hundred and twenty-one").out  # without a line feed at the end
    assert alone == outputs[2] + "\n"


def test_files_instead_of_the_standard_streams(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "in").write_text(TEXT)
    answer = saccade("translate", run, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert answer == (0, "", "")
    assert (tmp_path / "out").read_text() == saccade("translate", run, stdin=TEXT).out


def test_nothing_in_nothing_out(run: Path, saccade: Saccade) -> None:
    assert saccade("translate", run) == (0, "", "")


def test_a_model_folder_is_enough(run: Path, saccade: Saccade) -> None:
    assert saccade("translate", run / "model-best", stdin="one\n") == saccade("translate", run, stdin="one\n")


def test_text_with_scores_and_alignment(run: Path, saccade: Saccade) -> None:
    plain = saccade("translate", run, stdin=TEXT).out.splitlines()
    answer = saccade("translate", run, "--scores", "--alignment", stdin=TEXT)
    fields = [line.split(" ||| ") for line in answer.out.splitlines()]
    assert [line[0] for line in fields] == plain
    assert all(float(line[1]) <= 0 for line in fields)
    pairs = [pair.split("-") for pair in fields[2][2].split()]
    assert [int(target) for _, target in pairs] == list(range(len(pairs)))
    assert fields[1] == ["", "0.0000", ""]


def test_nbest_numbers_its_lines(run: Path, saccade: Saccade) -> None:
    answer = saccade("translate", run, "--nbest", 2, "--beam", 3, stdin="one\n\ntwo\n")
    assert [line.split(" ||| ")[0] for line in answer.out.splitlines()] == ["0", "0", "1", "2", "2"]


def test_jsonl(run: Path, saccade: Saccade) -> None:
    plain = saccade("translate", run, stdin=TEXT).out.splitlines()
    answer = saccade("translate", run, "--format", "jsonl", "--nbest=2", "--scores", "--alignment", stdin=TEXT)
    records = [json.loads(line) for line in answer.out.splitlines()]
    assert [record["source"] for record in records] == LINES
    assert [record["text"] for record in records] == plain
    best, second = records[2]["candidates"]
    assert best["text"] == records[2]["text"]
    assert best["score"] >= second["score"]
    assert len(best["alignment"].split()) == len(best["target_pieces"])
    places = [int(pair.split("-")[0]) for pair in best["alignment"].split()]
    assert max(places) < len(best["source_pieces"])


def test_tsv(run: Path, saccade: Saccade) -> None:
    plain = saccade("translate", run, stdin=TEXT).out.splitlines()
    answer = saccade("translate", run, "--format", "tsv", stdin=TEXT + "a\tb\n")
    assert [line.split("\t") for line in answer.out.splitlines()][:-1] == [
        list(pair) for pair in zip(LINES, plain, strict=True)
    ]
    assert answer.out.splitlines()[-1].startswith("a b\t")


def test_forced_prefixes(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    (tmp_path / "prefix").write_text("hundert\n\n")
    answer = saccade("translate", run, "--prefix", tmp_path / "prefix", stdin="one\ntwo\n")
    assert answer.code == 0
    assert answer.out.startswith("hundert")
    assert "give one prefix a line" in saccade("translate", run, "--prefix", tmp_path / "prefix", stdin="one\n").err
    assert "give one prefix a line" in saccade("translate", run, "--prefix", tmp_path / "prefix", stdin="1\n2\n3\n").err


def test_sampling_depends_on_the_seed_alone(run: Path, saccade: Saccade) -> None:
    def sample(*options: object) -> str:
        return saccade("translate", run, "--sample", "--temperature", 2, *options, stdin=TEXT).out

    assert sample("--seed", 1) == sample("--seed", 1, "--batch-tokens", 8)
    assert sample("--seed", 1) != sample("--seed", 2)
    assert sample("--top-k", 1) == sample("--top-p", 1e-9)


def test_dotted_and_plain_decoding_options_are_the_same(run: Path, saccade: Saccade) -> None:
    answers = [
        saccade("translate", *arguments, stdin=TEXT).out
        for arguments in ([run, "--beam", 1], [run, "--decoding.beam", 1], ["--decoding.beam=1", run])
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--decoding.beem", "3"], "did you mean 'beam'?"),
        (["--beam", "0"], "'beam' cannot be 0"),
        (["--nbest", "9"], "raise beam to 9"),
        (["--temperature", "0.5"], "set sample to true"),
        (["--training.seed", "3"], "valid: decoding"),
    ],
)
def test_faulty_decoding_options(options: list[str], said: str, run: Path, saccade: Saccade) -> None:
    answer = saccade("translate", run, *options, stdin=TEXT)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_wrong_encoding_names_the_line(run: Path, saccade: Saccade) -> None:
    answer = saccade("translate", run, stdin=b"one\nf\xfcnf\n")
    assert answer.code == 1
    assert "standard input, line 2: byte 2 of the line is not UTF-8 (0xfc)" in answer.err


class Stream:
    """A standard input that gives one line at a time."""

    def __init__(self, lines: Iterator[bytes]) -> None:
        self.lines = lines

    def readline(self, _: int) -> bytes:
        return next(self.lines, b"")


def test_endless_input_is_translated_as_it_comes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"\n"

    class Reader(io.StringIO):
        """Has seen enough after a window and a half."""

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


def test_a_person_at_the_keyboard_gets_each_line_at_once(
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


def test_ctrl_c_leaves_without_a_traceback(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterator[bytes]:
        yield b"one\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=Stream(interrupted()), isatty=lambda: False))
    assert main(["translate", str(run)]) == 130
    assert capsys.readouterr().err == "saccade: interrupted\n"


def test_a_closed_pipe_ends_in_silence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("\n" * 200_000)
    command = [sys.executable, "-m", "saccade.cli.main", "translate", str(run), "--input", str(tmp_path / "in")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (141, b"")


def test_an_input_is_not_written_over(run: Path, saccade: Saccade, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("seven\n")
    answer = saccade("translate", run, "--input", text, "--output", text)
    assert answer.code == 2
    assert "would overwrite its input" in answer.err
    assert text.read_text() == "seven\n"


def test_what_cannot_be_read_leaves_an_older_output(run: Path, saccade: Saccade, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("old\n")
    for wrong in (b"\xff\xfe\xfa\n", None):
        source = tmp_path / "source"
        source.unlink(missing_ok=True)
        if wrong is not None:
            source.write_bytes(wrong)
        assert saccade("translate", run, "--input", source, "--output", old).code != 0
        assert old.read_text() == "old\n"

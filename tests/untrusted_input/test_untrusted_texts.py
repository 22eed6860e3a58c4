"""Crafted data files: rejected with file and line, or read unchanged, in bounded time and memory."""

from __future__ import annotations

import gzip
import os
import threading
from itertools import islice
from pathlib import Path

import pytest

from saccade.data.reading.pair_files import read_lines, read_pairs
from saccade.errors import SaccadeError
from untrusted_input.case import Case, check_error
from untrusted_input.command import check_answer, command
from untrusted_input.crafted_texts import LINES, ODD, PAIRS
from untrusted_input.guard import SECONDS, guarded

VALID = "valid.txt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with one valid file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / VALID).write_text("a small dog\ntwo dogs\n", encoding="utf-8")
    return tmp_path


def check_command(folder: Path, case: Case, *arguments: object, seconds: float = SECONDS) -> None:
    with guarded(folder, seconds):
        answer = command(*arguments)
    check_answer(answer)
    assert answer.code == 1
    assert case.file in answer.err


@pytest.mark.parametrize("case", LINES.parameters())
def test_a_crafted_file_of_lines_is_rejected(folder: Path, pristine: dict[str, Path], case: Case) -> None:
    case.make(folder)
    with guarded(folder), pytest.raises(SaccadeError) as caught:
        for _ in read_lines(folder / case.file):
            pass
    check_error(str(caught.value), case)
    with guarded(folder), pytest.raises(SaccadeError, match=case.file):
        for _ in read_pairs(folder / case.file, folder / VALID):
            pass
    check_command(folder, case, "translate", pristine["byte"], "--input", case.file, "--decoding.max-length", 3)
    check_command(folder, case, "evaluate", "--hypotheses", case.file, "--reference", VALID)
    # A run hashes its data first, which takes seconds for a gigabyte.
    check_command(folder, case, "train", "--source", case.file, "--target", VALID, "--output", "run", seconds=30)
    assert not (folder / "run").exists()


@pytest.mark.parametrize("case", PAIRS.parameters())
def test_a_crafted_file_of_pairs_is_rejected(folder: Path, case: Case) -> None:
    case.make(folder)
    with guarded(folder), pytest.raises(SaccadeError) as caught:
        for _ in read_pairs(folder / case.file):
            pass
    check_error(str(caught.value), case)
    check_command(folder, case, "train", "--source", case.file, "--output", "run")
    assert not (folder / "run").exists()


@pytest.mark.parametrize("case", ODD.parameters())
@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "separate"])
def test_odd_characters_are_text(folder: Path, pristine: dict[str, Path], kind: str, case: Case) -> None:
    case.make(folder)
    with guarded(folder):
        lines = list(read_lines(folder / case.file))
    assert len(lines) == (folder / case.file).read_bytes().count(b"\n")
    with guarded(folder):
        arguments = ("--beam", 1, "--decoding.max-length", 3, "--decoding.batch-tokens", 100_000)
        answer = command("translate", pristine[kind], "--input", case.file, *arguments)
    check_answer(answer)
    assert answer.code == 0
    assert len(answer.out.splitlines()) == answer.out.count("\n") == len(lines)
    assert answer.out.replace("\n", "").isprintable() or not answer.out.isascii()
    assert "\x1b" not in answer.out


def test_a_gzip_bomb_of_short_lines_is_read_in_bounded_memory(folder: Path) -> None:
    block = gzip.compress(b"ein Hund\n" * 1_000_000)
    (folder / "bomb.gz").write_bytes(block * 1000)
    with guarded(folder, memory=2**28):
        assert sum(1 for _ in islice(read_lines(folder / "bomb.gz"), 2_000_000)) == 2_000_000


def test_a_pipe_is_read_like_a_file(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    writer = threading.Thread(target=lambda: (folder / "pipe").write_text("eins\nzwei\n", encoding="utf-8"))
    writer.start()
    with guarded(folder):
        assert list(read_lines(folder / "pipe")) == ["eins", "zwei"]
    writer.join()

"""Crafted data files: refused with file and line, or read as what they are, in bounded time and memory."""

from __future__ import annotations

import gzip
import os
import threading
from itertools import islice
from pathlib import Path

import pytest

from saccade.data.reading.pair_files import read_lines, read_pairs
from saccade.errors import SaccadeError
from untrusted_input.case import Case, check_refusal
from untrusted_input.command import check_answer, command
from untrusted_input.crafted_texts import LINES, ODD, PAIRS
from untrusted_input.guard import SECONDS, guarded

SOUND = "sound.txt"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sound file in it, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / SOUND).write_text("a small dog\ntwo dogs\n", encoding="utf-8")
    return tmp_path


def check_command(place: Path, case: Case, *arguments: object, seconds: float = SECONDS) -> None:
    with guarded(place, seconds):
        answer = command(*arguments)
    check_answer(answer)
    assert answer.code == 1
    assert case.file in answer.err


@pytest.mark.parametrize("case", LINES.parameters())
def test_a_crafted_file_of_lines_is_refused(place: Path, pristine: dict[str, Path], case: Case) -> None:
    case.make(place)
    with guarded(place), pytest.raises(SaccadeError) as caught:
        for _ in read_lines(place / case.file):
            pass
    check_refusal(str(caught.value), case)
    with guarded(place), pytest.raises(SaccadeError, match=case.file):
        for _ in read_pairs(place / case.file, place / SOUND):
            pass
    check_command(place, case, "translate", pristine["byte"], "--input", case.file, "--decoding.max-length", 3)
    check_command(place, case, "evaluate", "--hypotheses", case.file, "--reference", SOUND)
    # A run takes the sum of its data first, so that it knows it again: of a gigabyte that is some seconds.
    check_command(place, case, "train", "--source", case.file, "--target", SOUND, "--output", "run", seconds=30)
    assert not (place / "run").exists()


@pytest.mark.parametrize("case", PAIRS.parameters())
def test_a_crafted_file_of_pairs_is_refused(place: Path, case: Case) -> None:
    case.make(place)
    with guarded(place), pytest.raises(SaccadeError) as caught:
        for _ in read_pairs(place / case.file):
            pass
    check_refusal(str(caught.value), case)
    check_command(place, case, "train", "--source", case.file, "--output", "run")
    assert not (place / "run").exists()


@pytest.mark.parametrize("case", ODD.parameters())
@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "separate"])
def test_odd_characters_are_text(place: Path, pristine: dict[str, Path], kind: str, case: Case) -> None:
    case.make(place)
    with guarded(place):
        lines = list(read_lines(place / case.file))
    assert len(lines) == (place / case.file).read_bytes().count(b"\n")
    with guarded(place):
        arguments = ("--beam", 1, "--decoding.max-length", 3, "--decoding.batch-tokens", 100_000)
        answer = command("translate", pristine[kind], "--input", case.file, *arguments)
    check_answer(answer)
    assert answer.code == 0
    assert len(answer.out.splitlines()) == answer.out.count("\n") == len(lines)
    assert answer.out.replace("\n", "").isprintable() or not answer.out.isascii()
    assert "\x1b" not in answer.out


def test_a_bomb_of_short_lines_takes_no_memory(place: Path) -> None:
    block = gzip.compress(b"ein Hund\n" * 1_000_000)
    (place / "bomb.gz").write_bytes(block * 1000)
    with guarded(place, memory=2**28):
        assert sum(1 for _ in islice(read_lines(place / "bomb.gz"), 2_000_000)) == 2_000_000


def test_a_pipe_is_read_like_a_file(place: Path) -> None:
    os.mkfifo(place / "pipe")
    writer = threading.Thread(target=lambda: (place / "pipe").write_text("eins\nzwei\n", encoding="utf-8"))
    writer.start()
    with guarded(place):
        assert list(read_lines(place / "pipe")) == ["eins", "zwei"]
    writer.join()

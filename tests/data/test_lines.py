from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from saccade.data.reading import text_lines as subject
from saccade.data.reading.text_lines import FileError, FileLines, Lines
from saccade.errors import SaccadeError


def lines_of(data: bytes, piece: int = 10**6) -> tuple[list[str | None], list[FileError]]:
    """What a tolerant reader makes of some bytes that come in pieces of this size."""
    faults: list[FileError] = []
    stream = io.BytesIO(data)
    return list(Lines(lambda size: stream.read(min(size, piece)), "file", faults.append)), faults


def slowly(data: bytes) -> list[str | None]:
    """The obvious way: cut at line feeds, decode each line."""
    pieces = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not pieces[-1] and len(pieces) > 1:
        pieces.pop()
    found: list[str | None] = []
    for raw in pieces:
        try:
            found.append(raw.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError:
            found.append(None)
    return found


@hypothesis_settings(deadline=None)
@given(
    data=st.lists(st.sampled_from([b"a", b"\xc3\xa4", b"\xff", b"\n", b"\r\n", b"\r", b"\xc3", b" "])).map(b"".join),
    piece=st.integers(1, 7),
)
def test_pieces_of_any_size_give_what_the_slow_way_gives(data: bytes, piece: int) -> None:
    data = b"first\n" + data  # what the first line says about the whole file is tested below
    found, faults = lines_of(data, piece)
    assert found == slowly(data)
    assert [fault.line for fault in faults] == [place + 1 for place, line in enumerate(found) if line is None]


def test_faults_are_told_in_order_and_lines_keep_their_places() -> None:
    found, faults = lines_of(b"one\n\xff\nthree\nf\xfcnf\nfive")
    assert found == ["one", None, "three", None, "five"]
    assert [str(fault).splitlines()[0] for fault in faults] == [
        "file, line 2: byte 1 of the line is not UTF-8 (0xff)",
        "file, line 4: byte 2 of the line is not UTF-8 (0xfc)",
    ]


def test_strict_reading_gives_what_comes_before_the_fault() -> None:
    lines = iter(Lines(io.BytesIO(b"one\ntwo\n\xff\n").read, "file"))
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(SaccadeError, match="file, line 3: byte 1"):
        next(lines)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a\x00b\n", ["a\x00b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", [""]),
        (b"a\r\nb\nc\r\n", ["a", "b", "c"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\n\n", ["", ""]),
        (b"", []),
    ],
)
def test_careless_but_readable(data: bytes, expected: list[str]) -> None:
    assert lines_of(data) == (expected, [])


@pytest.mark.parametrize(
    ("data", "what", "do"),
    [
        ("hello\nworld\n".encode("utf-16"), "is UTF-16", "iconv -f utf-16 -t utf-8"),
        ("你好\n".encode("utf-16"), "is UTF-16", "iconv -f utf-16 -t utf-8"),
        (b"\xfe\xff" + "hello\n".encode("utf-16-be"), "is UTF-16", "iconv -f utf-16 -t utf-8"),
        ("hello\nworld\n".encode("utf-16-le"), "is UTF-16", "iconv -f utf-16le -t utf-8"),
        ("hello\nworld\n".encode("utf-16-be"), "is UTF-16", "iconv -f utf-16be -t utf-8"),
        ("hello\nworld\n".encode("utf-32"), "is UTF-32", "iconv -f utf-32"),
        (b"one\rtwo\rthree\r", "line ends of an old Mac", "tr '\\r' '\\n'"),
        (gzip.compress(b"a\nb\n", mtime=0), "compressed by gzip", "end in .gz"),
        (b"PK\x03\x04\x14\x00", "zip archive", "unpack"),
        (b"PAR1\x15\x04", "Parquet file", "end in .parquet"),
        (b"%PDF-1.7\n", "PDF", "text file"),
    ],
)
def test_what_is_no_text_is_told_once(data: bytes, what: str, do: str) -> None:
    found, faults = lines_of(data)
    assert found == []
    (fault,) = faults
    assert what in fault.what
    assert do in str(fault.do)
    assert fault.line is None


class TestHugeLines:
    @pytest.fixture(autouse=True)
    def limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subject, "LONGEST_LINE", 100)
        monkeypatch.setattr(subject, "PIECE", 16)

    @pytest.mark.parametrize("length", [101, 115, 116, 117, 500])
    def test_they_are_faults_and_the_next_line_is_read(self, length: int) -> None:
        found, faults = lines_of(b"one\n" + b"x" * length + b"\nthree\n" + b"y" * length + b"\nlast")
        assert found == ["one", None, "three", None, "last"]
        assert [(fault.kind, fault.line) for fault in faults] == [("too-long", 2), ("too-long", 4)]

    @pytest.mark.parametrize("length", [84, 99, 100])
    def test_the_limit_itself_is_none(self, length: int) -> None:
        assert lines_of(b"one\n" + b"x" * length + b"\n") == (["one", "x" * length], [])

    def test_without_any_line_feed(self) -> None:
        found, faults = lines_of(b"x" * 1000)
        assert found == [None]
        assert "file, line 1: has more than 100 bytes" in str(faults[0])

    def test_an_old_mac_file_is_told_as_such(self) -> None:
        found, faults = lines_of(b"some line\r" * 100)
        assert (found, len(faults)) == ([], 1)
        assert "old Mac" in str(faults[0])


@pytest.mark.parametrize("name", ["bomb.txt", "bomb.gz"])
def test_a_huge_file_without_a_line_feed_needs_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(300):
                file.write(bytes(1 << 20))
    else:
        with path.open("wb") as file:
            file.truncate(300 << 20)
    faults: list[FileError] = []
    tracemalloc.start()
    try:
        found = list(FileLines(path, faults.append))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found, [fault.kind for fault in faults]) == ([None], ["too-long"])
    assert peak < 50_000_000


class TestFiles:
    def test_an_archive_that_is_cut_off_gives_what_it_has(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gz"
        path.write_bytes(gzip.compress("".join(f"line {number}\n" for number in range(100_000)).encode())[:-1000])
        faults: list[FileError] = []
        lines = FileLines(path, faults.append)
        found = list(lines)
        assert found == [f"line {number}" for number in range(len(found))]
        assert 50_000 < len(found) == lines.count < 100_000
        assert not lines.whole
        assert [fault.kind for fault in faults] == ["damaged"]
        assert f"cut off after line {len(found):,}" in faults[0].what

    @pytest.mark.parametrize(("content", "kind"), [(None, "unreadable"), (b"", "empty"), (b"\xff\xfe", "not-text")])
    def test_a_file_that_gives_nothing(self, content: bytes | None, kind: str, tmp_path: Path) -> None:
        if content is not None:
            (tmp_path / "a").write_bytes(content)
        faults: list[FileError] = []
        lines = FileLines(tmp_path / "a", faults.append)
        assert list(lines) == []
        assert not lines.whole
        assert [fault.kind for fault in faults] == [kind]

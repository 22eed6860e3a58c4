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


def lines_of(data: bytes, read_size: int = 10**6) -> tuple[list[str | None], list[FileError]]:
    """Return lines and errors of a byte stream that returns at most `read_size` bytes per read."""
    errors: list[FileError] = []
    stream = io.BytesIO(data)
    return list(Lines(lambda size: stream.read(min(size, read_size)), "file", errors.append)), errors


def reference(data: bytes) -> list[str | None]:
    """Split at line feeds and decode each line: the reference."""
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
    read_size=st.integers(1, 7),
)
def test_any_read_size_equals_the_reference(data: bytes, read_size: int) -> None:
    data = b"first\n" + data  # the first line decides the file format, which is tested below
    found, errors = lines_of(data, read_size)
    assert found == reference(data)
    assert [error.line for error in errors] == [index + 1 for index, line in enumerate(found) if line is None]


def test_invalid_lines_are_reported_in_order_and_yield_none() -> None:
    found, errors = lines_of(b"one\n\xff\nthree\nf\xfcnf\nfive")
    assert found == ["one", None, "three", None, "five"]
    assert [str(error).splitlines()[0] for error in errors] == [
        "file, line 2: byte 1 of the line is not UTF-8 (0xff)",
        "file, line 4: byte 2 of the line is not UTF-8 (0xfc)",
    ]


def test_lines_before_the_first_error_are_yielded() -> None:
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
def test_unusual_but_valid_input(data: bytes, expected: list[str]) -> None:
    assert lines_of(data) == (expected, [])


@pytest.mark.parametrize(
    ("data", "what", "hint"),
    [
        ("hello\nworld\n".encode("utf-16"), "is UTF-16", "iconv -f utf-16 -t utf-8"),
        ("你好\n".encode("utf-16"), "is UTF-16", "iconv -f utf-16 -t utf-8"),
        (b"\xfe\xff" + "hello\n".encode("utf-16-be"), "is UTF-16", "iconv -f utf-16 -t utf-8"),
        ("hello\nworld\n".encode("utf-16-le"), "is UTF-16", "iconv -f utf-16le -t utf-8"),
        ("hello\nworld\n".encode("utf-16-be"), "is UTF-16", "iconv -f utf-16be -t utf-8"),
        ("hello\nworld\n".encode("utf-32"), "is UTF-32", "iconv -f utf-32"),
        (b"one\rtwo\rthree\r", "carriage returns", "tr '\\r' '\\n'"),
        (gzip.compress(b"a\nb\n", mtime=0), "compressed by gzip", "end in .gz"),
        (b"PK\x03\x04\x14\x00", "zip archive", "unpack"),
        (b"PAR1\x15\x04", "Parquet file", "end in .parquet"),
        (b"%PDF-1.7\n", "PDF", "text file"),
    ],
)
def test_other_file_formats_are_one_error(data: bytes, what: str, hint: str) -> None:
    found, errors = lines_of(data)
    assert found == []
    (error,) = errors
    assert what in error.what
    assert hint in str(error.hint)
    assert error.line is None


class TestLongLines:
    @pytest.fixture(autouse=True)
    def limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subject, "MAX_LINE_LENGTH", 100)
        monkeypatch.setattr(subject, "READ_SIZE", 16)

    @pytest.mark.parametrize("length", [101, 115, 116, 117, 500])
    def test_long_line_is_an_error_and_the_next_line_is_read(self, length: int) -> None:
        found, errors = lines_of(b"one\n" + b"x" * length + b"\nthree\n" + b"y" * length + b"\nlast")
        assert found == ["one", None, "three", None, "last"]
        assert [(error.kind, error.line) for error in errors] == [("too-long", 2), ("too-long", 4)]

    @pytest.mark.parametrize("length", [84, 99, 100])
    def test_line_at_the_limit_is_valid(self, length: int) -> None:
        assert lines_of(b"one\n" + b"x" * length + b"\n") == (["one", "x" * length], [])

    def test_without_any_line_feed(self) -> None:
        found, errors = lines_of(b"x" * 1000)
        assert found == [None]
        assert "file, line 1: has more than 100 bytes" in str(errors[0])

    def test_carriage_returns_without_line_feeds(self) -> None:
        found, errors = lines_of(b"some line\r" * 100)
        assert (found, len(errors)) == ([], 1)
        assert "carriage returns" in str(errors[0])


@pytest.mark.parametrize("name", ["bomb.txt", "bomb.gz"])
def test_huge_file_without_line_feeds_needs_little_memory(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if path.suffix == ".gz":
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(300):
                file.write(bytes(1 << 20))
    else:
        with path.open("wb") as file:
            file.truncate(300 << 20)
    errors: list[FileError] = []
    tracemalloc.start()
    try:
        found = list(FileLines(path, errors.append))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found, [error.kind for error in errors]) == ([None], ["too-long"])
    assert peak < 50_000_000


class TestFiles:
    def test_truncated_gzip_file_yields_its_readable_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gz"
        path.write_bytes(gzip.compress("".join(f"line {number}\n" for number in range(100_000)).encode())[:-1000])
        errors: list[FileError] = []
        lines = FileLines(path, errors.append)
        found = list(lines)
        assert found == [f"line {number}" for number in range(len(found))]
        assert 50_000 < len(found) == lines.count < 100_000
        assert not lines.complete
        assert [error.kind for error in errors] == ["damaged"]
        assert f"truncated after line {len(found):,}" in errors[0].what

    @pytest.mark.parametrize(("content", "kind"), [(None, "unreadable"), (b"", "empty"), (b"\xff\xfe", "not-text")])
    def test_file_without_lines(self, content: bytes | None, kind: str, tmp_path: Path) -> None:
        if content is not None:
            (tmp_path / "a").write_bytes(content)
        errors: list[FileError] = []
        lines = FileLines(tmp_path / "a", errors.append)
        assert list(lines) == []
        assert not lines.complete
        assert [error.kind for error in errors] == [kind]

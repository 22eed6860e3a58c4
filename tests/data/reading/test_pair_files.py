from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyarrow import parquet

from saccade.data.reading.pair_files import FileError, Pair, read_lines, read_pairs
from saccade.errors import SaccadeError

PAIRS = [Pair("a cat", "eine Katze"), Pair("two dogs", "zwei Hunde"), Pair("“quoted” \u2028 text", '"zitiert"')]


def write(path: Path, text: str) -> Path:
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def error_pattern(path: Path, *parts: str) -> str:
    """Return a pattern of an error that names the file and then contains each of the parts in order."""
    return "(?s)" + ".*".join(re.escape(part) for part in (str(path), *parts))


class TestLines:
    @pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
    def test_only_a_line_feed_ends_a_line(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / name, "\ufeffone\r\ntwo\u2028\x0b\x85\x1c still two\n\nfour\r")
        assert list(read_lines(path)) == ["one", "two\u2028\x0b\x85\x1c still two", "", "four"]

    def test_final_line_feed_starts_no_line(self, tmp_path: Path) -> None:
        assert list(read_lines(write(tmp_path / "a", "x\n"))) == list(read_lines(write(tmp_path / "b", "x"))) == ["x"]

    @hypothesis_settings(deadline=None, max_examples=50)
    @given(lines=st.lists(st.text(st.characters(exclude_characters="\n\r\ufeff", codec="utf-8")), min_size=1))
    def test_round_trip(self, tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
        path = write(tmp_path_factory.getbasetemp() / "lines", "".join(line + "\n" for line in lines))
        assert list(read_lines(path)) == lines

    def test_invalid_utf8_names_the_line(self, tmp_path: Path) -> None:
        path = tmp_path / "latin"
        path.write_bytes("gut\nschön\n".encode("latin1"))
        with pytest.raises(SaccadeError, match=error_pattern(path, "line 2", "byte 4", "0xf6", "iconv")):
            list(read_lines(path))

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(SaccadeError, match=error_pattern(tmp_path / "no", "no such file", "check the path")):
            list(read_lines(tmp_path / "no"))

    def test_a_directory(self, tmp_path: Path) -> None:
        with pytest.raises(SaccadeError, match=error_pattern(tmp_path, "is a directory")):
            list(read_lines(tmp_path))

    @pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
    def test_an_empty_file(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / name, "")
        with pytest.raises(SaccadeError, match=error_pattern(path, "is empty")):
            list(read_lines(path))

    def test_truncated_gzip_file(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.gz", "".join(f"line {number}\n" for number in range(10_000)))
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(SaccadeError, match=error_pattern(path, "truncated after line", "gzip -t")):
            list(read_lines(path))

    def test_gz_name_without_gzip_content(self, tmp_path: Path) -> None:
        path = tmp_path / "a.gz"
        path.write_bytes(b"plain text\n")
        with pytest.raises(SaccadeError, match=error_pattern(path, "damaged", "gzip -t")):
            list(read_lines(path))


class TestAligned:
    def test_two_aligned_files(self, tmp_path: Path) -> None:
        source = write(tmp_path / "a.en", "".join(f"{pair.source}\n" for pair in PAIRS))
        target = write(tmp_path / "a.de.gz", "".join(f"{pair.target}\n" for pair in PAIRS))
        assert list(read_pairs(source, target)) == PAIRS

    @pytest.mark.parametrize(("sources", "targets"), [(5, 3), (3, 5)])
    def test_different_line_counts_are_an_error(self, tmp_path: Path, sources: int, targets: int) -> None:
        source, target = write(tmp_path / "a.en", "x\n" * sources), write(tmp_path / "a.de", "y\n" * targets)
        message = error_pattern(source, f"a.en has {sources} lines", f"a.de has {targets}", "line n")
        with pytest.raises(SaccadeError, match=message):
            list(read_pairs(source, target))


class TestTsv:
    @pytest.mark.parametrize("name", ["a.tsv", "a.TSV", "a.tsv.gz", "a.txt"])
    def test_columns_1_and_2_without_a_header(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / name, "".join(f"{pair.source}\t{pair.target}\textra\n" for pair in PAIRS) + "\n")
        assert list(read_pairs(path)) == PAIRS

    def test_header_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tsv", "id\ttarget\tsource\n1\teine Katze\ta cat\n")
        assert list(read_pairs(path)) == PAIRS[:1]

    def test_columns_by_name(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tsv", "en\tde\na cat\teine Katze\n")
        assert list(read_pairs(path, source_column="de", target_column="en")) == [Pair("eine Katze", "a cat")]

    def test_columns_by_number(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tsv", "7\teine Katze\ta cat\n")
        assert list(read_pairs(path, source_column="3", target_column="2")) == PAIRS[:1]

    def test_unknown_column_suggests_the_nearest(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tsv", "english\tgerman\nx\ty\n")
        with pytest.raises(SaccadeError, match=error_pattern(path, "line 1", "'englisch'", "did you mean 'english'")):
            list(read_pairs(path, source_column="englisch", target_column="german"))

    def test_missing_tab_names_the_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tsv", "a\tb\nc d\n")
        with pytest.raises(SaccadeError, match=error_pattern(path, "line 2", "has 1 column,", "one TAB")):
            list(read_pairs(path))


class TestJsonl:
    @pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
    def test_one_object_per_line(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / name, "\n".join(json.dumps(pair._asdict()) + "\n" for pair in PAIRS))
        assert list(read_pairs(path)) == PAIRS

    @pytest.mark.parametrize(
        ("line", "parts"),
        [
            ('{"source": "a", ', ["is not JSON"]),
            ('["a", "b"]', ["is not a JSON object"]),
            ('{"sorce": "a", "target": "b"}', ["'source'", "did you mean 'sorce'"]),
            ('{"source": 3, "target": "b"}', ["'source'", "int"]),
            ('{"source": "a", "target": null}', ["'target'", "null"]),
            (r'{"source": "a", "target": "\ud83d"}', ["'target'", "surrogate"]),
            ("[" * 100_000, ["is not JSON"]),
        ],
    )
    def test_invalid_line_is_named(self, tmp_path: Path, line: str, parts: list[str]) -> None:
        path = write(tmp_path / "a.jsonl", '{"source": "a", "target": "b"}\n' + line + "\n")
        with pytest.raises(SaccadeError, match=error_pattern(path, "line 2", *parts)):
            list(read_pairs(path))


class TestParquet:
    def write(self, path: Path, **columns: list[str | None] | list[int]) -> Path:
        parquet.write_table(pyarrow.table(columns), path)
        return path

    def test_two_columns(self, tmp_path: Path) -> None:
        columns = {"de": [pair.target for pair in PAIRS], "en": [pair.source for pair in PAIRS]}
        path = self.write(tmp_path / "a.parquet", **columns)
        assert list(read_pairs(path, source_column="en", target_column="de")) == PAIRS

    def test_an_unknown_column(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "a.parquet", sources=["a"], target=["b"])
        with pytest.raises(SaccadeError, match=error_pattern(path, "'source'", "did you mean 'sources'")):
            list(read_pairs(path))

    def test_null_names_the_row(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "a.parquet", source=["a", None], target=["b", "c"])
        with pytest.raises(SaccadeError, match=error_pattern(path, "row 2", "null")):
            list(read_pairs(path))

    def test_a_damaged_file(self, tmp_path: Path) -> None:
        path = tmp_path / "a.parquet"
        path.write_bytes(b"PAR1 and nothing that follows")
        with pytest.raises(SaccadeError, match=error_pattern(path, "not a readable Parquet file")):
            list(read_pairs(path))

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(SaccadeError, match=error_pattern(tmp_path / "no.parquet", "no such file")):
            list(read_pairs(tmp_path / "no.parquet"))

    def test_an_empty_file(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "a.parquet", source=[], target=[])
        with pytest.raises(SaccadeError, match=error_pattern(path, "is empty")):
            list(read_pairs(path))

    def test_missing_pyarrow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(SaccadeError, match=error_pattern(tmp_path, "pyarrow", "pip install 'saccade[parquet]'")):
            list(read_pairs(tmp_path / "a.parquet"))


def test_plain_text_without_target_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.en", "a cat\n")
    with pytest.raises(SaccadeError, match=error_pattern(path, "no target", ".tsv")):
        list(read_pairs(path))


def test_gzipped_parquet_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match=r"pairs\.parquet\.gz: .*Parquet"):
        list(read_pairs(tmp_path / "pairs.parquet.gz"))


class TestReadingWithErrorHandler:
    """Every error is reported with its line, valid examples are read, and aligned files stay aligned."""

    def read(self, *paths: Path, **columns: str) -> tuple[list[Pair], list[str]]:
        errors: list[FileError] = []
        pairs = list(read_pairs(*paths, **columns, on_error=errors.append))
        with pytest.raises(SaccadeError) as caught:
            list(read_pairs(*paths, **columns))
        assert str(caught.value) == str(errors[0])  # strict reading stops at the first of them
        return pairs, [f"{error.kind} {error.line}" for error in errors]

    def test_aligned_files_stay_aligned(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"1\n\xff\n3\n4\n5\n")
        (tmp_path / "b").write_bytes(b"one\ntwo\n\xff\nfour\n")
        pairs, errors = self.read(tmp_path / "a", tmp_path / "b")
        assert pairs == [Pair("1", "one"), Pair("4", "four")]
        assert sorted(errors) == ["line-counts None", "not-utf8 2", "not-utf8 3"]

    def test_unreadable_file_is_not_a_line_count_error(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"1\n2\n")
        (tmp_path / "b").write_bytes("one\n".encode("utf-16"))
        assert self.read(tmp_path / "a", tmp_path / "b") == ([], ["not-text None"])
        assert self.read(tmp_path / "a", tmp_path / "missing") == ([], ["unreadable None"])

    def test_tsv(self, tmp_path: Path) -> None:
        path = tmp_path / "a.tsv"
        path.write_bytes(b"a\tb\nno tab\n\n\xff\tc\nd\te\tf\n")
        assert self.read(path) == ([Pair("a", "b"), Pair("d", "e")], ["columns 2", "not-utf8 4"])

    def test_tsv_without_its_columns(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.tsv", "a\tb\nc\td\n")
        assert self.read(path, source_column="en") == ([], ["columns 1"])

    def test_jsonl(self, tmp_path: Path) -> None:
        path = write(
            tmp_path / "a.jsonl",
            '{"source": "a", "target": "b"}\n{"source": "a"\n[]\n{"source": 1, "target": "b"}\n'
            '{"source": "a"}\n{"source": "\\ud800", "target": ""}\n{"source": "c", "target": "d"}\n',
        )
        pairs, errors = self.read(path)
        assert pairs == [Pair("a", "b"), Pair("c", "d")]
        assert errors == ["not-json 2", "not-json 3", "no-text 4", "columns 5", "not-utf8 6"]

    def test_parquet(self, tmp_path: Path) -> None:
        sources = pyarrow.array([b"a", None, b"f\xfcnf", b"d"], pyarrow.binary()).view(pyarrow.string())
        table = pyarrow.table({"source": sources, "target": ["1", "2", "3", "4"]})
        parquet.write_table(table, tmp_path / "a.parquet")
        pairs, errors = self.read(tmp_path / "a.parquet")
        assert pairs == [Pair("a", "1"), Pair("d", "4")]
        assert errors == ["no-text 2", "not-utf8 3"]

    @pytest.mark.parametrize("name", ["a.tsv", "a.jsonl", "a.parquet", "a.parquet.gz", "a.txt"])
    def test_a_missing_file(self, tmp_path: Path, name: str) -> None:
        pairs, errors = self.read(tmp_path / name)
        assert (pairs, len(errors)) == ([], 1)

    def test_plain_text_without_target(self, tmp_path: Path) -> None:
        assert self.read(write(tmp_path / "a.en", "a\n")) == ([], ["no-target None"])

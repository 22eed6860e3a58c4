from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saccade.data.reading.pair_files import FileError, read_pairs

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=12)


@given(rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5), delimiter=st.sampled_from(",;\t"))
def test_reads_what_the_csv_module_writes(
    rows: list[tuple[str, str]], delimiter: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "pairs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerows([("source", "target"), *rows])
    assert list(read_pairs(path)) == rows


def test_columns_are_chosen_by_name_or_number(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('id,german,english\n1,"ein, zwei",one two\n\n2,drei,"a ""three"""\n')
    expected = [("one two", "ein, zwei"), ('a "three"', "drei")]
    assert list(read_pairs(path, source_column="english", target_column="german")) == expected
    assert list(read_pairs(path, source_column="3", target_column="2"))[1:] == expected


def test_gzipped_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv.gz"
    path.write_bytes(gzip.compress(b"one,eins\ntwo,zwei\n"))
    assert list(read_pairs(path)) == [("one", "eins"), ("two", "zwei")]


def test_faulty_rows_are_reported_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('one,eins\ntwo\n"a"b,c\nthree,drei\n')
    found: list[FileError] = []
    assert list(read_pairs(path, on_error=found.append)) == [("one", "eins"), ("three", "drei")]
    assert [(error.kind, error.line) for error in found] == [("columns", 2), ("not-csv", 3)]
    with pytest.raises(FileError):
        list(read_pairs(path))


def test_an_unclosed_quote_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text('one,eins\n"two,zwei\nthree,drei\n')
    found: list[FileError] = []
    assert list(read_pairs(path, on_error=found.append)) == [("one", "eins")]
    assert [error.kind for error in found] == ["not-csv"]

"""Data files that are not text, not pairs, or too large."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
from pyarrow import parquet

from untrusted_input.case import Catalog
from untrusted_input.pristine import sparse_file

LINES = Catalog()
"""Each case writes a file of lines into an empty folder."""

PAIRS = Catalog()
"""Each case writes a file of pairs."""

ODD = Catalog()
"""Files with odd characters that are valid texts; `pattern` is not used."""

GIGABYTE = 2**30


def lines(name: str, content: bytes, pattern: str, file: str = "lines.txt") -> None:
    """Add a case of lines with this content."""
    LINES.add(name, lambda folder: (folder / file).write_bytes(content), file, pattern)


def pairs(name: str, file: str, content: bytes, pattern: str) -> None:
    """Add a case of pairs with this content."""
    PAIRS.add(name, lambda folder: (folder / file).write_bytes(content), file, pattern)


def gzip_bomb(path: Path, size: int) -> None:
    """Write a small file that unpacks to `size` NUL bytes without a line feed."""
    block = gzip.compress(bytes(2**24), 9)
    path.write_bytes(block * (size // 2**24))


lines("empty", b"", "")
lines("latin_1", "eins\nfünf\n".encode("latin1"), "line 2: byte 2")
lines("utf_16", "ein Hund\nzwei Hunde\n".encode("utf-16"), "UTF-16")
lines("utf_16_without_mark", ("ein Hund\n" * 50).encode("utf-16-le"), "UTF-16|line 1")
lines("utf_32", "ein Hund\n".encode("utf-32"), "UTF-32")
lines("utf_7_with_a_high_byte", b"+AOQ-\n\x80\n", "line 2: byte 1")
lines("overlong_letter", b"a\n\xc0\xaf\n", "line 2: byte 1")
lines("encoded_surrogate", b"a\n\xed\xa0\x80\n", "line 2: byte 1")
lines("beyond_unicode", b"a\n\xf4\x90\x80\x80\n", "line 2: byte 1")
lines("cut_off_letter", b"a\nb\xe2\x82", "line 2: byte 2")
lines("all_bytes", bytes(range(256)) * 64, "UTF|line")
lines("machine_code", b"\x7fELF\x02\x01\x01" + bytes(range(128, 256)), "UTF-8")
lines("carriage_returns_only", b"ein Hund\rzwei Hunde\rdrei Hunde\r", "carriage return")
lines("gzip_without_its_name", gzip.compress(b"ein Hund\n"), "gzip")
lines("no_gzip_with_its_name", b"ein Hund\n", "line 0", "lines.txt.gz")
lines("half_a_gzip", gzip.compress(b"ein Hund\n" * 10_000)[:-12], "line 0", "lines.txt.gz")
lines("gzip_with_a_flipped_bit", gzip.compress(b"ein Hund\n" * 100)[:-3] + b"\x00\x00\x00", "line 0", "lines.txt.gz")
lines("gzip_with_rubbish_after_it", gzip.compress(b"ein Hund\n") + b"rubbish", "line 0", "lines.txt.gz")
LINES.add(
    "a_line_of_a_gigabyte",
    lambda folder: sparse_file(folder / "lines.txt", GIGABYTE),
    "lines.txt",
    "line 1: .*10,000,000",
)
LINES.add(
    "a_gigabyte_after_a_line",
    lambda folder: sparse_file(folder / "lines.txt", GIGABYTE, b"ein Hund\n"),
    "lines.txt",
    "line 2: .*10,000,000",
)
LINES.add(
    "a_gzip_of_a_line_of_a_gigabyte",
    lambda folder: gzip_bomb(folder / "lines.txt.gz", GIGABYTE),
    "lines.txt.gz",
    "line 1: .*10,000,000",
)
LINES.add("a_folder", lambda folder: (folder / "lines.txt").mkdir(), "lines.txt", "")
LINES.add("nothing_at_all", lambda folder: None, "lines.txt", "")
LINES.add(
    "zeros_without_end",
    lambda folder: (folder / "lines.txt").symlink_to("/dev/zero"),
    "lines.txt",
    "line 1: .*10,000,000",
)
LINES.add("chance_without_end", lambda folder: (folder / "lines.txt").symlink_to("/dev/urandom"), "lines.txt", "UTF")
LINES.add("a_circle", lambda folder: (folder / "lines.txt").symlink_to("lines.txt"), "lines.txt", "")

pairs("tsv_of_one_column", "pairs.tsv", b"a\tb\nc\n", "line 2: ")
pairs("tsv_of_nothing", "pairs.tsv", b"", "")
pairs("tsv_in_latin_1", "pairs.tsv", "a\tb\nc\tü\n".encode("latin1"), "line 2: byte 3")
PAIRS.add(
    "tsv_of_a_gigabyte_of_tabs",
    lambda folder: (folder / "pairs.tsv").write_bytes(b"\t" * 20_000_000),
    "pairs.tsv",
    "line 1: .*10,000,000",
)
pairs("csv_of_one_column", "pairs.csv", b"a,b\nc\n", "line 2: ")
pairs("csv_of_nothing", "pairs.csv", b"", "")
pairs("csv_with_text_after_a_quote", "pairs.csv", b'a,b\n"c"d,e\n', "line 2: .*CSV")
pairs("csv_with_an_open_quote", "pairs.csv", b'a,b\n"' + b"c\n" * 6_000_000, "CSV")
pairs("csv_of_a_row_over_all_lines", "pairs.csv", b'a,b\n"' + b'\n","' * 3_000_000, "CSV")
pairs("jsonl_of_words", "pairs.jsonl", b"ein Hund\n", "line 1: .*JSON")
pairs("jsonl_of_a_key_twice", "pairs.jsonl", b'{"source": "a", "source": "b", "target": "c"}', "line 1: .*'source'")
pairs("jsonl_of_lists", "pairs.jsonl", b'["a", "b"]\n', "line 1: .*JSON")
pairs("jsonl_of_numbers", "pairs.jsonl", b'{"source": 1, "target": "b"}\n', "1: .*'source'.* int")
pairs("jsonl_of_groups", "pairs.jsonl", b'{"source": {"a": 1}, "target": "b"}\n', "1: .*'source'.* dict")
pairs("jsonl_of_null", "pairs.jsonl", b'{"source": null, "target": "b"}\n', "1: .*'source'.* null")
pairs("jsonl_without_target", "pairs.jsonl", b'{"source": "a"}\n', "'target'")
pairs("jsonl_of_half_a_character", "pairs.jsonl", rb'{"source": "\ud800", "target": "b"}', "surrogate")
pairs("jsonl_of_the_other_half", "pairs.jsonl", rb'{"source": "\udc00 \ud83d", "target": "b"}', "surrogate")
pairs("jsonl_nested_lists", "pairs.jsonl", b"[" * 1_000_000, "line 1: .*JSON")
pairs("jsonl_nested_groups", "pairs.jsonl", b'{"source":' * 300_000, "line 1: .*JSON")
pairs("jsonl_of_a_long_number", "pairs.jsonl", b'{"source": ' + b"9" * 100_000 + b"}", "line 1: .*JSON")
pairs("jsonl_of_python", "pairs.jsonl", b"{'source': __import__('os')}\n", "line 1: .*JSON")
pairs("jsonl_with_a_mark_inside", "pairs.jsonl", b"\n\xef\xbb\xbf{}\n", "line 2: .*JSON")
pairs(
    "jsonl_of_many_keys",
    "pairs.jsonl",
    json.dumps({f"key {n}": n for n in range(200_000)}).encode(),
    "'source'",
)
pairs("jsonl_of_a_long_key", "pairs.jsonl", json.dumps({"x" * 5_000_000: 1}).encode(), "'source'")
pairs("jsonl_of_odd_keys", "pairs.jsonl", b'{"\\u001b[2J\\u202e\\nsource": 1}\n', "'source'")
pairs("parquet_of_nothing", "pairs.parquet", b"", "pairs.parquet")
pairs("parquet_of_words", "pairs.parquet", b"PAR1 ein Hund PAR1", "Parquet")
pairs("parquet_with_an_endless_footer", "pairs.parquet", b"PAR1" + b"\xff\xff\xff\x7fPAR1", "Parquet")
pairs("parquet_in_a_gzip", "pairs.parquet.gz", gzip.compress(b"PAR1"), "Parquet")


def table(name: str, pattern: str, **columns: object) -> None:
    """Add a case of Parquet with these columns."""

    def make(folder: Path) -> None:
        parquet.write_table(pyarrow.table(columns), folder / "pairs.parquet")

    PAIRS.add(f"parquet_{name}", make, "pairs.parquet", pattern)


table("of_no_rows", "", source=pyarrow.array([], pyarrow.string()), target=pyarrow.array([], pyarrow.string()))
table("of_numbers", "1: .*'source'.* int", source=[1, 2], target=["a", "b"])
table("of_bytes", "1: .*'source'.* bytes", source=[b"a"], target=["b"])
table("of_lists", "1: .*'source'.* list", source=[["a"]], target=["b"])
table("of_groups", "1: .*'source'.* dict", source=[{"a": "b"}], target=["b"])
table("of_nulls", "1: .*'source'.* null", source=pyarrow.nulls(2), target=["a", "b"])
table("of_other_columns", "'source'", english=["a"], target=["b"])


def cut_parquet(folder: Path) -> None:
    parquet.write_table(pyarrow.table({"source": ["a"] * 1000, "target": ["b"] * 1000}), folder / "pairs.parquet")
    raw = (folder / "pairs.parquet").read_bytes()
    (folder / "pairs.parquet").write_bytes(raw[: len(raw) // 2])


def flip_parquet(folder: Path) -> None:
    texts = [f"text {n}" for n in range(1000)]
    parquet.write_table(pyarrow.table({"source": texts, "target": texts}), folder / "pairs.parquet")
    raw = bytearray((folder / "pairs.parquet").read_bytes())
    raw[200:600] = bytes(400)
    (folder / "pairs.parquet").write_bytes(raw)


def misname_parquet(folder: Path) -> None:
    """Write a column whose name is not UTF-8."""
    table = pyarrow.table({"source": ["a"], "target": ["b"]})
    parquet.write_table(table, folder / "pairs.parquet", store_schema=False)
    raw = (folder / "pairs.parquet").read_bytes()
    (folder / "pairs.parquet").write_bytes(raw.replace(b"target", b"targ\xfft"))


def swell_parquet(folder: Path, *, known: bool = True) -> None:
    """Write one text of some megabytes hundreds of times: small on disk, gigabytes in memory."""
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 400, pyarrow.int32()), ["x" * 11_000_000])
    table = pyarrow.table({"source": texts, "target": texts})
    parquet.write_table(table, folder / "pairs.parquet", store_schema=known)


PAIRS.add("parquet_cut_in_half", cut_parquet, "pairs.parquet", "Parquet")
PAIRS.add("parquet_with_holes", flip_parquet, "pairs.parquet", "Parquet")
PAIRS.add("parquet_with_a_name_in_no_utf_8", misname_parquet, "pairs.parquet", "Parquet")
PAIRS.add("parquet_that_swells", swell_parquet, "pairs.parquet", "row 1: .*10,000,000")
PAIRS.add(
    "parquet_that_swells_in_secret",
    lambda folder: swell_parquet(folder, known=False),
    "pairs.parquet",
    "row 1: .*10,000,000",
)


def odd(name: str, content: str) -> None:
    """Add a case of text that is read as it is."""
    ODD.add(name, lambda folder: (folder / "lines.txt").write_bytes(content.encode("utf-8")), "lines.txt", "")


odd("nul_bytes", "ein\0 Hund\n\0\n")
odd("line_ends_of_all_kinds", "eins\r\nzwei\ndrei\rvier\x0bfünf\x0csechs\x85sieben\u2028acht\n")
odd("marks", "\ufeffeins\n\ufeffzwei \ufeff drei\n")
odd("right_to_left", "\u202egnivom\u202c \u2066x\u2069 שלום\n")
odd("zero_width", "a\u200bb\u200dc\u2060d\u00ade\n")
odd("noncharacters", "\ufdd0\ufdd1 \uffff \U0010ffff\n")
odd("commands_for_the_terminal", "\x1b[2J\x1b]0;owned\x07 \x9b31m\n")
odd("combining_without_end", "a" + "\u0301" * 5000 + "\n")
odd("one_word_without_end", "a" * 20_000 + "\n")
odd("symbols", "<s> </s> <pad> <unk> ▁ <0x41>\n")
odd("all_planes", "".join(chr(n) for n in range(0x20, 0x11000, 97) if not 0xD800 <= n < 0xE000) + "\n")
odd("blank_lines", "\n\n \n\t\n")
odd("format_strings", "{0} {x.__class__} %s %n $HOME `id` $(id)\n")

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from saccade.data.lexicon.ibm_model_1 import WordPair
from saccade.data.lexicon.lexicon_file import Lexicon, match_case, read_lexicon, write_lexicon
from saccade.errors import SaccadeError


def test_lexicon_round_trip(tmp_path: Path) -> None:
    entries = [WordPair("book", "Buch", 0.75), WordPair("house", "Haus", 1 / 3), WordPair("house", "Hauses", 0.2)]
    write_lexicon(tmp_path / "lexicon.tsv", entries)
    assert (tmp_path / "lexicon.tsv").read_text() == "book\tBuch\t0.75\nhouse\tHaus\t0.333333\nhouse\tHauses\t0.2\n"
    assert read_lexicon(tmp_path / "lexicon.tsv") == Lexicon({"book": "Buch", "house": "Haus"})


def test_most_probable_line_is_used_and_probability_is_optional(tmp_path: Path) -> None:
    text = "a\tx\t0.2\na\ty\t0.3\n\na\tz\t0.3\nb\tu\nb\tv\t1\ncafe\u0301\tKaffee haus\n"
    with gzip.open(tmp_path / "lexicon.tsv.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    assert read_lexicon(tmp_path / "lexicon.tsv.gz").entries == {"a": "y", "b": "u", "café": "Kaffee haus"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("word", "has 1 column, not 2 or 3"),
        ("a\tb\t0.5\tc", "has 4 columns"),
        ("\tb", "has no source word"),
        ("a\t ", "has no target word"),
        ("two words\tb", "more than one word"),
        ("a\tb\tc", "'c' is not a probability"),
        ("a\tb\t1.5", "'1.5' is not a probability"),
        ("a\tb\tnan", "'nan' is not a probability"),
        ("a\tb\t", "'' is not a probability"),
    ],
)
def test_invalid_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "lexicon.tsv").write_text(f"good\tgut\n{line}\n")
    with pytest.raises(SaccadeError) as raised:
        read_lexicon(tmp_path / "lexicon.tsv")
    assert message in str(raised.value)
    assert f"{tmp_path / 'lexicon.tsv'}, line 2: " in str(raised.value)


def test_missing_or_non_text_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SaccadeError, match="no such file"):
        read_lexicon(tmp_path / "none.tsv")
    (tmp_path / "latin.tsv").write_bytes(b"a\tb\nf\xfcnf\tfive\n")
    with pytest.raises(SaccadeError, match="line 2: byte 2"):
        read_lexicon(tmp_path / "latin.tsv")


def test_entry_takes_the_case_of_the_word() -> None:
    lexicon = Lexicon({"house": "haus", "US": "USA", "iphone": "iPhone", "o'clock": "uhr"})
    assert lexicon.find("house") == "haus"
    assert lexicon.find("House") == "Haus"
    assert lexicon.find("HOUSE") == "HAUS"
    assert lexicon.find("US") == "USA"
    assert lexicon.find("us") is None  # only the lowercased word is looked up
    assert lexicon.find("garden") is None
    assert match_case("I", "ich") == "Ich"  # a single capital counts as a capital first letter
    assert match_case("1990S", "jahre") == "jahre"

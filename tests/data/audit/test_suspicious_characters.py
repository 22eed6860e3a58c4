from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saccade.data.audit.suspicious_characters import (
    CHARACTER_KINDS,
    find_suspicious_characters,
    first_position,
    is_mojibake,
)
from saccade.data.reading.normalization import REMOVED, normalize

EXAMPLES = {
    "control": "a\x07b",
    "replacement": "f\ufffdnf",
    "direction": "abc\u202edef",
    "zero-width": "zero\u200bwidth",
    "byte-order-mark": "joined\ufefffiles",
    "surrogate": "half \ud83d",
    "noncharacter": "not\ufdd0one",
}


def test_every_kind_has_an_example() -> None:
    assert set(EXAMPLES) == set(CHARACTER_KINDS) - {""}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_kind_is_found(kind: str) -> None:
    text = EXAMPLES[kind]
    assert find_suspicious_characters(["plain", text, "", "naïve «text» – \t\r\n\u00a0\u2028", text]) == {kind: [1, 4]}
    assert text[first_position(kind, text)] in "\x07\ufffd\u202e\u200b\ufeff\ud83d\ufdd0"


@given(st.characters())
def test_characters_removed_by_normalization_are_suspicious(character: str) -> None:
    removed = bool(REMOVED.fullmatch(character))
    assert removed <= bool(find_suspicious_characters([character]))
    if removed:
        assert normalize(character, "none") == ""


def read_byte(byte: int, encoding: str) -> str:
    try:
        return bytes([byte]).decode(encoding)
    except UnicodeDecodeError:  # five bytes are undefined in Windows-1252
        return chr(byte)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize(
    "text",
    [
        "schön",
        "Ein Café für Ödön",
        "L’été à Noël",
        "“quoted” – yes…",
        "Привет, мир",
        "Καλημέρα κόσμε",
        "日本語テキスト",
        "żółw i łódź",
    ],
)
def test_mojibake_is_found(text: str, encoding: str) -> None:
    wrong = "".join(read_byte(byte, encoding) for byte in text.encode("utf-8"))
    assert is_mojibake(wrong)
    assert find_suspicious_characters(["fine", wrong])["misread"] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "schön, Straße, Größe",
        "CAFÉ» und «THÉ»",
        "SÃO PAULO, NÃO",
        "Ånge Ö Ä",
        "« À l’été »",
        "Â, Ê, Î",
        "Привет – “мир”",
        "naïve façade – déjà vu…",
        "Ð and Þ are letters",
    ],
)
def test_correct_text_is_not_reported(text: str) -> None:
    assert not is_mojibake(text)
    assert "misread" not in find_suspicious_characters([text])


def test_texts_are_examined_separately() -> None:
    assert find_suspicious_characters(["Ã", "¤"]) == {}
    assert find_suspicious_characters([]) == {}
    assert find_suspicious_characters([""]) == {}

from __future__ import annotations

import unicodedata
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.config import Normalization
from saccade.data.reading.normalization import normalize

FORMS: tuple[Normalization, ...] = get_args(Normalization)
# Half of the characters are special ones: controls, spaces, marks, ligatures, noncharacters, surrogates.
SPECIAL = st.sampled_from(
    "\x00\t\n\x1c\x7f\x85\xa0\u2028\u3000\ufeff\ufdd0\ufffe\U0001ffff\u0301\u0327\u1100\u1161ﬁ´¨ e"
)
TEXTS = st.lists(st.one_of(SPECIAL, st.characters(exclude_categories=()))).map("".join)


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None, max_examples=300)
@given(text=TEXTS)
def test_idempotent_and_clean(form: Normalization, text: str) -> None:
    once = normalize(text, form)
    assert normalize(once, form) == once
    assert once == once.strip()
    assert "  " not in once
    assert {unicodedata.category(character) for character in once}.isdisjoint({"Cc", "Cs"})
    assert not any(character.isspace() and character != " " for character in once)
    once.encode("utf-8")


def test_normalization_forms() -> None:
    composed, decomposed, ligature = "é", "é", "ﬁ"
    assert normalize(decomposed + ligature, "nfc") == composed + ligature
    assert normalize(decomposed + ligature, "nfkc") == composed + "fi"
    assert normalize(decomposed + ligature, "none") == decomposed + ligature


def test_spaces_and_controls() -> None:
    assert normalize("\ufeff a\u00a0 b\tc\r\n\x00d\u3000 ", "nfc") == "a b c d"


def test_zero_width_joiners_are_kept() -> None:
    assert normalize("می\u200cخواهم 👩\u200d🔬", "nfc") == "می\u200cخواهم 👩\u200d🔬"

from __future__ import annotations

import itertools

import pytest

from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, train_tokenizers

PEOPLE = {"a man": "ein Mann", "a woman": "eine Frau", "the girl": "das Mädchen", "two boys": "zwei Jungen"}
DOING = {"walking": "geht", "eating": "isst", "singing loudly": "singt laut", "reading": "liest"}
LOCATIONS = {"in the street": "auf der Straße", "at home": "zu Hause", "under 12 trees": "unter 12 Bäumen", "": "dort"}


@pytest.fixture(scope="session")
def pairs() -> list[Pair]:
    """64 sentences with punctuation, digits and umlauts."""
    return [
        Pair(
            f"{person} {doing} {location}.".replace(" .", "."),
            f"{PEOPLE[person]} {DOING[doing]} {LOCATIONS[location]}.",
        )
        for person, doing, location in itertools.product(PEOPLE, DOING, LOCATIONS)
    ]


@pytest.fixture(scope="session")
def texts(pairs: list[Pair]) -> list[str]:
    return [text for pair in pairs for text in pair]


@pytest.fixture(scope="session")
def tokenizers(pairs: list[Pair]) -> Tokenizers:
    return train_tokenizers(pairs, DataConfig(vocabulary=120))

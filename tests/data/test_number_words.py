from __future__ import annotations

import pytest

from saccade.data.number_words import NumberSplit, number_pair, number_pairs
from saccade.data.reading.pair_files import Pair
from saccade.errors import SaccadeError


@pytest.fixture(scope="module")
def split() -> NumberSplit:
    return number_pairs(train=1500, valid=100, test=200, below=1_000_000, seed=1)


def test_spelling() -> None:
    assert number_pair(321) == Pair("three hundred and twenty-one", "dreihunderteinundzwanzig")
    assert number_pair(1234).source == "one thousand two hundred and thirty-four"
    assert number_pair(101_001).target == "einhunderteintausendeins"
    assert number_pair(2_000_001) == Pair("two million and one", "zwei Millionen eins")


def test_numbers_are_distinct(split: NumberSplit) -> None:
    assert [len(part) for part in split] == [1500, 100, 200]
    everything = [pair.source for part in split for pair in part]
    assert len(set(everything)) == len(everything)


def test_training_data_covers_small_numbers_and_all_words(split: NumberSplit) -> None:
    trained = set(split.train)
    assert {number_pair(number) for number in [*range(100), 100, 1000, 10_000, 100_000]} <= trained
    known = {word for pair in split.train for word in pair.source.split()}
    assert {word for part in split for pair in part for word in pair.source.split()} <= known


def test_every_split_has_short_and_long_numbers(split: NumberSplit) -> None:
    for part in split:
        long = sum("thousand" in pair.source for pair in part)
        assert 0.5 < long / len(part) < 0.9


def test_deterministic(split: NumberSplit) -> None:
    settings = {"train": 1500, "valid": 100, "test": 200, "below": 1_000_000}
    assert number_pairs(**settings, seed=1) == split
    assert number_pairs(**settings, seed=2) != split


@pytest.mark.parametrize("below", [50, 100, 101, 102, 1000, 1001, 1100])
def test_all_numbers_below_the_limit_can_be_requested(below: int) -> None:
    split = number_pairs(train=below, valid=0, test=0, below=below, seed=0)
    assert set(split.train) == {number_pair(number) for number in range(below)}


def test_impossible_counts_are_errors() -> None:
    with pytest.raises(SaccadeError, match=r"1,100 .*1,000"):
        number_pairs(train=1000, valid=50, test=50, below=1000, seed=0)
    with pytest.raises(SaccadeError, match="101"):
        number_pairs(train=100, valid=50, test=50, below=1000, seed=0)

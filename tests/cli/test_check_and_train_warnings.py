"""Every warning of `saccade check` appears in `saccade train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import TINY, Saccade

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
Lines = list[tuple[str, str]]


def good_pairs(count: int = 200) -> Lines:
    """Return different pairs without issues."""
    names = [f"{NUMBERS[n // 100 % 10]} {NUMBERS[n // 10 % 10]} {NUMBERS[n % 10]}" for n in range(count)]
    return [(name, " ".join(reversed(name.split())) + " !") for name in names]


class BadData(NamedTuple):
    """Training and validation pairs with an issue, and the settings with which it is a warning."""

    kinds: int  # number of warnings expected at least
    train: Callable[[Lines], Lines] = lambda pairs: pairs
    valid: Callable[[Lines], Lines] | None = None
    settings: tuple[str, ...] = ()


def change(every: int, source: str = "{0}", target: str = "{0}") -> Callable[[Lines], Lines]:
    """Return a function that changes both sides of every `every`-th pair."""
    return lambda pairs: [
        (source.format(a), target.format(b)) if index % every == 0 else (a, b) for index, (a, b) in enumerate(pairs)
    ]


BAD_DATA = {
    "unknown tokens": BadData(2, settings=("--data.vocabulary", "10")),
    "unknown words": BadData(1, valid=change(2, "zzz qqq"), settings=("--data.tokenizer", "word")),
    "dropped pairs": BadData(1, settings=("--data.tokenizer", "char", "--data.max-length", "12")),
    "unequal lengths": BadData(1, change(9, "{0} " * 20), settings=("--data.max-ratio", "3")),
    "empty sources": BadData(1, change(10, "")),
    "empty targets": BadData(1, change(10, target="")),
    "misread texts": BadData(1, change(10, "{} schÃ¶n")),
    "replacement characters": BadData(1, change(10, target="{} \ufffd")),
    "control characters": BadData(1, change(10, "{} \x07")),
    "zero-width characters": BadData(1, change(10, "{}\u200bx")),
    "bidirectional controls": BadData(1, change(10, "{} \u202e")),
    "noncharacters": BadData(1, change(10, "{} \ufffe")),
    "byte order marks": BadData(1, change(10, "{} \ufeff x")),
    "long texts": BadData(1, change(20, "{0} " * 600), settings=("--data.max-length", "20000")),
    "duplicates": BadData(1, lambda pairs: pairs[:50] * 4),
    "identical sides": BadData(1, lambda pairs: [(a, a) for a, _ in pairs]),
    "equal targets": BadData(0, lambda pairs: [(a, "same") for a, _ in pairs]),  # an error, not a warning
    "validation in training": BadData(2, valid=lambda pairs: good_pairs()[:20]),
    "validation sources in training": BadData(1, valid=lambda pairs: [(a, "new") for a, _ in good_pairs()[:20]]),
    "faulty validation": BadData(3, valid=change(2, "{} \x07", "{} schÃ¶n \ufffd")),
    "repeated validation": BadData(1, valid=lambda pairs: pairs[:2] * 5),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_training_warns_of_everything_that_check_warns_of(name: str, tmp_path: Path, saccade: Saccade) -> None:
    case = BAD_DATA[name]
    (tmp_path / "train.tsv").write_text(lines(case.train(good_pairs())), encoding="utf-8")
    arguments = [*TINY, "--source", str(tmp_path / "train.tsv"), *case.settings]
    if case.valid is not None:
        (tmp_path / "valid.tsv").write_text(lines(case.valid(good_pairs(220)[200:])), encoding="utf-8")
        arguments += ["--valid-source", str(tmp_path / "valid.tsv")]
    checked = saccade("check", *arguments, "--no-model", "--json")
    findings = json.loads(checked.out)["findings"]
    expected = [finding for finding in findings if finding["severity"] != "information"]
    assert len(expected) >= max(1, case.kinds)
    for attempt in ("built", "reused"):  # the second run reads the token cache
        trained = saccade("train", *arguments, "--training.max-steps", 1, "--output", tmp_path / attempt)
        if trained.code:
            assert checked.code == trained.code
        logged = (tmp_path / attempt / "train.log").read_text(encoding="utf-8") if not trained.code else trained.err
        for finding in expected:
            assert f"{finding['severity']}: {finding['what']}" in trained.err
            assert finding["what"] in logged


def lines(pairs: Lines) -> str:
    """Return the content of a TSV file."""
    return "".join(f"{source}\t{target}\n" for source, target in pairs)

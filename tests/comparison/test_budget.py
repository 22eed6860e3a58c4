from __future__ import annotations

import pytest

from saccade.errors import UsageError
from saccade.studies.comparison.budget import Budget, read_budget


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", Budget(minutes=10)),
        ("90s", Budget(minutes=1.5)),
        ("2h", Budget(minutes=120)),
        ("1.5h", Budget(minutes=90)),
        ("10 minutes", Budget(minutes=10)),
        ("5M tokens", Budget(tokens=5_000_000)),
        ("5Mtok", Budget(tokens=5_000_000)),
        ("2.5ktok", Budget(tokens=2_500)),
        ("300 tokens", Budget(tokens=300)),
    ],
)
def test_time_and_tokens(text: str, expected: Budget) -> None:
    assert read_budget(text) == expected


@pytest.mark.parametrize(
    "text", ["", "10", "5M", "10x", "-3m", "0m", "0tok", "0.2tok", "m", "1e3m", "nan m", "9999999h", "5m tokens"]
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_budget(text)
    assert caught.value.hint is not None
    assert "5Mtok" in caught.value.hint


def test_budgets_in_words() -> None:
    assert str(read_budget("30s")) == "30 seconds"
    assert str(read_budget("90s")) == "1.5 minutes"
    assert str(read_budget("5Mtok")) == "5,000,000 target tokens"

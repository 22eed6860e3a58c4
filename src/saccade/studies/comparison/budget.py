"""How much training each model of a comparison gets: minutes, or target tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from saccade.errors import UsageError

SECONDS = {"s": 1, "sec": 1, "seconds": 1, "m": 60, "min": 60, "minutes": 60, "h": 3600, "hours": 3600}
FACTORS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
MOST_MINUTES = 60 * 24 * 366
MOST_TOKENS = 10**15
ADVICE = "write minutes of training as 90s, 10m or 2h, or target tokens as 500ktok, 5Mtok or '5M tokens'"

TIME = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")
TOKENS = re.compile(r"(\d+(?:\.\d+)?) ?([kKMG]?) ?(?:tok|tokens)")


@dataclass(frozen=True)
class Budget:
    """The training of one model; one of the two is given."""

    minutes: float | None = None
    tokens: int | None = None

    def __str__(self) -> str:
        if self.tokens is not None:
            return f"{self.tokens:,} target tokens"
        assert self.minutes is not None
        return f"{60 * self.minutes:g} seconds" if self.minutes < 1 else f"{self.minutes:g} minutes"


def read_budget(text: str) -> Budget:
    """`10m`, `90s` and `2h` are time; `5Mtok`, `5M tokens` and `300 tokens` are target tokens.

    A small m is a minute and a capital M a million, so a bare `5M` is refused rather than guessed.
    """
    text = text.strip()
    if (time := TIME.fullmatch(text)) and time[2] in SECONDS:
        return Budget(minutes=bounded(float(time[1]) * SECONDS[time[2]] / 60, MOST_MINUTES, text))
    if found := TOKENS.fullmatch(text):
        return Budget(tokens=round(bounded(float(found[1]) * FACTORS[found[2]], MOST_TOKENS, text)))
    raise UsageError(f"the budget cannot be '{text}'", do=ADVICE)


def bounded(value: float, most: float, text: str) -> float:
    """The value, if it is one that a run can have."""
    if not 0 < value <= most or (most == MOST_TOKENS and value < 1):
        raise UsageError(f"the budget cannot be '{text}': it is too {'large' if value > most else 'small'}", do=ADVICE)
    return value

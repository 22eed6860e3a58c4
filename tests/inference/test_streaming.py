from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from inference.small_models import PAIRS
from saccade.data.config import DataConfig
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.errors import SaccadeError
from saccade.inference import translator as module
from saccade.inference.engine import Found, Work
from saccade.inference.streaming import read_windows
from saccade.inference.translator import Translator

FOUND = [Hypothesis((5, 6), -1.0, -1.0, (-0.5, -0.5, 0.0), finished=True)]


class FakeEngine:
    """Works ahead, and notes what is begun and what is fetched."""

    name = "fake"
    works_ahead = True

    def __init__(self) -> None:
        self.events: list[str] = []
        self.numbers = count()

    def begin(self, work: Work) -> Callable[[], Found]:
        number = next(self.numbers)
        self.events.append(f"begin {number}")

        def fetch() -> Found:
            self.events.append(f"fetch {number}")
            yield from [(row, FOUND) for row, source in enumerate(work.sources) if source[0]]

        return fetch


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def translator(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator without a model."""
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="char"))
    translator = Translator(None, tokenizers, DecodingConfig())  # type: ignore[arg-type]
    monkeypatch.setattr(translator.engines, "choose", lambda *_, **__: engine)
    return translator


def test_memory_does_not_grow_with_the_input(translator):
    read, written = 0, 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(200_000):
            read += 1
            yield "ab cd" if number % 7 else ""

    sizes = []
    for translation in translator.stream(lines(), scores=False, at_hand=lambda: True):
        written += 1
        assert read - written <= 2 * module.WINDOW
        assert bool(translation.text) == bool(translation.source)
        if written % 20_000 == 0:
            sizes.append(resident())
    assert written == 200_000
    assert max(sizes[1:]) < sizes[0] + 16 * 2**20  # all outputs together would take ten times as much


def resident() -> int:
    """Bytes of memory that this process holds."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.is_file() else 0


def test_the_next_window_is_begun_before_the_last_one_is_fetched(translator, engine, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    texts = ["ab", "cd", "ef", "gh", "ij"]
    assert [translation.source for translation in translator.stream(texts)] == texts
    assert engine.events == ["begin 0", "begin 1", "fetch 0", "begin 2", "fetch 1", "fetch 2"]


def test_nobody_waits_for_a_text_while_there_is_something_to_hand_out(translator, engine, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    pauses = [True, True, True, False, True]  # before each text: the fourth has to be waited for

    def lines() -> Iterator[str]:
        yield from ("ab", "cd", "ef", "gh")

    stream = translator.stream(lines(), at_hand=lambda: pauses.pop(0) if pauses else True)
    assert [translation.source for translation in stream] == ["ab", "cd", "ef", "gh"]
    assert engine.events == ["begin 0", "fetch 0", "begin 1", "fetch 1"]
    engine.events.clear()
    assert len(list(translator.stream(iter(["ab", "cd", "ef"])))) == 3  # nobody knows what an iterator does
    assert engine.events == ["begin 2", "fetch 2", "begin 3", "fetch 3"]


def test_a_stream_that_nobody_reads_on_begins_nothing_more(translator, engine, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 1)
    stream = translator.stream(["ab"] * 100)
    next(stream)
    stream.close()
    assert engine.events == ["begin 0", "begin 1", "fetch 0"]


def test_windows_and_their_prefixes():
    windows = list(read_windows("abcde", "vwxyz", 2))
    assert [window and (window.first, window.texts, window.prefixes) for window in windows] == [
        (0, ["a", "b"], ["v", "w"]),
        (2, ["c", "d"], ["x", "y"]),
        (4, ["e"], ["z"]),
    ]
    assert list(read_windows([], None, 2)) == []
    with pytest.raises(SaccadeError, match="3 prefixes for more sources"):
        list(read_windows("abcd", "xyz", 2))

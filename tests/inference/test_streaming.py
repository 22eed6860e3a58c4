from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from inference.small_models import PAIRS
from saccade.data.config import DataConfig
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.errors import SaccadeError
from saccade.inference import translator as module
from saccade.inference.deferred_model import DeferredModel
from saccade.inference.engines.engine import DecodeRequest, DecodeResults
from saccade.inference.streaming import read_windows
from saccade.inference.translator import Translator
from saccade.interface import TranslationModel

HYPOTHESES = [Hypothesis((5, 6), -1.0, -1.0, (-0.5, -0.5, 0.0), finished=True)]


class FakeEngine:
    """Runs in the background and records what is submitted and what is fetched."""

    name = "fake"
    runs_in_background = True

    def __init__(self) -> None:
        self.events: list[str] = []
        self.numbers = count()

    def submit(self, request: DecodeRequest) -> Callable[[], DecodeResults]:
        number = next(self.numbers)
        self.events.append(f"submit {number}")

        def fetch() -> DecodeResults:
            self.events.append(f"fetch {number}")
            yield from [(index, HYPOTHESES) for index, source in enumerate(request.sources) if source[0]]

        return fetch


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def translator(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator without a model."""
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="char"))
    model = DeferredModel[TranslationModel](lambda: SimpleNamespace(max_target_positions=None))  # type: ignore[arg-type]
    translator = Translator(model, tokenizers, DecodingConfig())
    monkeypatch.setattr(translator.engines, "choose", lambda *_, **__: engine)
    return translator


def test_memory_does_not_grow_with_the_input(translator):
    read, translated = 0, 0

    def lines() -> Iterator[str]:
        nonlocal read
        for number in range(200_000):
            read += 1
            yield "ab cd" if number % 7 else ""

    sizes = []
    for translation in translator.stream(lines(), scores=False, input_ready=lambda: True):
        translated += 1
        assert read - translated <= 2 * module.WINDOW
        assert bool(translation.text) == bool(translation.source)
        if translated % 20_000 == 0:
            sizes.append(resident())
    assert translated == 200_000
    assert max(sizes[1:]) < sizes[0] + 16 * 2**20  # all outputs together would take ten times as much


def resident() -> int:
    """Resident memory of this process in bytes."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.is_file() else 0


def test_the_next_window_is_submitted_before_the_last_one_is_fetched(translator, engine, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    texts = ["ab", "cd", "ef", "gh", "ij"]
    assert [translation.source for translation in translator.stream(texts)] == texts
    assert engine.events == ["submit 0", "submit 1", "fetch 0", "submit 2", "fetch 1", "fetch 2"]


def test_finished_translations_are_output_before_a_read_that_blocks(translator, engine, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 2)
    ready = [True, True, True, False, True]  # before each text: reading the fourth would block

    def lines() -> Iterator[str]:
        yield from ("ab", "cd", "ef", "gh")

    stream = translator.stream(lines(), input_ready=lambda: ready.pop(0) if ready else True)
    assert [translation.source for translation in stream] == ["ab", "cd", "ef", "gh"]
    assert engine.events == ["submit 0", "fetch 0", "submit 1", "fetch 1"]
    engine.events.clear()
    assert len(list(translator.stream(iter(["ab", "cd", "ef"])))) == 3  # an iterator may block
    assert engine.events == ["submit 2", "fetch 2", "submit 3", "fetch 3"]


def test_a_closed_stream_submits_nothing_more(translator, engine, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 1)
    stream = translator.stream(["ab"] * 100)
    next(stream)
    stream.close()
    assert engine.events == ["submit 0", "submit 1", "fetch 0"]


def test_windows_and_their_prefixes():
    windows = list(read_windows("abcde", "vwxyz", 2))
    assert [window and (window.first_index, window.texts, window.prefixes) for window in windows] == [
        (0, ["a", "b"], ["v", "w"]),
        (2, ["c", "d"], ["x", "y"]),
        (4, ["e"], ["z"]),
    ]
    assert list(read_windows([], None, 2)) == []
    with pytest.raises(SaccadeError):
        list(read_windows("abcd", "xyz", 2))

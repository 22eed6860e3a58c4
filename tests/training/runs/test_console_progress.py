from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from saccade import messages
from saccade.training.runs.console_progress import ConsoleProgress


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """The bars that are opened and closed, and the steps by which they advance."""
    found: list[tuple[str, object]] = []

    @contextmanager
    def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        found.append(("open", (what, total)))
        try:
            yield lambda count: found.append(("advance", count))
        finally:
            found.append(("close", what))

    monkeypatch.setattr(messages, "progress", progress)
    monkeypatch.setattr(messages, "note", lambda text: found.append(("note", text)))
    return found


def test_each_task_has_one_bar(events: list[tuple[str, object]]) -> None:
    with ConsoleProgress() as listener:
        listener.progress("examining", 10, None)
        listener.progress("examining", 25, None)
        listener.progress("examining", 25, 25)
        listener.progress("tokenizing", 7, 25)
        listener.progress("tokenizing", 25, 25)
    assert events == [
        ("open", ("examining", None)),
        *[("advance", count) for count in (10, 15, 0)],
        ("close", "examining"),
        ("open", ("tokenizing", 25)),
        *[("advance", count) for count in (7, 18)],
        ("close", "tokenizing"),
    ]


def test_an_unfinished_task_loses_its_bar(events: list[tuple[str, object]]) -> None:
    with pytest.raises(KeyboardInterrupt), ConsoleProgress() as listener:
        listener.progress("examining", 10, None)
        listener.progress("learning the vocabulary", 1, None)
        raise KeyboardInterrupt
    assert [event for event in events if event[0] == "close"] == [
        ("close", "examining"),
        ("close", "learning the vocabulary"),
    ]


def test_messages_are_notes_if_shown(events: list[tuple[str, object]]) -> None:
    ConsoleProgress().log("10 pairs")
    ConsoleProgress(show_messages=False).log("hidden")
    assert events == [("note", "10 pairs")]

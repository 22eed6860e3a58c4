"""Progress of data preparation on the terminal, for commands that do not train in this process."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from saccade import messages


class ConsoleProgress:
    """A progress listener that draws one bar per task; leaving its `with` block removes the bar."""

    def __init__(self, *, show_messages: bool = True) -> None:
        self.show_messages = show_messages
        self._bar = ExitStack()
        self._what: str | None = None  # the task of the bar
        self._done = 0

    def __enter__(self) -> ConsoleProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def log(self, message: str) -> None:
        """Show a message as a note, if `show_messages` is true."""
        if self.show_messages:
            messages.note(message)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Update the bar of a task; another task gets a new bar, and a finished task none."""
        if what != self._what:
            self._close()
            self._what, self._advance = what, self._bar.enter_context(messages.progress(what, total))
        self._advance(done - self._done)
        self._done = done
        if done == total:
            self._close()

    def _close(self) -> None:
        self._bar.close()
        self._what, self._done = None, 0

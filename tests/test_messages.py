from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading

import pytest

from saccade import messages
from saccade.messages import Level
from terminal import read_rest, read_until


@pytest.fixture(autouse=True)
def normal_level():
    yield
    messages.set_level(Level.NORMAL)


@pytest.mark.parametrize(
    ("level", "shown"), [(Level.QUIET, ["w"]), (Level.NORMAL, ["w", "n"]), (Level.VERBOSE, ["w", "n", "d"])]
)
def test_the_level_decides_what_is_shown(level, shown, capsys):
    messages.set_level(level)
    messages.warn("w")
    messages.note("n")
    messages.detail("d")
    assert capsys.readouterr().err.split() == shown


SCRIPT = "from saccade import messages; [messages.warn('x' * 100) for _ in range(9)]; print('done')"


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_messages_that_cannot_be_written_are_discarded(redirection):
    done = subprocess.run(
        f'"{sys.executable}" -c "{SCRIPT}" {redirection}', shell=True, stdout=subprocess.PIPE, text=True
    )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_progress_without_a_terminal_writes_nothing(capsys):
    with messages.progress("work", 3) as advance:
        advance(3)
    assert capsys.readouterr().err == ""


def test_a_progress_bar_appears_only_after_a_while(monkeypatch):
    opened = threading.Event()
    monkeypatch.setattr(messages, "shows_progress", lambda: True)
    monkeypatch.setattr(messages.ProgressBar, "open", lambda self: opened.set())
    with messages.progress("short work"):
        pass
    assert not opened.is_set()
    monkeypatch.setattr(messages, "PROGRESS_DELAY", 0.05)
    with messages.progress("work that reports nothing"):
        assert opened.wait(10)


def test_messages_appear_above_the_bar_and_stdout_is_separate(monkeypatch, capsys):
    terminal, other_end = pty.openpty()
    monkeypatch.setattr(messages, "PROGRESS_DELAY", 0.05)
    with os.fdopen(other_end, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        with messages.progress("work", 3) as advance:
            advance(2)
            read_until(terminal, b"work")
            print("a result")
            messages.warn("look [bold]here[/bold]")
        messages.warn("after")
    shown = read_rest(terminal)
    assert capsys.readouterr().out == "a result\n"
    assert b"look [bold]here[/bold]" in shown
    assert shown.rstrip().endswith(b"after")


def test_a_worker_has_the_level_of_its_parent(monkeypatch):
    messages.set_level(Level.QUIET)
    environment = messages.level_for_workers()
    messages.set_level(Level.NORMAL)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    messages.set_level_of_worker()
    assert messages.level() is Level.QUIET

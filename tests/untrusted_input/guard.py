"""What hostile input must not get: more than five seconds, more than some memory, a process, a socket, another file."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from saccade.csrc.library import library

SECONDS = 5.0
MEMORY = 2 * 2**30  # bytes beyond what the process has when the input is given to it

NEVER = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pickle.find_class")
NEVER += ("socket.connect", "socket.getaddrinfo", "ctypes.dlopen", "os.remove", "os.rename", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class TookTooLong(BaseException):
    """Not an Exception: no handler of ours may take it for a fault of the input."""


class Watch:
    """What the interpreter does while it is on; an audit hook cannot be removed, so there is one for all tests."""

    def __init__(self) -> None:
        self.on = False
        self.place = ""
        self.events: list[str] = []
        self.opened: list[str] = []

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what nobody may do, and every file that is opened."""
        if not self.on:
            return
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            self.opened.append(path)
            if (arguments[2] or 0) & WRITING and not self.may_write(path):
                self.events.append(f"write {path}")
        elif (event, *arguments) == ("ctypes.dlopen", None):
            return  # the process itself: how the allocator is spoken to
        elif event in NEVER and not any(self.may_write(part) for part in map(str, arguments)):
            self.events.append(f"{event} {arguments}")

    def may_write(self, path: str) -> bool:
        """Whether the input has led to its own place; the caches of matplotlib and the like are nobody's business."""
        export = "/.ctranslate2.partial/"  # beside the model that is used, which is sound
        return os.path.abspath(path).startswith((self.place, "/dev/")) or "cache" in path or export in path


library()  # the kernels are loaded once, by whatever needs them first; not by an input
WATCH = Watch()
sys.addaudithook(WATCH.hook)


@contextlib.contextmanager
def guarded(place: Path, seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[Watch]:
    """Fail if what happens inside takes too long or too much memory, or does what data must not do."""
    WATCH.place, WATCH.events, WATCH.opened = str(place), [], []
    with time_limit(seconds), memory_limit(memory):
        WATCH.on = True
        try:
            yield WATCH
        finally:
            WATCH.on = False
    assert not WATCH.events, WATCH.events


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise after some seconds of work, or after six times as many of waiting: others may use the machine too."""
    worked, began = time.thread_time(), time.monotonic()

    def is_over() -> bool:
        return time.thread_time() - worked > seconds or time.monotonic() - began > 6 * seconds

    def stop(number: int, frame: FrameType | None) -> None:
        if is_over():
            raise TookTooLong(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not is_over()  # a library in another language does not hear the signal


@contextlib.contextmanager
def memory_limit(extra: int) -> Iterator[None]:
    """Let the process grow by at most so many bytes of address space; more raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

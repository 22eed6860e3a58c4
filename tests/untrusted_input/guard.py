"""Limits for untrusted input: time, memory, and no process, socket or file outside its directory."""

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

from saccade.ops.kernel_library import library

SECONDS = 5.0
MEMORY = 2 * 2**30  # bytes beyond what the process has when the input is given to it

FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "pickle.find_class")
FORBIDDEN += ("socket.connect", "socket.getaddrinfo", "ctypes.dlopen", "os.remove", "os.rename", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class TookTooLong(BaseException):
    """A time limit was exceeded; not an Exception, so that no handler treats it as a fault of the input."""


class Watch:
    """Audit hook that records file accesses and forbidden operations while `on`; it cannot be removed."""

    def __init__(self) -> None:
        self.on = False
        self.directory = ""
        self.events: list[str] = []
        self.opened: list[str] = []

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record forbidden operations and every opened file."""
        if not self.on:
            return
        if event == "open" and isinstance(arguments[0], str | bytes):
            path = os.fsdecode(arguments[0])
            self.opened.append(path)
            if (arguments[2] or 0) & WRITING and not self.may_write(path):
                self.events.append(f"write {path}")
        elif (event, *arguments) == ("ctypes.dlopen", None):
            return  # the process itself, for settings of the allocator
        elif event in FORBIDDEN and not any(self.may_write(part) for part in map(str, arguments)):
            self.events.append(f"{event} {arguments}")

    def may_write(self, path: str) -> bool:
        """Return whether a path is in the directory of the input or in a cache, such as matplotlib's."""
        export = "/.ctranslate2.partial/"  # next to the valid model that a test uses
        return os.path.abspath(path).startswith((self.directory, "/dev/")) or "cache" in path or export in path


library()  # the kernels are loaded once, before any input
WATCH = Watch()
sys.addaudithook(WATCH.hook)


@contextlib.contextmanager
def guarded(directory: Path, seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[Watch]:
    """Fail if the block takes too much time or memory, writes elsewhere, or starts a process or connection."""
    WATCH.directory, WATCH.events, WATCH.opened = str(directory), [], []
    with time_limit(seconds), memory_limit(memory):
        WATCH.on = True
        try:
            yield WATCH
        finally:
            WATCH.on = False
    assert not WATCH.events, WATCH.events


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise after `seconds` of CPU time, or six times as much wall-clock time, because the machine may be busy."""
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
    assert not is_over()  # C code does not handle the signal


@contextlib.contextmanager
def memory_limit(extra: int) -> Iterator[None]:
    """Let the address space grow by at most `extra` bytes; more raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

"""Ctrl-C where Python alone would ignore it, or would wait: while torch is imported, and while CTranslate2 works."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from saccade.cli.output.errors import INTERRUPTED


@contextlib.contextmanager
def interruptible_imports() -> Iterator[None]:
    """End the process at once if Ctrl-C comes while torch is imported: its C++ code discards exceptions or aborts."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handle_interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle_interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def handle_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or end the process if torch is being imported."""
    if is_being_imported("torch"):
        with contextlib.suppress(OSError):
            os.write(2, b"saccade: interrupted\n")
        os._exit(INTERRUPTED)
    signal.default_int_handler(number, frame)


def is_being_imported(name: str) -> bool:
    """Whether the import of a module has begun and not ended."""
    specification = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(specification, "_initializing", False))


def exit_if_busy(code: int) -> None:
    """End the process at once if CTranslate2 works on batches: a normal exit would wait for their end."""
    engine = sys.modules.get("saccade.inference.engines.ctranslate2_engine")
    if engine is not None and engine.is_busy():
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)

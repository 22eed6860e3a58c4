"""Locks on files: the system takes them back from a process that dies."""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # Windows: whoever works on one thing in two processes there is on his own
    fcntl = None  # type: ignore[assignment]


def lock_file(handle: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed; false if another process has it. Some file systems cannot: nobody waits."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True

"""File locks, which the system releases when a process dies."""

from __future__ import annotations

try:
    import fcntl
except ImportError:  # Windows: no locking
    fcntl = None  # type: ignore[assignment]


def lock_file(handle: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock. True if locks are unsupported."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True

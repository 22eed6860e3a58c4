"""The C library's allocator, told to keep what it has."""

from __future__ import annotations

import ctypes
import platform

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8  # glibc's malloc.h


def keep_memory() -> bool:
    """Let glibc reuse freed memory instead of giving every big tensor back to the kernel and faulting it in again.

    All threads share what is kept: a thread that had its own would have to be given it first, and keep it from the
    others. What it is worth depends on the machine and the size of the tensors (docs/log.md). False without glibc.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 64 * 2**20), (ARENA_MAX, 1))
    return all(libc.mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)

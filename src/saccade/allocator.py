"""Settings of glibc's memory allocator."""

from __future__ import annotations

import ctypes
import platform

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8  # glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let glibc keep the memory of freed tensors instead of returning it to the kernel; False without glibc.

    Returned pages would fault again at the next allocation. All threads share one arena, so that memory freed by one
    thread is available to the others. The gain depends on machine and tensor sizes (docs/log.md).
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    settings = ((MMAP_MAX, 0), (TRIM_THRESHOLD, 2**31 - 1), (TOP_PAD, 64 * 2**20), (ARENA_MAX, 1))
    return all(libc.mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)

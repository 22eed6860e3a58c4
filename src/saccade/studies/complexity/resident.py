"""The memory of this process, so exactly that a layer's share of it shows; Linux with glibc.

What counts is the resident set: it includes the workspaces inside kernels, which no count of tensors sees. For that the
C library must give freed memory back at once, else a peak would reuse what an earlier one left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import resource
from collections.abc import Iterator

from saccade.allocator import TOP_PAD, TRIM_THRESHOLD, keep_freed_memory
from saccade.training.preflight.process_memory import PROCESS, proc_bytes, reset_process_peak_memory

MMAP_THRESHOLD = -3  # glibc's malloc.h
SET_HUGE_PAGES_OFF = 41  # Linux's prctl.h: PR_SET_THP_DISABLE
ROOM = 256 * 2**20
OWN_MAPPING = 64 * 1024  # bytes from which a tensor gets pages of its own, which go when it goes


def measurable() -> bool:
    """Whether this system lets a process watch its own memory as closely as needed here."""
    return platform.libc_ver()[0] == "glibc" and reset_process_peak_memory()


def give_memory_back() -> None:
    """From now on freed memory goes back to the kernel at once, and a touched page does not count as 2 MB."""
    libc = ctypes.CDLL(None)
    libc.prctl(SET_HUGE_PAGES_OFF, 1, 0, 0, 0)
    for name, value in ((MMAP_THRESHOLD, OWN_MAPPING), (TRIM_THRESHOLD, OWN_MAPPING), (TOP_PAD, 0)):
        libc.mallopt(ctypes.c_int(name), ctypes.c_int(value))


def reuse_memory() -> None:
    """From now on freed memory is reused, as in training: page faults are no part of a layer's time."""
    if keep_freed_memory():
        ctypes.CDLL(None).prctl(SET_HUGE_PAGES_OFF, 0, 0, 0, 0)


def settle() -> int:
    """Give back all that is free, forget the highest mark, and return the bytes that remain in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    reset_process_peak_memory()
    return status("VmRSS")


def status(name: str) -> int:
    """The bytes that a line of the process's status states: VmRSS, VmHWM, VmData."""
    found = proc_bytes(PROCESS / "status", name)
    assert found is not None  # `measurable` was asked first
    return found


@contextlib.contextmanager
def at_most(further: int) -> Iterator[None]:
    """Let an allocation fail once the process has taken so many bytes more than now, before the machine swaps.

    The kernel counts what is allocated, used or not, with the stacks of threads: hence some room above.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = status("VmData") + further + ROOM
    if hard != resource.RLIM_INFINITY:
        bound = min(bound, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

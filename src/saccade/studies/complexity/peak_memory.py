"""Peak memory of a layer, measured as resident memory of this process; Linux with glibc.

Resident memory includes workspaces inside kernels, which a count of tensors misses. malloc must return freed memory to
the kernel at once: otherwise memory that was freed earlier would hide a peak.
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

M_MMAP_THRESHOLD = -3  # glibc: malloc.h
PR_SET_THP_DISABLE = 41  # Linux: prctl.h
EXTRA_BYTES = 256 * 2**20  # beyond the limit, for thread stacks
OWN_MAPPING = 64 * 1024  # a larger tensor (in bytes) gets its own mapping, which is unmapped when it is freed


def is_measurable() -> bool:
    """Return whether this system supports the measurement."""
    return platform.libc_ver()[0] == "glibc" and reset_process_peak_memory()


def return_freed_memory() -> None:
    """Make malloc return freed memory to the kernel at once, and use no huge pages, which would count as 2 MB each."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    for name, value in ((M_MMAP_THRESHOLD, OWN_MAPPING), (TRIM_THRESHOLD, OWN_MAPPING), (TOP_PAD, 0)):
        libc.mallopt(ctypes.c_int(name), ctypes.c_int(value))


def reuse_freed_memory() -> None:
    """Make malloc reuse freed memory, as in training, so that page faults do not count as time of a layer."""
    if keep_freed_memory():
        ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


def reset_peak() -> int:
    """Return all free memory to the kernel, reset the peak, and return the resident bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    reset_process_peak_memory()
    return status_bytes("VmRSS")


def peak() -> int:
    """Return the peak of resident bytes since `reset_peak`."""
    return status_bytes("VmHWM")


def status_bytes(name: str) -> int:
    """Return a value of /proc/self/status in bytes, such as VmRSS."""
    found = proc_bytes(PROCESS / "status", name)
    assert found is not None  # `is_measurable` was checked first
    return found


@contextlib.contextmanager
def memory_limit(additional: int) -> Iterator[None]:
    """Make allocations fail beyond this many additional bytes, before the machine swaps."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    bound = status_bytes("VmData") + additional + EXTRA_BYTES
    if hard != resource.RLIM_INFINITY:
        bound = min(bound, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

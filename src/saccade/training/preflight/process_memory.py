"""Memory of this process: in use, peak, and available."""

from __future__ import annotations

import contextlib
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

PROCESS = Path("/proc/self")
SYSTEM = Path("/proc/meminfo")
GROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60  # the kernel writes a larger number if there is no limit


def memory_in_use(device: torch.device) -> int:
    """Return the bytes in use by this process, on the CPU or on the device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return proc_bytes(PROCESS / "status", "VmRSS") or lifetime_peak_memory()


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory, if the system allows it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        reset_process_peak_memory()


def reset_process_peak_memory() -> bool:
    """Reset the peak memory of the process; False if the system does not allow it."""
    try:
        (PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory(device: torch.device) -> int:
    """Return the peak number of bytes in use since `reset_peak_memory`, or since the start if it had no effect."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return proc_bytes(PROCESS / "status", "VmHWM") or lifetime_peak_memory()


def available_memory(device: torch.device) -> int | None:
    """Return how many bytes this process may use in total; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    free = [room for room in (proc_bytes(SYSTEM, "MemAvailable"), *cgroup_free_memory()) if room is not None]
    return memory_in_use(device) + min(free) if free else None


def proc_bytes(path: Path, name: str) -> int | None:
    """Read a line such as `VmRSS: 25140 kB` of a file in /proc; return bytes."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def lifetime_peak_memory() -> int:
    """Return the peak memory of the process since its start, for systems without /proc."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cgroup_free_memory() -> Iterator[int]:
    """Yield the free memory of each cgroup that contains this process (a container, a batch job)."""
    try:
        groups = (PROCESS / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for group in groups:
        _, _, rest = group.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            root, names = GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = GROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = root / path.strip("/")
        while folder.is_relative_to(root):  # in a container the lower part of the path may not exist
            room = free_in_cgroup(folder, *names)
            if room is not None:
                yield room
            folder = folder.parent


def free_in_cgroup(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Return the free memory of one cgroup, None without a limit; cached files count as free."""
    try:
        most = int((folder / limit).read_text(encoding="ascii"))
        if most >= NO_LIMIT:
            return None
        used = int((folder / usage).read_text(encoding="ascii"))
        for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == reclaimable:
                used -= int(value)
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return max(0, most - used)

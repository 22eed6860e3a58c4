"""The memory of this process: how much it uses, its highest mark, and how much it may use."""

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
NO_LIMIT = 1 << 60  # what the kernel writes where nothing is limited is larger still


def memory_in_use(device: torch.device) -> int:
    """Bytes in use now: of the process, or of the device by this process."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return kilobytes(PROCESS / "status", "VmRSS") or highest_ever()


def forget_highest(device: torch.device) -> None:
    """Start to measure the highest mark anew, where the system allows that."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif device.type == "cpu":
        forget_highest_of_process()


def forget_highest_of_process() -> bool:
    """Start to measure the highest mark of the process anew; False where the system does not allow that."""
    try:
        (PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def highest_memory(device: torch.device) -> int:
    """The most bytes that were in use since `forget_highest`, or ever where that is not possible."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return kilobytes(PROCESS / "status", "VmHWM") or highest_ever()


def available_memory(device: torch.device) -> int | None:
    """How many bytes this process may have in all, those in use included; None where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    free = [room for room in (kilobytes(SYSTEM, "MemAvailable"), *group_rooms()) if room is not None]
    return memory_in_use(device) + min(free) if free else None


def kilobytes(path: Path, name: str) -> int | None:
    """The bytes that a line such as `VmRSS: 25140 kB` of a file in /proc states."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def highest_ever() -> int:
    """The most bytes that the process ever had, where there is no /proc."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def group_rooms() -> Iterator[int]:
    """What each control group around this process (a container, a batch job) has left."""
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
        while folder.is_relative_to(root):  # inside a container the lower part of the path may not exist
            room = room_in(folder, *names)
            if room is not None:
                yield room
            folder = folder.parent


def room_in(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """What one control group has left, if it has a limit; the cached files in it can go."""
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

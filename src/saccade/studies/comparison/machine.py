"""The machine and the versions that a row was measured with."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from saccade.version import __version__

CPU_INFO = Path("/proc/cpuinfo")


def measured_with() -> dict[str, str]:
    """Return what speeds and rounding errors depend on, besides the settings: versions, processor, threads."""
    return {
        "saccade": __version__,
        "torch": torch.__version__,
        "processor": processor(),
        "threads": str(torch.get_num_threads()),
    }


def processor() -> str:
    """Return the name of the processor, or its architecture if the name is unknown."""
    with suppress(OSError):
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name" and value.strip():
                return " ".join(value.split())
    return platform.processor() or platform.machine()


def describe_differences(machines: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Describe the differences between the machines of the rows; missing values are ignored."""
    differences: list[str] = []
    for fact in dict.fromkeys(fact for machine in machines.values() for fact in machine):
        rows: dict[str, list[str]] = {}
        for name, machine in machines.items():
            if fact in machine:
                rows.setdefault(machine[fact], []).append(name)
        if len(rows) > 1:
            parts = [f"{value} ({', '.join(names)})" for value, names in rows.items()]
            differences.append(f"{fact} {', '.join(parts)}")
    return differences

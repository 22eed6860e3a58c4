"""What a figure was measured on: the machine, the versions, the commit, the day."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.environments import Environment
from bench.places import ROOT
from saccade.csrc.library import level

TOLD = ("torch", "ctranslate2", "numpy", "tokenizers", "safetensors", "sacrebleu")


def describe_machine() -> dict[str, Any]:
    """The machine and our own versions."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gigabytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in TOLD},
        "saccade": version("saccade"),
        "kernels": level(),
        "commit": commit(),
    }


def cpu_model() -> str:
    """As the kernel names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """The commit that is measured, with a plus if the files differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT)
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short=10", "HEAD")
    measured = "src", "bench", "pyproject.toml", "constraints.txt", ":!bench/results"
    changed = git("status", "--porcelain", "--untracked-files=all", "--", *measured)
    return (found or "unknown") + ("+" if changed else "")


def today() -> str:
    """The date of a result, and the name of its files."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def describe_environments(environments: Mapping[str, Environment]) -> dict[str, Any]:
    """Which versions of whom, and who is missing and why."""
    return {
        peer: {"ready": found.ready, "reason": found.reason, "versions": found.versions}
        for peer, found in environments.items()
    }

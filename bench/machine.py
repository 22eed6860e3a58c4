"""Description of the machine, package versions, commit and date of a measurement."""

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
from bench.paths import ROOT
from saccade.ops.kernel_library import level

PACKAGES = ("torch", "ctranslate2", "numpy", "tokenizers", "safetensors", "sacrebleu")


def describe_machine() -> dict[str, Any]:
    """The machine and the versions of Saccade and its packages."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gigabytes": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "saccade": version("saccade"),
        "kernels": level(),
        "commit": commit(),
    }


def cpu_model() -> str:
    """The CPU model name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """The measured commit, with a plus if the working tree differs from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT)
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short=10", "HEAD")
    measured = "src", "bench", "pyproject.toml", "constraints.txt", ":!bench/results"
    changed = git("status", "--porcelain", "--untracked-files=all", "--", *measured)
    return (found or "unknown") + ("+" if changed else "")


def today() -> str:
    """The current date, which names result files."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def describe_environments(environments: Mapping[str, Environment]) -> dict[str, Any]:
    """Package versions of each peer, or why it is not installed."""
    return {
        peer: {"ready": found.ready, "reason": found.reason, "versions": found.versions}
        for peer, found in environments.items()
    }

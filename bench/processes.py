"""Runs one job in a peer's environment, in a process of its own, and keeps all it says in a log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.environments import python_of, quiet_environment, reason_in
from bench.peers.job import find_result
from bench.places import CACHE, ROOT


@dataclass(frozen=True)
class Outcome:
    """The result of a job, or why there is none."""

    result: dict[str, Any] | None
    reason: str | None = None


def run_job(
    peer: str,
    job: Mapping[str, Any],
    *,
    script: str | None = None,
    variables: Mapping[str, str] | None = None,
    most_seconds: float = 3600,
) -> Outcome:
    """Run `bench/peers/SCRIPT.py` (by default named like the peer) with a job; never raises for what the peer does."""
    module = f"bench.peers.{(script or peer).replace('-', '_')}"
    command = [str(python_of(peer)), "-P", "-m", module, json.dumps(job)]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "PYTHONWARNINGS": "ignore"}
    environment = {**quiet_environment(), **offline, "PYTHONPATH": str(ROOT), **(variables or {})}
    folder = CACHE / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    said, log = folder / f"{job.get('name', module)}.out", folder / f"{job.get('name', module)}.log"
    # Files and no pipes: a process that the peer leaves behind would hold a pipe open for ever.
    with said.open("wb") as output, log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env=environment, cwd=CACHE, start_new_session=True
        )
        try:
            process.wait(most_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(None, f"not done after {most_seconds:g} seconds")
        finally:
            stop(process)
    result = find_result(said.read_text(encoding="utf-8", errors="replace"))
    if result is not None:  # some peers fail only when they are torn down
        return Outcome(result)
    return Outcome(None, reason_in(log.read_text(encoding="utf-8", errors="replace")))


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):  # they have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

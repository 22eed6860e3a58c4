"""Run one job in a peer's environment, in a separate process, and log its output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.environments import clean_environment, find_reason, interpreter
from bench.paths import CACHE, ROOT
from bench.peers.job import find_result


@dataclass(frozen=True)
class Outcome:
    """The result of a job, or the reason for its failure."""

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
    """Run `bench/peers/SCRIPT.py` (by default named like the peer) with a job; a failing peer raises no error."""
    module = f"bench.peers.{(script or peer).replace('-', '_')}"
    command = [str(interpreter(peer)), "-P", "-m", module, json.dumps(job)]
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "PYTHONWARNINGS": "ignore"}
    environment = {**clean_environment(), **offline, "PYTHONPATH": str(ROOT), **(variables or {})}
    folder = CACHE / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    printed, log = folder / f"{job.get('name', module)}.out", folder / f"{job.get('name', module)}.log"
    # Files instead of pipes: a process that the peer leaves behind would keep a pipe open.
    with printed.open("wb") as output, log.open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env=environment, cwd=CACHE, start_new_session=True
        )
        try:
            process.wait(most_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(None, f"not done after {most_seconds:g} seconds")
        finally:
            stop(process)
    result = find_result(printed.read_text(encoding="utf-8", errors="replace"))
    if result is not None:  # some peers fail only at exit
        return Outcome(result)
    return Outcome(None, find_reason(log.read_text(encoding="utf-8", errors="replace")))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with contextlib.suppress(ProcessLookupError):  # already ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

"""The process that measures, so that each task has a memory without a past.

It is started as `python -m saccade.studies.complexity.worker`, reads tasks from its standard input and writes one
answer to each to its standard output, as a line of JSON: a measurement, or why there is none. With `--fork` it loads
torch once and forks for every task. That is safe where torch has started no thread yet: on Linux, not on macOS. Without
`--fork` it measures by itself, and is meant for one task.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from dataclasses import asdict
from typing import Any

from saccade.errors import SaccadeError, is_out_of_memory
from saccade.studies.complexity.measurement import Measurement, Task, Timing, measure
from saccade.studies.complexity.subjects import Sizes

FORK = "--fork"
SET_SIGNAL_OF_A_DEAD_PARENT = 1  # Linux's prctl.h: PR_SET_PDEATHSIG
LONGEST = 200  # characters of a fault


def task_from(values: dict[str, Any]) -> Task:
    """A task that was written as JSON."""
    return Task(**{**values, "sizes": Sizes(**values["sizes"])})


def measurement_from(values: dict[str, Any]) -> Measurement:
    """A measurement that was written as JSON."""
    timings = {name: None if values[name] is None else Timing(**values[name]) for name in ("forward", "backward")}
    return Measurement(**{**values, **timings})


def answer(task: Task) -> dict[str, Any]:
    """Measure in this process; whatever goes wrong is an answer too."""
    try:
        return asdict(measure(task))
    except BaseException as error:
        return {"fault": fault_of(error)}


def fault_of(error: BaseException) -> str:
    """An error in one line."""
    if is_out_of_memory(error):
        return "memory ran out"
    what = error.what if isinstance(error, SaccadeError) else f"{type(error).__name__}: {error}"
    return " ".join(what.split())[:LONGEST]


def ended_by(number: int) -> str:
    """What to say of a process that a signal ended."""
    reason = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"the measuring process was ended by signal {number}{reason}"


def answer_of_a_fork(task: Task) -> dict[str, Any]:
    """Measure in a child of this process; one that died is answered for."""
    reading, writing = os.pipe()
    child = os.fork()  # no kernel has run here yet, so there are no threads that a fork would lose
    if child == 0:
        try:
            end_with_the_parent()
            with os.fdopen(writing, "w", encoding="utf-8") as file:
                json.dump(answer(task), file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return {"fault": ended_by(os.WTERMSIG(status))}
    try:
        values: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"fault": "the measuring process ended without an answer"}
    return values


def end_with_the_parent() -> None:
    """Let the system end this process when the one that started it is gone, where it can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_SIGNAL_OF_A_DEAD_PARENT, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """Answer until the input ends."""
    end_with_the_parent()
    fork = FORK in sys.argv[1:]
    if fork:
        importlib.import_module("torch.fx.experimental.symbolic_shapes")  # else the first backward pass of each would
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        for line in sys.stdin:
            task = task_from(json.loads(line))
            try:
                values = answer_of_a_fork(task) if fork else answer(task)
            except OSError as error:  # no further process
                values = {"fault": fault_of(error)}
            print(json.dumps(values), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""The process that measures: it loads torch once, and forks for every task, so that each has a memory without a past.

It is started as `python -m saccade.complexity.worker`, reads tasks from its standard input and writes measurements to
its standard output, each one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict
from typing import Any

from saccade.complexity.measurement import Measurement, Task, Timing, measure
from saccade.complexity.subjects import Sizes


def task_from(values: dict[str, Any]) -> Task:
    """A task that was written as JSON."""
    return Task(**{**values, "sizes": Sizes(**values["sizes"])})


def measurement_from(values: dict[str, Any]) -> Measurement:
    """A measurement that was written as JSON."""
    timings = {name: None if values[name] is None else Timing(**values[name]) for name in ("forward", "backward")}
    return Measurement(**{**values, **timings})


def answer_in_a_fork(task: Task) -> None:
    """Measure in a child of this process, which writes the answer; one that died without is answered for."""
    child = os.fork()  # no kernel has run here yet, so there are no threads that a fork would lose
    if child == 0:
        try:
            write(asdict(measure(task)))
        except BaseException:
            write({"fault": traceback.format_exc()})
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        write({"fault": f"the measuring process was ended by signal {os.WTERMSIG(status)}"})


def write(values: dict[str, Any]) -> None:
    """One line to the standard output."""
    print(json.dumps(values), flush=True)


def main() -> None:
    """Answer until the input ends."""
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # else the first backward pass of each fork would
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the command that started this says that it was interrupted
    for line in sys.stdin:
        answer_in_a_fork(task_from(json.loads(line)))


if __name__ == "__main__":
    main()

"""Handlers that the tests of worker processes run in a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np

from saccade.errors import SaccadeError
from saccade.workers.messages import Message
from saccade.workers.replies import Handler


def make_handler(setup: Message) -> Handler:
    """Return a handler that runs a job by name; the setup may request an error or a long import."""
    if setup.values.get("error"):
        raise SaccadeError("nothing to set up", where="here", hint="try again")
    if started := setup.values.get("started"):
        Path(started).touch()
        time.sleep(60)
    handled = 0

    def handle(request: Message) -> Message:
        nonlocal handled
        handled += 1
        if request.values["job"] == "count":
            return Message({"handled": handled, "process": os.getpid(), "session": os.getsid(0)})
        return JOBS[request.values["job"]](request)

    return handle


def double(request: Message) -> Message:
    print("progress on stdout")
    return Message({}, {"numbers": 2 * np.asarray(request.arrays["numbers"])})


def fail(request: Message) -> NoReturn:
    kind = request.values["kind"]
    if kind == "saccade":
        raise SaccadeError("bad input", where="file.txt:3", hint="fix it")
    if kind == "memory":
        raise MemoryError
    if kind == "disk":
        raise OSError(28, "No space left on device", "results.json")
    raise ZeroDivisionError("by zero" * 1000)


def die(request: Message) -> NoReturn:
    """End the process without a reply; with a file name `once`, only if the file does not exist."""
    if first := request.values.get("once"):
        if Path(first).exists():
            raise SaccadeError("alive again")
        Path(first).touch()
    if "signal" in request.values:
        os.kill(os.getpid(), request.values["signal"])
    os._exit(request.values.get("code", 0))


def sleep(request: Message) -> NoReturn:
    """Write the process number to a file, then sleep."""
    path = Path(request.values["started"])
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    time.sleep(600)
    raise AssertionError


def save_on_signal(request: Message) -> Message:
    """Record the first signal, then take some time to save; another signal would end the process."""
    received: list[int] = []
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        signal.signal(number, lambda number, _: received.append(number))
    Path(request.values["started"]).write_text(str(os.getpid()))
    while not received:
        time.sleep(0.02)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    time.sleep(request.values.get("seconds", 0.5))
    Path(request.values["saved"]).write_text(str(received))
    return Message({"received": received})


def leave_a_child(request: Message) -> Message:
    """Start a process that inherits the pipes and outlives this process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(request.values["started"]).write_text(str(child.pid))
    os._exit(4)


JOBS = {
    "double": double,
    "fail": fail,
    "die": die,
    "sleep": sleep,
    "save": save_on_signal,
    "leave": leave_a_child,
}

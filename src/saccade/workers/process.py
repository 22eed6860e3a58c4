"""Worker processes on the side of their parent: start one, send it requests, end it.

A worker is a new Python process: neither a fork nor a process of `multiprocessing`, which would import the user's main
module again and pickle its messages. The stdout and stderr of a worker are the stderr of its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from saccade import messages
from saccade.errors import SaccadeError
from saccade.workers.messages import Message, read_message, write_message
from saccade.workers.replies import WorkerDiedError, result_of
from saccade.workers.stop_signals import STOP_SIGNALS, blocked_signals

FORK = "--fork"
GRACE_SECONDS = 10.0  # how long a worker may take to exit after its last request
PACKAGE_PARENT = Path(__file__).parents[2]


class Worker:
    """A worker process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def request(self, message: Message) -> Message:
        """Send a request and wait for its result; raises the error of the handler, or WorkerDiedError."""
        self.send(message)
        assert self.process.stdout is not None
        try:
            reply = read_message(self.process.stdout)
        except (OSError, EOFError, ValueError):  # the worker died, or another thread closed the pipe
            reply = None
        if reply is None:
            raise WorkerDiedError(self.wait())
        return result_of(reply)

    def send(self, message: Message) -> None:
        """Send a message; a dead worker is no error here, because it may have left a reply with the reason."""
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):
            write_message(self.process.stdin, message)

    def wait(self) -> int | None:
        """Wait for the process to end; return its exit code or minus its signal, None if it does not end."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(GRACE_SECONDS)
        return None

    def finish(self) -> None:
        """Let the worker exit: there are no more requests."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        self.wait()

    def kill(self) -> None:
        """Kill the worker and its forks, if it is still running, and close the pipes."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):  # a request that was not sent completely
                    stream.close()


def start_worker(
    module: str, setup: Message | None = None, *, fork: bool = False, environment: Mapping[str, str] | None = None
) -> Worker:
    """Start a worker that handles requests with `make_handler(setup)` of a module.

    If `fork` is true, the worker handles each request in a fork of itself, which is safe only as long as neither
    `make_handler` nor an import starts threads. `environment` adds to the environment of this process.
    """
    # The worker must import the same package as this process.
    paths = [str(PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {**os.environ, **messages.level_for_workers(), **(environment or {})}
    command = [sys.executable, "-P", "-m", "saccade.workers.child", module, str(os.getpid())]
    try:
        with blocked_signals(STOP_SIGNALS):  # until the worker is ready for them
            process = subprocess.Popen(
                [*command, FORK] if fork else command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**inherited, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C in a terminal reaches only the parent
            )
    except OSError as error:
        raise SaccadeError(f"a worker process cannot be started: {error.strerror}") from None
    worker = Worker(process)
    worker.send(Message() if setup is None else setup)
    return worker


@contextmanager
def running_worker(
    module: str, setup: Message | None = None, *, environment: Mapping[str, str] | None = None
) -> Iterator[Worker]:
    """Start a worker that ends with the `with` block; an exception, such as Ctrl-C, kills it."""
    worker = start_worker(module, setup, environment=environment)
    try:
        yield worker
        worker.finish()
    finally:
        worker.kill()

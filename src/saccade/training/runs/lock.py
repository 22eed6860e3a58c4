"""A lock that lets only one process train a run; the system releases it when the process dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saccade.errors import SaccadeError
from saccade.file_lock import lock_file

LOCK_FILE = ".lock"


@contextmanager
def run_lock(directory: Path) -> Iterator[None]:
    """Lock a run directory for this process, or raise an error that names the process holding the lock."""
    path = directory / LOCK_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SaccadeError(
            f"cannot be written: {error.strerror}", where=str(directory), hint="check the permissions and the disk"
        ) from None
    try:
        if not lock_file(handle, wait=False):
            holder = os.read(handle, 200).decode("utf-8", "replace").strip()
            raise SaccadeError(
                f"is being trained by {holder or 'another process'}",
                where=str(directory),
                hint="wait for it or stop it; two processes would overwrite each other's checkpoints",
            )
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(handle)  # releases the lock

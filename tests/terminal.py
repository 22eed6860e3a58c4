"""Reading what a program writes to a pseudo-terminal."""

from __future__ import annotations

import os


def read_until(terminal: int, text: bytes) -> bytes:
    """Read output until it contains a text."""
    output = os.read(terminal, 10_000)
    while text not in output:
        output += os.read(terminal, 10_000)
    return output


def read_rest(terminal: int) -> bytes:
    """Read the remaining output of a program that has closed the other end, and close the terminal."""
    output = b""
    try:
        while block := os.read(terminal, 10_000):
            output += block
    except OSError:  # the end of a terminal
        pass
    os.close(terminal)
    return output

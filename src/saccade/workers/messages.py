"""Messages between a worker and its parent: one line of JSON, then the raw bytes of arrays.

Reading a message executes nothing, unlike unpickling.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Message:
    """JSON values and 1-D arrays."""

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def write_message(stream: IO[bytes], message: Message) -> None:
    """Write one message and flush the stream."""
    sizes = {name: [array.dtype.str, len(array)] for name, array in message.arrays.items()}
    stream.write(json.dumps({"values": message.values, "arrays": sizes}).encode("ascii") + b"\n")
    for array in message.arrays.values():
        stream.write(np.ascontiguousarray(array).data)
    stream.flush()


def read_message(stream: IO[bytes]) -> Message | None:
    """Read one message; None at the end of the stream, EOFError if the message is truncated."""
    line = stream.readline()
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise EOFError("the header is truncated")
    header = json.loads(line)
    arrays: dict[str, Array] = {}
    for name, (dtype, length) in header["arrays"].items():
        expected = np.dtype(dtype).itemsize * length
        data = stream.read(expected)
        if len(data) != expected:
            raise EOFError(f"the array '{name}' is truncated")
        arrays[name] = np.frombuffer(data, dtype=dtype)
    return Message(header["values"], arrays)

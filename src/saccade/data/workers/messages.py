"""Messages between our own processes: a line of JSON that counts, then the raw bytes of arrays.

Nothing in a message can run. A chunk of pairs travels as one text of all sources, one of all targets, and the lengths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from saccade.data.reading.pair_files import Pair
from saccade.data.reading.pair_stream import Chunk

Array = NDArray[Any]


@dataclass(frozen=True)
class Frame:
    """Plain data and flat arrays."""

    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


def write_frame(stream: IO[bytes], frame: Frame) -> None:
    """Send one message."""
    sizes = {name: [array.dtype.str, len(array)] for name, array in frame.arrays.items()}
    stream.write(json.dumps({"values": frame.values, "arrays": sizes}).encode("ascii") + b"\n")
    for array in frame.arrays.values():
        stream.write(np.ascontiguousarray(array).data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Frame | None:
    """Receive one message; None if there is none any more, EOFError if it is cut off."""
    line = stream.readline()
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise EOFError("the header is cut off")
    header = json.loads(line)
    arrays: dict[str, Array] = {}
    for name, (kind, length) in header["arrays"].items():
        expected = np.dtype(kind).itemsize * length
        data = stream.read(expected)
        if len(data) != expected:
            raise EOFError(f"the array '{name}' is cut off")
        arrays[name] = np.frombuffer(data, dtype=kind)
    return Frame(header["values"], arrays)


def chunk_frame(chunk: Chunk) -> Frame:
    """A chunk of pairs as a message."""
    arrays: dict[str, Array] = {}
    for side, texts in (("source", [pair.source for pair in chunk.pairs]), ("target", [p.target for p in chunk.pairs])):
        arrays[side] = np.frombuffer("".join(texts).encode("utf-8"), dtype=np.uint8)
        arrays[f"{side}_lengths"] = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    return Frame({"corpus": chunk.corpus, "first": chunk.first}, arrays)


def chunk_of_frame(frame: Frame) -> Chunk:
    """The inverse of `chunk_frame`."""
    sides = (split(frame.arrays[side], frame.arrays[f"{side}_lengths"].tolist()) for side in ("source", "target"))
    return Chunk(frame.values["corpus"], frame.values["first"], [Pair(*texts) for texts in zip(*sides, strict=True)])


def split(text: Array, lengths: Sequence[int]) -> list[str]:
    """The texts that were joined, given how many characters each has."""
    joined = text.tobytes().decode("utf-8")
    return [joined[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]

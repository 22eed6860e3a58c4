"""A read-only array in a file, memory-mapped; spans of it are also read with `pread`.

Batches are read with `pread`, not through the map: accessing the map may load a whole huge page, which counts as
resident memory and takes longer than reading a short sequence.
"""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from saccade.folder import damaged

Indices = NDArray[np.int64]


class MappedArray:
    """An array in an immutable file."""

    def __init__(self, path: Path, dtype: np.dtype[Any], size: int) -> None:
        """Map a file that must have `size` bytes."""
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            weakref.finalize(self, os.close, self._file)
            actual = os.fstat(self._file).st_size
            if actual != size:
                raise damaged(path, f"has {actual:,} bytes instead of {size:,}")
            # mmap does not accept an empty file.
            self._map = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) if size else None
        except OSError as error:
            raise damaged(path, f"cannot be read: {error.strerror or error}") from None
        self.array: NDArray[Any] = np.frombuffer(self._map or b"", dtype=dtype)

    def read(self, starts: Indices, ends: Indices) -> NDArray[Any]:
        """The concatenated elements of the spans [starts[i], ends[i])."""
        if not hasattr(os, "pread"):  # Windows
            return concatenate_spans(self.array, starts, ends)
        width = self.array.itemsize
        spans = zip((width * starts).tolist(), (width * (ends - starts)).tolist(), strict=True)
        data = b"".join([os.pread(self._file, length, start) for start, length in spans])
        return np.frombuffer(data, dtype=self.array.dtype)

    def release(self) -> None:
        """Release the resident pages of the map; later accesses load them again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)


def concatenate_spans(array: NDArray[Any], starts: Indices, ends: Indices) -> NDArray[Any]:
    """The concatenated elements of the spans [starts[i], ends[i]) of an array in memory."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return array[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]

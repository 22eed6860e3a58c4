"""An array in a file of any size: mapped into memory to look at, read span by span to work with.

Batches are read, not touched through the map: a touched byte may bring in the huge page around it, which counts as
memory of the process and takes longer to map than a short text takes to read.
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
    """The array in a file that nobody changes any more."""

    def __init__(self, path: Path, kind: np.dtype[Any], size: int) -> None:
        """Map a file that must have `size` bytes."""
        try:
            self._file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            weakref.finalize(self, os.close, self._file)
            found = os.fstat(self._file).st_size
            if found != size:
                raise damaged(path, f"has {found:,} bytes instead of {size:,}")
            # Nothing cannot be mapped.
            self._map = mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) if size else None
        except OSError as error:
            raise damaged(path, f"cannot be read: {error.strerror or error}") from None
        self.array: NDArray[Any] = np.frombuffer(self._map or b"", dtype=kind)

    def read(self, starts: Indices, ends: Indices) -> NDArray[Any]:
        """The elements of some spans, laid end to end."""
        if not hasattr(os, "pread"):  # Windows
            return spans_of(self.array, starts, ends)
        width = self.array.itemsize
        spans = zip((width * starts).tolist(), (width * (ends - starts)).tolist(), strict=True)
        data = b"".join([os.pread(self._file, length, start) for start, length in spans])
        return np.frombuffer(data, dtype=self.array.dtype)

    def release(self) -> None:
        """Tell the kernel that no mapped page is needed now; one that is touched later comes back by itself."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            self._map.madvise(mmap.MADV_DONTNEED)


def spans_of(array: NDArray[Any], starts: Indices, ends: Indices) -> NDArray[Any]:
    """The elements of some spans of an array in memory, laid end to end."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return array[np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))]

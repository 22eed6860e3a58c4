"""Counting duplicate pairs and ambiguous sources in a corpus of any size, by 64-bit keys.

The keys of a large corpus are partitioned into temporary files by their top bits: equal keys are in one file, and each
file is small enough to be sorted in memory.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

PARTITIONS = 256  # temporary files
MAX_BUFFERED = 1 << 17  # pairs buffered in memory before they are written to the files
MAX_EXAMPLES = 5

Keys = NDArray[np.uint64]


class Repeat(NamedTuple):
    """A pair that repeats an earlier pair or its source, and the earlier pair."""

    corpus: int
    number: int
    first_corpus: int
    first_number: int


RECORD = np.dtype([("source", "<u8"), ("pair", "<u8"), ("corpus", "<i4"), ("number", "<i8")])
Records = NDArray[Any]  # of RECORD


class DuplicateCounter:
    """Counts duplicate pairs and pairs whose source has several targets; exact up to hash collisions."""

    def __init__(self) -> None:
        self.duplicates = 0
        self.ambiguous = 0
        self.duplicate_examples: list[Repeat] = []
        self.ambiguous_examples: list[Repeat] = []
        self._buffer: list[Records] = []
        self._buffered = 0
        self._folder: Path | None = None

    def add(self, corpus: int, numbers: NDArray[np.int64], source_keys: Keys, pair_keys: Keys) -> None:
        """Add pairs of a corpus, given by their numbers and keys."""
        records = np.empty(len(numbers), RECORD)
        records["source"], records["pair"] = source_keys, pair_keys
        records["corpus"], records["number"] = corpus, numbers
        self._buffer.append(records)
        self._buffered += len(records)
        if self._buffered >= MAX_BUFFERED:
            self._spill()

    def count(self) -> None:
        """Count all added pairs; call it once, at the end."""
        if self._folder is None:
            self._count(self._take_buffer())
            return
        self._spill()
        for path in sorted(self._folder.iterdir()):
            self._count(np.fromfile(path, RECORD))
            path.unlink()
        self._folder.rmdir()

    def _take_buffer(self) -> Records:
        records = np.concatenate([np.empty(0, RECORD), *self._buffer])
        self._buffer, self._buffered = [], 0
        return records

    def _spill(self) -> None:
        """Write the buffer to the partition files by the top bits of the source keys, which equal pairs share."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="saccade-keys-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        records = self._take_buffer()
        parts = (records["source"] >> np.uint64(56)).astype(np.int64)  # 0 to PARTITIONS - 1
        order = np.argsort(parts, kind="stable")
        bounds = np.searchsorted(parts[order], np.arange(PARTITIONS + 1))
        for part, (start, end) in enumerate(pairwise(bounds.tolist())):
            if start < end:
                with open(self._folder / f"{part:03d}", "ab") as file:
                    records[order[start:end]].tofile(file)

    def _count(self, records: Records) -> None:
        order = np.argsort(records["source"], kind="stable")
        sources = records["source"][order]
        equal_to_next = sources[1:] == sources[:-1]
        shared = np.zeros(len(records), dtype=bool)  # most sources are unique and are not sorted again
        shared[1:] |= equal_to_next
        shared[:-1] |= equal_to_next
        records = records[order[shared]]
        if not len(records):
            return
        by_position = (records["number"], records["corpus"])
        # The pairs of each source in corpus order: compare each target with that of the first pair.
        ordered = records[np.lexsort((*by_position, records["source"]))]
        starts = run_starts(ordered["source"])
        firsts = np.flatnonzero(starts)[np.cumsum(starts) - 1]
        other = ordered["pair"] != ordered["pair"][firsts]
        group = np.cumsum(starts) - 1
        self.ambiguous += int(np.count_nonzero(np.bincount(group, weights=other)[group]))
        self.ambiguous_examples = earliest(self.ambiguous_examples, ordered, other, firsts)
        # The occurrences of each pair in corpus order: all but the first are duplicates.
        ordered = records[np.lexsort((*by_position, records["pair"]))]
        starts = run_starts(ordered["pair"])
        firsts = np.flatnonzero(starts)[np.cumsum(starts) - 1]
        self.duplicates += int(np.count_nonzero(~starts))
        self.duplicate_examples = earliest(self.duplicate_examples, ordered, ~starts, firsts)


def run_starts(keys: Keys) -> NDArray[np.bool_]:
    """Return a mask: True = the first key of a run of equal keys."""
    return np.concatenate([[True], keys[1:] != keys[:-1]])


def earliest(
    examples: list[Repeat], records: Records, chosen: NDArray[np.bool_], firsts: NDArray[np.int64]
) -> list[Repeat]:
    """Return the first MAX_EXAMPLES repeats of `examples` and of the records where `chosen` is True.

    `firsts` are the indices of the records that they repeat.
    """
    (indices,) = np.nonzero(chosen)
    order = np.lexsort((records["number"][indices], records["corpus"][indices]))[:MAX_EXAMPLES]
    repeats = list(examples)
    for index in indices[order].tolist():
        repeat, first = records[index], records[firsts[index]]
        repeats.append(Repeat(int(repeat["corpus"]), int(repeat["number"]), int(first["corpus"]), int(first["number"])))
    return sorted(repeats)[:MAX_EXAMPLES]

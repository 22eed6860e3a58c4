"""Pairs and sources that come again in a corpus of any size, by 64-bit keys.

The keys of a large corpus are written to temporary files by their top bits: equal ones meet in one file, and each file
is small enough to be sorted in memory.
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
BUFFERED = 1 << 17  # pairs held in memory before they go to the files
EXAMPLES = 5

Keys = NDArray[np.uint64]


class Again(NamedTuple):
    """A pair that comes again, and the earlier one."""

    corpus: int
    number: int
    first_corpus: int
    first_number: int


RECORD = np.dtype([("source", "<u8"), ("pair", "<u8"), ("corpus", "<i4"), ("number", "<i8")])
Records = NDArray[Any]  # of RECORD


class Repetitions:
    """How often pairs and sources come again; exact up to a collision of keys."""

    def __init__(self) -> None:
        self.duplicates = 0
        self.ambiguous = 0
        self.duplicate_examples: list[Again] = []
        self.ambiguous_examples: list[Again] = []
        self._buffer: list[Records] = []
        self._buffered = 0
        self._folder: Path | None = None

    def add(self, corpus: int, numbers: NDArray[np.int64], source_keys: Keys, pair_keys: Keys) -> None:
        """Remember some pairs of a corpus by their numbers in it."""
        records = np.empty(len(numbers), RECORD)
        records["source"], records["pair"] = source_keys, pair_keys
        records["corpus"], records["number"] = corpus, numbers
        self._buffer.append(records)
        self._buffered += len(records)
        if self._buffered >= BUFFERED:
            self._spill()

    def count(self) -> None:
        """Count all that was added; nothing can be added afterwards."""
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
        """Append what is buffered to the files of its top bits; equal sources go to one file, so equal pairs do too."""
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
        again = sources[1:] == sources[:-1]
        shared = np.zeros(len(records), dtype=bool)  # most sources stand alone, and need no further sorting
        shared[1:] |= again
        shared[:-1] |= again
        records = records[order[shared]]
        if not len(records):
            return
        by_place = (records["number"], records["corpus"])
        # Each source's pairs as they come: the first one, and those with its source but another target.
        ordered = records[np.lexsort((*by_place, records["source"]))]
        starts = beginnings(ordered["source"])
        firsts = np.flatnonzero(starts)[np.cumsum(starts) - 1]
        other = ordered["pair"] != ordered["pair"][firsts]
        group = np.cumsum(starts) - 1
        self.ambiguous += int(np.count_nonzero(np.bincount(group, weights=other)[group]))
        self.ambiguous_examples = earliest(self.ambiguous_examples, ordered, other, firsts)
        # Each pair's occurrences as they come: all but the first are duplicates.
        ordered = records[np.lexsort((*by_place, records["pair"]))]
        starts = beginnings(ordered["pair"])
        firsts = np.flatnonzero(starts)[np.cumsum(starts) - 1]
        self.duplicates += int(np.count_nonzero(~starts))
        self.duplicate_examples = earliest(self.duplicate_examples, ordered, ~starts, firsts)


def beginnings(keys: Keys) -> NDArray[np.bool_]:
    """Where a run of equal keys begins."""
    return np.concatenate([[True], keys[1:] != keys[:-1]])


def earliest(
    examples: list[Again], records: Records, chosen: NDArray[np.bool_], firsts: NDArray[np.int64]
) -> list[Again]:
    """The first few of the examples so far and of the chosen records, each with the record that came before it."""
    (places,) = np.nonzero(chosen)
    order = np.lexsort((records["number"][places], records["corpus"][places]))[:EXAMPLES]
    found = list(examples)
    for place in places[order].tolist():
        one, first = records[place], records[firsts[place]]
        found.append(Again(int(one["corpus"]), int(one["number"]), int(first["corpus"]), int(first["number"])))
    return sorted(found)[:EXAMPLES]

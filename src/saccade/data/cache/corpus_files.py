"""A tokenized corpus on disk: flat arrays, written chunk by chunk and memory-mapped for reading.

source.ids, target.ids            the concatenated ids
source.offsets, target.offsets    the start offset of each sequence, and the end of the last one
store.json                        dtypes and sizes of the arrays, pairs per corpus, statistics, counts of dropped pairs
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from saccade.data.cache.corpus import Corpus
from saccade.data.cache.corpus_statistics import CorpusStatistics, StatisticsCounter
from saccade.data.cache.length_filters import DroppedPairs
from saccade.data.cache.mapped_array import MappedArray
from saccade.folder import damaged, read_json, write_json

FORMAT = 2
META = "store.json"
ARRAYS = ("source.ids", "source.offsets", "target.ids", "target.offsets")
OFFSETS = np.dtype("<i8")


def id_dtype(vocabulary: int) -> np.dtype[Any]:
    """Return the dtype for the ids of a vocabulary of this size: uint16 if they fit, else int32."""
    return np.dtype("<u2") if vocabulary <= 2**16 else np.dtype("<i4")


class CorpusWriter:
    """Writes a corpus to a folder; use it as a context manager and call `finish` at the end."""

    def __init__(self, folder: Path, *, source_vocabulary: int, target_vocabulary: int) -> None:
        self.folder = folder
        self._files = contextlib.ExitStack()
        self._source = SideWriter(self._open(0), self._open(1), id_dtype(source_vocabulary))
        self._target = SideWriter(self._open(2), self._open(3), id_dtype(target_vocabulary))
        self._statistics = StatisticsCounter()

    def append(
        self,
        source_ids: NDArray[Any],
        source_lengths: NDArray[np.int64],
        target_ids: NDArray[Any],
        target_lengths: NDArray[np.int64],
        *,
        unknown_source: int = 0,
        unknown_target: int = 0,
    ) -> None:
        """Append pairs: the concatenated ids of each side, and the length of each sequence."""
        self._source.append(source_ids, source_lengths)
        self._target.append(target_ids, target_lengths)
        self._statistics.add(
            source_lengths, target_lengths, unknown_source=unknown_source, unknown_target=unknown_target
        )

    def finish(self, parts: tuple[int, ...], dropped: DroppedPairs) -> None:
        """Close the files and write store.json; `parts` are the numbers of pairs of each corpus."""
        self._files.close()
        dtypes = (self._source.dtype, OFFSETS, self._target.dtype, OFFSETS)
        described = {
            name: {"type": dtype.str, "bytes": (self.folder / name).stat().st_size}
            for name, dtype in zip(ARRAYS, dtypes, strict=True)
        }
        meta = {
            "format": FORMAT,
            "arrays": described,
            "parts": list(parts),
            "statistics": asdict(self._statistics.finish()),
            "dropped": asdict(dropped),
        }
        write_json(self.folder / META, meta)

    def __enter__(self) -> CorpusWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _open(self, number: int) -> IO[bytes]:
        return self._files.enter_context((self.folder / ARRAYS[number]).open("wb"))


class SideWriter:
    """Writes the ids and offsets of the source or target sequences."""

    def __init__(self, ids: IO[bytes], offsets: IO[bytes], dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._ids = ids
        self._offsets = offsets
        self._total = 0
        offsets.write(np.zeros(1, OFFSETS).tobytes())

    def append(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append packed sequences."""
        self._ids.write(ids.astype(self.dtype, copy=False).tobytes())
        self._offsets.write((self._total + np.cumsum(lengths)).astype(OFFSETS, copy=False).tobytes())
        self._total += len(ids)


def open_corpus(folder: Path) -> Corpus:
    """Memory-map the corpus in a folder."""
    meta = read_json(folder / META)
    if meta.get("format") != FORMAT:
        raise damaged(folder / META, f"has format {meta.get('format')}, this version reads {FORMAT}")
    maps: dict[str, MappedArray] = {}
    try:
        for name in ARRAYS:
            dtype, size = np.dtype(meta["arrays"][name]["type"]), meta["arrays"][name]["bytes"]
            maps[name] = MappedArray(folder / name, dtype, size)
        statistics, dropped = CorpusStatistics(**meta["statistics"]), DroppedPairs(**meta["dropped"])
        parts = tuple(meta["parts"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(folder / META, f"has invalid content ({error})") from None
    corpus = Corpus(
        source_ids=maps["source.ids"].array,
        source_offsets=maps["source.offsets"].array,
        target_ids=maps["target.ids"].array,
        target_offsets=maps["target.offsets"].array,
        parts=parts,
        statistics=statistics,
        dropped=dropped,
        maps=tuple(maps.values()),
    )
    if not len(corpus) == len(corpus.target_offsets) - 1 == sum(parts) == statistics.pairs:
        raise damaged(folder / META, "gives another number of pairs than the arrays have")
    if len(corpus.source_ids) != corpus.source_offsets[-1] or len(corpus.target_ids) != corpus.target_offsets[-1]:
        raise damaged(folder / META, "gives another number of tokens than the arrays have")
    corpus.release()
    return corpus

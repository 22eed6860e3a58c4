"""What a process does with a chunk of pairs: examine it, or encode it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from saccade.data.audit.examination import examine_chunk
from saccade.data.cache.corpus_files import id_type
from saccade.data.cache.encoding import encode_pairs
from saccade.data.reading.hold_out import Keys, held_out_mask, source_keys
from saccade.data.reading.pair_stream import Chunk
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers
from saccade.data.workers.messages import Frame


class Job(Protocol):
    """A job that can be described to another process."""

    def describe(self) -> Frame:
        """What makes the same job elsewhere: its name and its settings."""
        ...

    def do(self, chunk: Chunk) -> Frame:
        """The answer for one chunk; it depends on the chunk alone."""
        ...


class Examine:
    """Looks at the texts of a chunk; the answer has the findings and, for a hold-out, the keys of the sources."""

    def __init__(self, *, keys: bool) -> None:
        self.keys = keys

    def describe(self) -> Frame:
        """The job as a message."""
        return Frame({"job": "examine", "keys": self.keys})

    def do(self, chunk: Chunk) -> Frame:
        """`findings` as bytes, and `keys`."""
        findings = np.frombuffer(examine_chunk(chunk.pairs, chunk.first).to_bytes(), dtype=np.uint8)
        keys = source_keys(chunk.pairs) if self.keys else np.empty(0, dtype=np.uint64)
        return Frame({}, {"findings": findings, "keys": keys})


class Encode:
    """Tokenises and filters a chunk, without the pairs that are held out."""

    def __init__(self, tokenizers: Path, *, max_length: int, max_ratio: float, held: Keys) -> None:
        self.folder = tokenizers
        self.max_length = max_length
        self.max_ratio = max_ratio
        self.held = held

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers, loaded when they are first needed."""
        return load_tokenizers(self.folder)

    def describe(self) -> Frame:
        """The job as a message."""
        values = {"tokenizers": str(self.folder), "max_length": self.max_length, "max_ratio": self.max_ratio}
        return Frame({"job": "encode", **values}, {"held": self.held})

    def do(self, chunk: Chunk) -> Frame:
        """The ids and lengths of both sides, what was dropped, and which pairs are `held`."""
        held = held_out_mask(chunk.pairs, self.held)
        taught = [chunk.pairs[place] for place in np.flatnonzero(~held)]
        encoded = encode_pairs(taught, self.tokenizers, max_length=self.max_length, max_ratio=self.max_ratio)
        source, target = self.tokenizers
        values = {
            "dropped": asdict(encoded.dropped),
            "unknown_source": int((encoded.source_ids == source.symbols.unknown).sum()),
            "unknown_target": int((encoded.target_ids == target.symbols.unknown).sum()),
        }
        arrays = {
            "source_ids": encoded.source_ids.astype(id_type(source.size)),
            "source_lengths": encoded.source_lengths,
            "target_ids": encoded.target_ids.astype(id_type(target.size)),
            "target_lengths": encoded.target_lengths,
            "held": held.astype(np.uint8),
        }
        return Frame(values, arrays)


def examine_of(frame: Frame) -> Examine:
    """The inverse of `Examine.describe`."""
    return Examine(keys=frame.values["keys"])


def encode_of(frame: Frame) -> Encode:
    """The inverse of `Encode.describe`."""
    values = frame.values
    return Encode(
        Path(values["tokenizers"]),
        max_length=values["max_length"],
        max_ratio=values["max_ratio"],
        held=frame.arrays["held"],
    )


JOBS: dict[str, Callable[[Frame], Job]] = {"examine": examine_of, "encode": encode_of}

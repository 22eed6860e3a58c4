"""Jobs over chunks of pairs, in this process or in several: examine their texts, or tokenize them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from saccade.data.audit.examination import examine_chunk
from saccade.data.cache.corpus_files import id_dtype
from saccade.data.cache.encoding import encode_pairs
from saccade.data.reading.hold_out import Keys, held_out_mask, source_keys
from saccade.data.reading.pair_files import Pair
from saccade.data.reading.pair_stream import Chunk
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers
from saccade.errors import SaccadeError
from saccade.workers.messages import Array, Message
from saccade.workers.pool import request_in_order
from saccade.workers.replies import Handler, WorkerDiedError, describe_exit

MIN_CHUNKS = 3  # fewer are processed faster than workers start
MAX_WORKERS = 16  # the default is at most this: the parent cannot read files fast enough for more


class Job(Protocol):
    """A job over chunks that can be sent to a worker."""

    def describe(self) -> Message:
        """Return the name and the settings of the job."""
        ...

    def run(self, chunk: Chunk) -> Message:
        """Return the result for one chunk, which depends on that chunk alone."""
        ...


class ChunkResult(NamedTuple):
    """A chunk and the result of a job for it."""

    chunk: Chunk
    result: Message


class ExamineJob:
    """Examines the texts of a chunk; also returns the keys of its sources, for a hold-out."""

    def __init__(self, *, keys: bool) -> None:
        self.keys = keys

    def describe(self) -> Message:
        """Return the job as a message."""
        return Message({"job": "examine", "keys": self.keys})

    def run(self, chunk: Chunk) -> Message:
        """Return serialized `findings`, and `keys`."""
        findings = np.frombuffer(examine_chunk(chunk.pairs, chunk.first).to_bytes(), dtype=np.uint8)
        keys = source_keys(chunk.pairs) if self.keys else np.empty(0, dtype=np.uint64)
        return Message({}, {"findings": findings, "keys": keys})


class EncodeJob:
    """Tokenizes and filters the pairs of a chunk that are not held out."""

    def __init__(self, tokenizers: Path, *, max_length: int, max_ratio: float, held_out: Keys) -> None:
        self.folder = tokenizers
        self.max_length = max_length
        self.max_ratio = max_ratio
        self.held_out = held_out

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers, loaded on first use."""
        return load_tokenizers(self.folder)

    def describe(self) -> Message:
        """Return the job as a message."""
        values = {"tokenizers": str(self.folder), "max_length": self.max_length, "max_ratio": self.max_ratio}
        return Message({"job": "encode", **values}, {"held_out": self.held_out})

    def run(self, chunk: Chunk) -> Message:
        """Return token ids and lengths of both sides, the counts of dropped pairs, and a mask of the held-out pairs."""
        held_out = held_out_mask(chunk.pairs, self.held_out)
        kept = [chunk.pairs[index] for index in np.flatnonzero(~held_out)]
        encoded = encode_pairs(kept, self.tokenizers, max_length=self.max_length, max_ratio=self.max_ratio)
        source, target = self.tokenizers
        values = {
            "dropped": asdict(encoded.dropped),
            "unknown_source": int((encoded.source_ids == source.symbols.unknown).sum()),
            "unknown_target": int((encoded.target_ids == target.symbols.unknown).sum()),
        }
        arrays = {
            "source_ids": encoded.source_ids.astype(id_dtype(source.size)),
            "source_lengths": encoded.source_lengths,
            "target_ids": encoded.target_ids.astype(id_dtype(target.size)),
            "target_lengths": encoded.target_lengths,
            "held_out": held_out.astype(np.uint8),
        }
        return Message(values, arrays)


def read_examine_job(description: Message) -> ExamineJob:
    """Return the job that `ExamineJob.describe` describes."""
    return ExamineJob(keys=description.values["keys"])


def read_encode_job(description: Message) -> EncodeJob:
    """Return the job that `EncodeJob.describe` describes."""
    values = description.values
    return EncodeJob(
        Path(values["tokenizers"]),
        max_length=values["max_length"],
        max_ratio=values["max_ratio"],
        held_out=description.arrays["held_out"],
    )


JOBS: dict[str, Callable[[Message], Job]] = {"examine": read_examine_job, "encode": read_encode_job}


def make_handler(setup: Message) -> Handler:
    """Return the handler of a worker: it runs the described job on chunks."""
    job = JOBS[setup.values["job"]](setup)
    return lambda request: job.run(read_chunk(request))


def chunk_message(chunk: Chunk) -> Message:
    """Serialize a chunk: all sources joined, all targets joined, and the length of each text in characters."""
    arrays: dict[str, Array] = {}
    for side, texts in (("source", [pair.source for pair in chunk.pairs]), ("target", [p.target for p in chunk.pairs])):
        arrays[side] = np.frombuffer("".join(texts).encode("utf-8"), dtype=np.uint8)
        arrays[f"{side}_lengths"] = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    return Message({"corpus": chunk.corpus, "first": chunk.first}, arrays)


def read_chunk(message: Message) -> Chunk:
    """Return the chunk that `chunk_message` serialized."""
    sides = (
        split_texts(message.arrays[side], message.arrays[f"{side}_lengths"].tolist()) for side in ("source", "target")
    )
    return Chunk(
        message.values["corpus"], message.values["first"], [Pair(*texts) for texts in zip(*sides, strict=True)]
    )


def split_texts(text: Array, lengths: Sequence[int]) -> list[str]:
    """Split joined UTF-8 texts by their lengths in characters."""
    joined = text.tobytes().decode("utf-8")
    return [joined[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]


def default_workers() -> int:
    """Return the default number of workers: one per core that this process may use, at most MAX_WORKERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MAX_WORKERS)


def map_chunks(chunks: Iterable[Chunk], job: Job, workers: int | None = None) -> Generator[ChunkResult]:
    """Yield every chunk with its result, in order; close the generator to stop early.

    Few chunks, or one worker, run in this process. The results do not depend on the number of workers.
    """
    workers = workers or default_workers()
    remaining = iter(chunks)
    first = list(islice(remaining, MIN_CHUNKS))
    all_chunks = chain(first, remaining)
    if workers == 1 or len(first) < MIN_CHUNKS or not sys.executable:
        for chunk in all_chunks:
            yield ChunkResult(chunk, job.run(chunk))
        return
    environment = {"TOKENIZERS_PARALLELISM": "false"}
    try:
        with closing(
            request_in_order(
                all_chunks, chunk_message, __name__, job.describe(), workers=workers, environment=environment
            )
        ) as results:
            for chunk, result in results:
                yield ChunkResult(chunk, result)
    except WorkerDiedError as error:
        raise SaccadeError(
            f"a process that tokenizes {describe_exit(error.status)}",
            hint="if memory ran out, use fewer processes: --data.workers 1",
        ) from None

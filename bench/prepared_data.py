"""Prepared data for all systems: the same sentences with the same tokens and ids, in a folder of text files.

train.source train.target valid.* test.*   raw text, one sentence per line
pieces.model pieces.txt                    joint SentencePiece model; unknown, pad, begin, end are 0 to 3
train.source.ids train.target.ids          token ids, including the end-of-sequence token
plan.json                                  batches of one epoch as Saccade makes them: indices of training pairs
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.environments import environment
from bench.paths import CACHE, data_folder, multi30k
from bench.peers.job import write_lines
from bench.processes import run_job
from bench.sizes import BATCH_TOKENS, SIZES, Size

GENERATED_PAIRS = 30_000
TEXTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
TOKENIZED = "{}.lc.norm.tok.{}"  # file names in the folder tok of Multi30k


class DataError(Exception):
    """The data could not be prepared; the message says why."""


@dataclass(frozen=True)
class PreparedData:
    """A folder of prepared data."""

    folder: Path
    data: str  # description for the report
    real: bool  # whether it is Multi30k rather than generated text


def prepare(size_name: str) -> PreparedData:
    """Prepare the data for one size, once: Multi30k, or generated text without it."""
    size, real = SIZES[size_name], multi30k()
    folder = CACHE / "work" / f"{size_name}-{'multi30k' if real else 'generated'}"
    data = "Multi30k" if real else "generated text (no Multi30k under $SACCADE_DATA)"
    made_of, ready = json.dumps([asdict(size), *origins(real)]), folder / "ready"
    if not ready.is_file() or ready.read_text(encoding="utf-8") != made_of:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if real:
            copy_corpus(real, folder, "{}.{}")
        else:
            generate_texts(folder)
        tokenize_corpus(size, folder, vocabulary_texts(size, folder, real))
        ready.write_text(made_of, encoding="utf-8")
    plan = plan_batches(folder)  # not cached: made by the current Saccade
    (folder / "plan.json").write_text(json.dumps(plan), encoding="ascii")
    return PreparedData(folder, data, real is not None)


def origins(real: Path | None) -> list[tuple[str, int, int]]:
    """Names, sizes and modification times of the original files."""
    names = [f"{name}.{side}" for name in TEXTS.values() for side in ("en", "de")]
    files = [real / name for name in names] if real else []
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def copy_corpus(origin: Path, folder: Path, pattern: str) -> None:
    """Copy English and German captions under the names that all jobs use."""
    for name, theirs in TEXTS.items():
        shutil.copyfile(origin / pattern.format(theirs, "en"), folder / f"{name}.source")
        shutil.copyfile(origin / pattern.format(theirs, "de"), folder / f"{name}.target")


def generate_texts(folder: Path) -> None:
    """Write generated text with natural lengths and word frequencies."""
    from bench.large_corpus import sentences

    chunks = list(sentences(GENERATED_PAIRS))
    for side, index in (("source", 0), ("target", 1)):
        lines = [line for chunk in chunks for line in chunk[index].splitlines()]
        write_lines(folder / f"train.{side}", lines)
        write_lines(folder / f"valid.{side}", lines[:1000])
        write_lines(folder / f"test.{side}", lines[1000:2000])


def vocabulary_texts(size: Size, folder: Path, real: Path | None) -> list[str]:
    """Text for training the SentencePiece model; a large vocabulary needs more than the training data."""
    texts = [str(folder / "train.source"), str(folder / "train.target")]
    more = data_folder() / "tatoeba-en-de" / "train.tsv"
    if real and size.pieces > 10_000 and more.is_file():
        for side, column in (("source", 0), ("target", 1)):
            write_lines(folder / f"more.{side}", list(column_of(more, column)))
            texts.append(str(folder / f"more.{side}"))
    return texts


def column_of(file: Path, column: int) -> Iterator[str]:
    """One column of a TSV file, from the lines with at least two columns."""
    for line in file.read_text(encoding="utf-8").split("\n"):
        cells = line.split("\t")
        if len(cells) >= 2:
            yield cells[column]


def tokenize_corpus(size: Size, folder: Path, texts: list[str]) -> None:
    """Train the SentencePiece model and write token ids."""
    peer = environment("pieces")
    if not peer.ready:
        raise DataError(f"tokenization failed: sentencepiece {peer.reason}")
    job = {
        "name": f"pieces-{size.pieces}",
        "folder": str(folder),
        "texts": texts,
        "pieces": size.pieces,
        "texts_to_tokenize": [str(folder / f"train.{side}") for side in ("source", "target")],
    }
    outcome = run_job("pieces", job)
    if outcome.result is None:
        raise DataError(f"tokenization failed: {outcome.reason}")


def plan_batches(folder: Path) -> list[list[int]]:
    """The batches of one epoch as Saccade makes them."""
    outcome = run_job("saccade", {"name": "plan", "task": "plan", "work": str(folder), "batch_tokens": BATCH_TOKENS})
    if outcome.result is None:
        raise DataError(f"batches cannot be planned: {outcome.reason}")
    return list(outcome.result["plan"])


def make_job(size_name: str, work: PreparedData, **changes: object) -> dict[str, object]:
    """A job with its model size and data."""
    return {"size": asdict(SIZES[size_name]), "work": str(work.folder), "batch_tokens": BATCH_TOKENS, **changes}

"""The same work for all: the same sentences, cut into the same pieces with the same ids, in a folder of plain files.

train.source train.target valid.* test.*   raw text, one sentence a line
pieces.model pieces.txt                    SentencePiece pieces of both sides; unknown, pad, begin, end are 0 to 3
train.source.ids train.target.ids          the pieces as numbers, the end included
plan.json                                  the batches of an epoch as Saccade makes them, rows of the training data
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.environments import environment
from bench.peers.job import write_lines
from bench.places import CACHE, data_folder, multi30k
from bench.processes import run_job
from bench.sizes import BATCH_TOKENS, SIZES, Size

GENERATED_PAIRS = 30_000
TEXTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
TOKENISED = "{}.lc.norm.tok.{}"  # the published form of Multi30k, in its folder tok


class NoWorkError(Exception):
    """The data could not be prepared, and why."""


@dataclass(frozen=True)
class Work:
    """A folder of prepared data."""

    folder: Path
    data: str  # what it is, for the report
    real: bool  # whether a model can learn anything from it


def prepare(size_name: str) -> Work:
    """The data for one size, made once; Multi30k, or generated text where that is absent."""
    size, real = SIZES[size_name], multi30k()
    folder = CACHE / "work" / f"{size_name}-{'multi30k' if real else 'generated'}"
    data = "Multi30k" if real else "generated text (no Multi30k under $SACCADE_DATA)"
    made_of, ready = json.dumps([asdict(size), *origins(real)]), folder / "ready"
    if not ready.is_file() or ready.read_text(encoding="utf-8") != made_of:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if real:
            copy_texts(real, folder, "{}.{}")
        else:
            generate_texts(folder)
        cut_into_pieces(size, folder, vocabulary_texts(size, folder, real))
        ready.write_text(made_of, encoding="utf-8")
    (folder / "plan.json").write_text(json.dumps(plan_of(folder)), encoding="ascii")  # by the Saccade of today
    return Work(folder, data, real is not None)


def origins(real: Path | None) -> list[tuple[str, int, int]]:
    """The files that the data is made from, with their sizes and times."""
    names = [f"{name}.{side}" for name in TEXTS.values() for side in ("en", "de")]
    files = [real / name for name in names] if real else []
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def copy_texts(origin: Path, folder: Path, pattern: str) -> None:
    """English and German captions under the names that all jobs use."""
    for name, theirs in TEXTS.items():
        shutil.copyfile(origin / pattern.format(theirs, "en"), folder / f"{name}.source")
        shutil.copyfile(origin / pattern.format(theirs, "de"), folder / f"{name}.target")


def generate_texts(folder: Path) -> None:
    """Invented words with the lengths and frequencies of a language."""
    from bench.corpus import sentences

    chunks = list(sentences(GENERATED_PAIRS))
    for side, index in (("source", 0), ("target", 1)):
        lines = [line for chunk in chunks for line in chunk[index].splitlines()]
        write_lines(folder / f"train.{side}", lines)
        write_lines(folder / f"valid.{side}", lines[:1000])
        write_lines(folder / f"test.{side}", lines[1000:2000])


def vocabulary_texts(size: Size, folder: Path, real: Path | None) -> list[str]:
    """What the pieces are learnt from: the training data; for a large vocabulary more text, or it would not be full."""
    texts = [str(folder / "train.source"), str(folder / "train.target")]
    more = data_folder() / "tatoeba-en-de" / "train.tsv"
    if real and size.pieces > 10_000 and more.is_file():
        for side, column in (("source", 0), ("target", 1)):
            write_lines(folder / f"more.{side}", list(column_of(more, column)))
            texts.append(str(folder / f"more.{side}"))
    return texts


def column_of(file: Path, column: int) -> Iterator[str]:
    """One column of the lines of a TSV file that have both."""
    for line in file.read_text(encoding="utf-8").split("\n"):
        cells = line.split("\t")
        if len(cells) >= 2:
            yield cells[column]


def cut_into_pieces(size: Size, folder: Path, texts: list[str]) -> None:
    """Learn the pieces and write the ids."""
    found = environment("pieces")
    if not found.ready:
        raise NoWorkError(f"no pieces: sentencepiece {found.reason}")
    cut = [str(folder / f"train.{side}") for side in ("source", "target")]
    job = {"name": f"pieces-{size.pieces}", "folder": str(folder), "texts": texts, "pieces": size.pieces, "cut": cut}
    outcome = run_job("pieces", job)
    if outcome.result is None:
        raise NoWorkError(f"no pieces: {outcome.reason}")


def plan_of(folder: Path) -> list[list[int]]:
    """The batches that Saccade would make."""
    outcome = run_job("saccade", {"name": "plan", "task": "plan", "work": str(folder), "batch_tokens": BATCH_TOKENS})
    if outcome.result is None:
        raise NoWorkError(f"no plan of batches: {outcome.reason}")
    return list(outcome.result["plan"])


def job_for(size_name: str, work: Work, **changes: object) -> dict[str, object]:
    """What every job says of its size and its data."""
    return {"size": asdict(SIZES[size_name]), "work": str(work.folder), "batch_tokens": BATCH_TOKENS, **changes}

"""Cost of a large corpus: memory, speed and start-up time of training with 50 times more sentence pairs.

    make bench-corpus

Generates two corpora of Zipf-distributed words that differ only in size. For each, `saccade train` first fills the
token cache; then it trains from the cache for a fixed number of updates, small and large corpus alternating, so that
drift of the machine affects both. Peak memory is ru_maxrss of the process, which includes resident pages of mapped
files. Speed is the median of timing.csv. The first batch is ready when the log says that training begins. Exits with 1
if a threshold is missed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

CHUNK = 10_000
WORDS = 30_000
MAX_MEGABYTES, MAX_SLOWDOWN, MAX_SECONDS = 100, 0.05, 5.0  # thresholds


@dataclass(frozen=True)
class Measured:
    """Measurements of one run."""

    megabytes: float
    seconds: float
    first_batch: float  # seconds from the start of the command
    first_update: float  # seconds from the start of the command
    tokens_per_second: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs=2, default=(100_000, 5_000_000), metavar=("SMALL", "LARGE"))
    parser.add_argument("--steps", type=int, default=200, help="updates per measured run")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs per corpus")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--folder", type=Path, help="folder for corpora and cache; kept and reused")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="saccade-bench-"))
    try:
        measure(options, folder)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)


def measure(options: argparse.Namespace, folder: Path) -> None:
    small, large = options.pairs
    for pairs in (small, large):
        began = time.perf_counter()
        if generate(folder / f"{pairs}", pairs):
            print(f"generated {pairs:,} pairs in {time.perf_counter() - began:.0f} s", flush=True)
    built = {}
    for pairs in (small, large):
        shutil.rmtree(folder / f"{pairs}" / "cache", ignore_errors=True)
        built[pairs] = train(folder / f"{pairs}", options, steps=5)
        print(f"built {pairs:,}: {line(built[pairs])}", flush=True)
    cached: dict[int, list[Measured]] = {small: [], large: []}
    for number in range(options.rounds):
        for pairs in (small, large):
            cached[pairs].append(train(folder / f"{pairs}", options, steps=options.steps))
            print(f"round {number + 1}, {pairs:,}: {line(cached[pairs][-1])}", flush=True)
    if options.json:
        found = {
            str(pairs): {"built": asdict(built[pairs]), "cached": [asdict(one) for one in cached[pairs]]}
            for pairs in (small, large)
        }
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if not judge(small, large, built, {pairs: medians(runs) for pairs, runs in cached.items()}):
        raise SystemExit(1)


def generate(folder: Path, pairs: int) -> bool:
    """Write a deterministic corpus of `pairs` sentence pairs; false if it exists already."""
    if (folder / "done").exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "source").open("w") as sources, (folder / "target").open("w") as targets:
        for source, target in sentences(pairs):
            sources.write(source)
            targets.write(target)
    (folder / "done").touch()
    return True


def sentences(pairs: int) -> Iterator[tuple[str, str]]:
    """Chunks of source and target lines: Zipf-distributed words, and their translations in reverse order."""
    generator = np.random.default_rng(7)
    ours, theirs = random_words(generator), random_words(generator)
    frequencies = 1 / np.arange(10, WORDS + 10)
    heights = np.cumsum(frequencies / frequencies.sum())
    for start in range(0, pairs, CHUNK):
        count = min(CHUNK, pairs - start)
        lengths = np.clip(generator.gamma(6, 2, count).astype(np.int64), 3, 40)
        ends = np.cumsum(lengths).tolist()
        drawn = np.searchsorted(heights, generator.random(int(lengths.sum())) * heights[-1]).tolist()
        sources, targets = [ours[word] for word in drawn], [theirs[word] for word in drawn]
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        yield (
            "".join(" ".join(sources[begin:end]) + "\n" for begin, end in spans),
            "".join(" ".join(reversed(targets[begin:end])) + "\n" for begin, end in spans),
        )


def random_words(generator: np.random.Generator) -> list[str]:
    """Distinct words of one to four syllables; frequent words are short."""
    syllables = [first + vowel + last for first in "bdfgklmnprst" for vowel in "aeiou" for last in ("", "n", "r", "s")]
    words: dict[str, None] = {}
    while len(words) < WORDS:
        parts = 1 + len(words) // (WORDS // 4 + 1) + int(len(words) > 150)
        words["".join(syllables[number] for number in generator.integers(len(syllables), size=parts))] = None
    return list(words)


def train(folder: Path, options: argparse.Namespace, *, steps: int) -> Measured:
    """Run `saccade train` once; the run directory is removed afterwards."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [sys.executable, "-m", "saccade.cli.main", "train"]
    command += ["--source", str(folder / "source"), "--target", str(folder / "target"), "--output", str(run)]
    settings = {
        "data.cache": folder / "cache",
        "data.batch-tokens": options.batch_tokens,
        "training.max-steps": steps,
        "training.log-every": 1,
        "training.validate-every": steps,
        "training.checkpoint-every": steps,
    }
    for name, value in settings.items():
        command += [f"--{name}", str(value)]
    began, batch, update = time.perf_counter(), float("nan"), float("nan")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        messages = []
        for text in process.stderr:
            messages.append(text)
            if text.startswith("training begins"):  # the first batch is taken now
                batch = time.perf_counter() - began
            if text.startswith("step 1 "):
                update = time.perf_counter() - began
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit("".join(["saccade train failed:\n", *messages[-20:]]))
    seconds = time.perf_counter() - began
    with (run / "timing.csv").open(encoding="utf-8", newline="") as file:
        rates = [float(row["tokens_per_second"]) for row in csv.DictReader(file)]
    shutil.rmtree(run)
    steady = rates[len(rates) // 4 :]  # without the first updates, which warm up
    return Measured(usage.ru_maxrss / 1024, seconds, batch, update, statistics.median(steady))


def medians(runs: list[Measured]) -> Measured:
    values = zip(*(asdict(one).values() for one in runs), strict=True)
    return Measured(*map(statistics.median, values))


def line(one: Measured) -> str:
    return (
        f"{one.megabytes:,.0f} MB, first batch after {one.first_batch:.1f} s, first update {one.first_update:.1f} s, "
        f"{one.tokens_per_second:,.0f} tok/s, {one.seconds:.0f} s in total"
    )


def judge(small: int, large: int, built: dict[int, Measured], cached: dict[int, Measured]) -> bool:
    """Print the table and a verdict for each threshold; true if all are met."""
    rows = [
        ("peak memory while building, MB", built[small].megabytes, built[large].megabytes),
        ("peak memory from the cache, MB", cached[small].megabytes, cached[large].megabytes),
        ("target tokens per second", cached[small].tokens_per_second, cached[large].tokens_per_second),
        ("seconds to the first batch", cached[small].first_batch, cached[large].first_batch),
        ("seconds to the first update", cached[small].first_update, cached[large].first_update),
    ]
    print(f"\n{'':34}{small:>12,}{large:>12,}{'difference':>12}")
    for name, low, high in rows:
        print(f"{name:34}{low:>12,.1f}{high:>12,.1f}{high - low:>+12,.1f}")
    slower = 1 - rows[2][2] / rows[2][1]
    verdicts = [
        (f"memory while building grows by {rows[0][2] - rows[0][1]:+.0f} MB", rows[0][2] - rows[0][1] < MAX_MEGABYTES),
        (f"memory from the cache grows by {rows[1][2] - rows[1][1]:+.0f} MB", rows[1][2] - rows[1][1] < MAX_MEGABYTES),
        (f"speed changes by {-slower:+.1%}", abs(slower) < MAX_SLOWDOWN),
        (f"the first batch is ready after {rows[3][2]:.1f} s", rows[3][2] <= MAX_SECONDS),
    ]
    for text, met in verdicts:
        print(f"{'met' if met else 'MISSED':8}{text}")
    return all(met for _, met in verdicts)


if __name__ == "__main__":
    main()

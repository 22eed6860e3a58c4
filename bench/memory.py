"""Peak memory of `saccade train` with batches of 4,096 tokens, and of `saccade translate` on a large file.

    make bench-memory RUN=runs/x
    python -m bench.memory runs/x --lines 100000

Peak memory is VmHWM of the process. The file to translate repeats the test sentences of Multi30k. If no run is given, a
model is trained and kept under .bench/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.comparison import log_progress
from bench.models import SACCADE, NoModelError, saccade_model
from bench.paths import CACHE, ROOT
from bench.peers.job import read_lines
from bench.prepared_data import prepare


@dataclass(frozen=True)
class Peak:
    """Peak memory and time of a command."""

    megabytes: float
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path, help="a run or model folder to translate with")
    parser.add_argument("--lines", type=int, default=1_000_000, help="lines of the file to translate")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60, help="training updates")
    parser.add_argument("--minutes", type=float, default=5.0, help="training time of the model, if none is given")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    work = prepare("tiny")
    if not work.real:
        raise SystemExit("skipped: needs Multi30k under $SACCADE_DATA")
    found = {"training": training_peak(work.folder, options.steps)}
    print(f"saccade train, transformer-tiny, batches of 4,096 tokens: {line(found['training'])}", flush=True)
    try:
        model = saccade_model("tiny", work, minutes=options.minutes, given=options.run)
    except NoModelError as error:
        raise SystemExit(f"no model to translate with: {error}") from None
    for lines in sorted({min(10_000, options.lines), options.lines}):
        peak = translation_peak(model.folder, work.folder / "test.source", lines, options.beam)
        found[f"translating {lines}"] = peak
        print(f"saccade translate, {lines:,} lines, beam {options.beam}: {line(peak)}", flush=True)
    if options.json:
        values = {name: asdict(peak) for name, peak in found.items()}
        options.json.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def training_peak(work: Path, steps: int) -> Peak:
    """Peak memory of a training run, which is deleted afterwards."""
    run = CACHE / "scratch" / "memory-run"
    shutil.rmtree(run, ignore_errors=True)
    command = [*SACCADE, "train", "--preset", "transformer-tiny", "--output", str(run)]
    command += ["--source", str(work / "train.source"), "--target", str(work / "train.target")]
    command += ["--data.batch-tokens", "4096", "--training.max-steps", str(steps)]
    peak = peak_of(command)
    shutil.rmtree(run, ignore_errors=True)
    return peak


def translation_peak(model: Path, sentences: Path, lines: int, beam: int) -> Peak:
    """Peak memory of translating a file with `lines` lines."""
    source, output = CACHE / "scratch" / "memory-in.txt", CACHE / "scratch" / "memory-out.txt"
    source.parent.mkdir(parents=True, exist_ok=True)
    with source.open("w", encoding="utf-8") as file:
        for sentence in itertools.islice(itertools.cycle(read_lines(sentences)), lines):
            file.write(sentence + "\n")
    command = [*SACCADE, "translate", str(model), "--input", str(source), "--output", str(output), "--beam", str(beam)]
    peak = peak_of(command)
    with output.open(encoding="utf-8") as file:
        written = sum(1 for _ in file)
    if written != lines:
        raise SystemExit(f"{written:,} lines were written instead of {lines:,}")
    for path in (source, output):
        path.unlink()
    return peak


def peak_of(command: list[str]) -> Peak:
    """Run a command and poll its peak memory."""
    began = time.perf_counter()
    log = CACHE / "logs" / "memory.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)
        highest = 0.0
        while process.poll() is None:
            highest = max(highest, high_water_mark(process.pid))
            time.sleep(0.1)
    if process.returncode:
        log_progress(log.read_text(encoding="utf-8")[-2000:])
        raise SystemExit(f"{' '.join(command[1:4])} … fails")
    return Peak(highest, time.perf_counter() - began)


def high_water_mark(process: int) -> float:
    """VmHWM in megabytes; 0 if the process has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return 0.0
    marks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(marks[0]) / 1024 if marks else 0.0


def line(peak: Peak) -> str:
    """The result as text."""
    return f"{peak.megabytes:,.0f} MB peak, {peak.seconds:,.0f} s"


if __name__ == "__main__":
    if not Path("/proc/self/status").exists():
        sys.exit(f"skipped: {os.uname().sysname} has no /proc")
    main()

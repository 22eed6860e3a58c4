"""Decoding by two versions of Saccade, side by side: this one, and an earlier commit of it.

    SACCADE_DATA=data make bench-decode RUNS="runs/bahdanau runs/luong" ARGUMENTS="--before 6d36861 --beam 1"

The earlier one is checked out under .bench/ and runs from there as it is, on the torch engine, without kernels of its
own: those are compiled when a package is installed. Both take turns, each in a process of its own, on the same
sentences. Both must be able to read the runs: for --before 6d36861 train them with --decoding.batch-tokens 8192.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "6d36861"  # the last commit without kernels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run directories or model folders")
    data = Path(os.environ.get("SACCADE_DATA", "data"))
    parser.add_argument("--before", default=BEFORE, help="the commit to compare with")
    parser.add_argument("--source", type=Path, default=data / "multi30k" / "test_2016_flickr.en")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.source.is_file():
        parser.error(f"there is no {options.source}: set SACCADE_DATA, or give --source")
    if options.measure:
        print(json.dumps(decode(options.runs[0], options)))
        return
    earlier = checkout(options.before)
    found = {run: compare(run, earlier, options) for run in options.runs}
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def compare(run: str, earlier: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The speeds of both, and how many outputs differ."""
    before, now = [], []
    for _ in range(options.rounds):  # in turn, so that the machine's drift meets both
        before.append(in_process(run, earlier, options))
        now.append(in_process(run, ROOT, options))
    ratios = [then["seconds"] / here["seconds"] for then, here in zip(before, now, strict=True)]
    changed = sum(one != other for one, other in zip(before[0]["outputs"], now[0]["outputs"], strict=True))
    speeds = [statistics.median(len(way["outputs"]) / way["seconds"] for way in ways) for ways in (before, now)]
    ratio = statistics.median(ratios)
    print(
        f"{run}, beam {options.beam}: {speeds[0]:.0f} sentences a second before, {speeds[1]:.0f} now: {ratio:.2f}x "
        f"({min(ratios):.2f} to {max(ratios):.2f}); {changed} of {len(now[0]['outputs'])} outputs differ",
        flush=True,
    )
    return {"before": speeds[0], "now": speeds[1], "ratio": ratio, "changed": changed}


def checkout(commit: str) -> Path:
    """The files of a commit, in a folder of their own."""
    folder = ROOT / ".bench" / "versions" / commit
    if not (folder / "src").is_dir():
        packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True)
        if packed.returncode:
            raise SystemExit(f"git has no commit {commit}: {packed.stderr.decode(errors='replace').strip()}")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "--extract", "--directory", str(folder)], input=packed.stdout, check=True)
    return folder


def in_process(run: str, version: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One version in a fresh process."""
    settings = [f"--{name}={getattr(options, name)}" for name in ("source", "sentences", "beam")]
    command = [sys.executable, __file__, "--measure", run, *settings]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(version / "src")}, check=True
    )
    return dict(json.loads(done.stdout))


def decode(run: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and outputs of the version that is imported, the second time."""
    import saccade
    from saccade.allocator import keep_memory

    keep_memory()
    lines = options.source.read_text(encoding="utf-8").splitlines()[: options.sentences]
    engine = {"engine": "torch"} if "engine" in inspect.signature(saccade.load).parameters else {}
    translator = saccade.load(run, "cpu", **engine)
    settings = {"beam": options.beam}
    if hasattr(translator.decoding, "tokens_at_once"):  # each version with batches of its own choice
        settings["batch_tokens"] = 0
    translator.translate(lines, **settings)  # once in vain: memory is new, and threads begin
    began = time.perf_counter()
    outputs = translator.translate(lines, **settings)
    return {"seconds": time.perf_counter() - began, "outputs": outputs}


if __name__ == "__main__":
    main()

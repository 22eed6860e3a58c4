"""Kill runs at random moments with SIGKILL, resume them, and compare them with uninterrupted runs.

    python tests/crash_safety/kill_runs.py --kills 100

Each run is forked from a process that has already imported its modules, so that kills hit the work and not imports.
Half of the moments are drawn uniformly, the other half soon after a critical write has begun: of a checkpoint, a model
folder, or a file of sample outputs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CRITICAL = (".step-*.partial", ".model-best.partial", ".model-last.partial", ".model-best.previous", "samples/*")
PREFIX = Path("checkpoints")
NOT_COMPARED = {"train.log", "timing.csv", "results.png", "config.yaml", "manifest.json", "README.md", ".lock"}
"""Files that contain the time or the path of the run, and manifests, which contain the digests of some of them."""

COMMON = {
    "model.family": "transformer",
    "model.encoder-layers": 1,
    "model.decoder-layers": 1,
    "model.width": 32,
    "model.feed-forward": 64,
    "model.heads": 2,
    "model.dropout": 0.1,
    "data.hold-out": 24,
    "data.batch-tokens": 400,
    "training.log-every": 3,
    "training.valid-sentences": 8,
    "training.threads": 1,
}
RUNS = {
    "accumulation": {
        "data.tokenizer": "char",
        "training.accumulate": 3,
        "training.max-steps": 60,
        "training.validate-every": 7,
        "training.checkpoint-every": 4,
        "training.average-last": 3,
    },
    "epochs": {
        "data.tokenizer": "bpe",
        "data.vocabulary": 80,
        "training.max-epochs": 6,
        "training.validate-every": 10,
        "training.checkpoint-every": 9,
        "training.schedule": "linear",
        "training.threads": 2,
    },
    "patience": {
        "data.tokenizer": "byte",
        "training.max-steps": 400,
        "training.validate-every": 5,
        "training.patience": 6,
        "training.learning-rate": 0.02,
        "training.checkpoint-every": 5,
        "training.criterion": "bleu",
        "training.keep-checkpoints": 2,
    },
}


def command(kind: str, data: Path, cache: Path, run: Path) -> list[str]:
    """The arguments of `saccade train` for one of the runs."""
    words = ["train", "--source", str(data), "--output", str(run), "--data.cache", str(cache)]
    for name, value in {**COMMON, **RUNS[kind]}.items():
        words += [f"--{name}", str(value)]
    return words


def start(words: list[str], log: Path) -> int:
    """Fork a process that runs one command; the parent has no threads and no state that the child could inherit."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        from saccade.cli.main import main

        code = main(words)
    finally:
        os._exit(code)


def run_uninterrupted(words: list[str], log: Path) -> float:
    """Run a command to its end and return its duration in seconds."""
    began = time.monotonic()
    _, status = os.waitpid(start(words, log), 0)
    if status:
        raise SystemExit(f"the command failed: {' '.join(words)}\n{log.read_text(encoding='utf-8')[-2000:]}")
    return time.monotonic() - began


def kill_at(child: int, moment: Callable[[], bool], limit: float) -> bool:
    """Kill a process when `moment` is true, at the latest after `limit` seconds; False if it ended before."""
    began = time.monotonic()
    while time.monotonic() - began < limit and not moment():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                raise SystemExit(f"a run failed without a kill, with status {status}")
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def draw_moment(chooser: random.Random, run: Path, seconds: float) -> Callable[[], bool]:
    """Draw a moment: any time, or soon after a critical write has begun."""
    began = time.monotonic()
    if chooser.random() < 0.5:
        delay = chooser.uniform(0, seconds / 2)  # a resumed run has less to do than an uninterrupted one
        return lambda: time.monotonic() - began >= delay
    pattern = chooser.choice(CRITICAL)
    parent = run / PREFIX if "step" in pattern else run
    grace = chooser.uniform(0, 0.02)
    skip = chooser.randrange(3)
    seen: set[str] = set()
    state = {"found": 0.0}

    def moment() -> bool:
        if not state["found"]:
            fresh = {f"{path} {path.stat().st_ino}" for path in list(parent.glob(pattern)) if path.exists()} - seen
            seen.update(fresh)
            if len(seen) > skip and fresh:
                state["found"] = time.monotonic()
        return bool(state["found"]) and time.monotonic() - state["found"] >= grace

    def safe() -> bool:
        try:
            return moment()
        except FileNotFoundError:  # the file was removed meanwhile
            return False

    return safe


def differences(first: Path, second: Path) -> list[str]:
    """The differences of two finished runs, apart from times and paths."""
    names = {path.relative_to(root) for root in (first, second) for path in root.rglob("*") if path.is_file()}
    found: list[str] = []
    for name in sorted(names):
        if name.name in NOT_COMPARED or name.parts[0] == "tb":
            continue
        if not ((first / name).is_file() and (second / name).is_file()):
            found.append(f"{name} is in one run only")
        elif content_without_times(first / name) != content_without_times(second / name):
            found.append(f"{name} differs")
    return found


def content_without_times(path: Path) -> object:
    """The content of a file, without times."""
    if path.name != "state.json":
        return path.read_bytes()
    state = json.loads(path.read_text(encoding="utf-8"))
    del state["progress"]["seconds"]
    state["logged"].pop("timing.csv", None)
    return state


def write_data(path: Path) -> None:
    """Write a corpus of number words."""
    from saccade.data.number_words import number_pairs

    pairs = number_pairs(train=600, valid=0, test=0, below=10_000, seed=1).train
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")


def main() -> int:
    """Kill, resume and compare runs until the number of kills is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import saccade.cli.train
    import saccade.training.run  # noqa: F401  (imported before the first fork)

    chooser = random.Random(options.seed)
    root = Path(tempfile.mkdtemp(prefix="kills-"))
    data = root / "pairs.tsv"
    write_data(data)
    kills, finished, log = 0, 0, root / "log"
    seconds = {}
    for kind in RUNS:
        seconds[kind] = run_uninterrupted(command(kind, data, root / "cache", root / f"reference-{kind}"), log)
        print(f"{kind}: {seconds[kind]:.1f} s without interruption", flush=True)
    while kills < options.kills:
        kind = list(RUNS)[finished % len(RUNS)]
        run = root / f"killed-{finished}"
        cache = root / f"cache-{finished}"  # empty, so that kills also hit the writing of a cache
        attempts = 0
        while True:
            words = ["train", "--resume", str(run)] if run.exists() else command(kind, data, cache, run)
            moment = draw_moment(chooser, run, seconds[kind])
            # The limit ends the wait for a write that does not happen.
            if kills >= options.kills or not kill_at(start(words, log), moment, 3 * seconds[kind] + 5):
                break
            kills += 1
            attempts += 1
        if kills >= options.kills:
            words = ["train", "--resume", str(run)] if run.exists() else command(kind, data, cache, run)
            run_uninterrupted(words, log)
        faults = differences(root / f"reference-{kind}", run)
        print(f"{kind}: {attempts} kills, {faults or 'bitwise equal'}", flush=True)
        if faults:
            print(f"kept for inspection: {root}")
            return 1
        shutil.rmtree(run)
        shutil.rmtree(cache, ignore_errors=True)
        finished += 1
    print(f"{kills} kills in {finished} runs: all equal the uninterrupted runs")
    shutil.rmtree(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Disturb commands at random moments with signals and broken streams: nothing is lost, nothing is half written.

    python tests/crash_safety/break_streams.py --tries 80

Each try runs train, translate, evaluate or export in a new process. It gets SIGINT, SIGTERM or SIGHUP at a random
moment, or a standard stream that is closed, full (/dev/full) or a pipe whose reader leaves at a random moment.

- train: the exit code is that of the signal, 0 for broken streams; the newest checkpoint is that of the last update;
  resumed until it ends, the run equals the undisturbed one bit by bit.
- translate: the output file is a prefix of the undisturbed one, in complete lines.
- evaluate: the result is complete or absent. export: the folder is complete or absent.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from kill_runs import command, differences, write_data

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KINDS = ("train", "translate", "evaluate", "export")
STREAMS = ("closed", "full", "pipe")
RUN = "accumulation"  # the run of kill_runs.py that is trained
BROKEN_PIPE = 128 + signal.SIGPIPE
SENTENCES = 1500
INTERNAL_ERRORS = ("internal error", "Traceback")


class Disturbance(NamedTuple):
    """A signal, perhaps sent twice or ignored (nohup), or a broken standard stream."""

    number: signal.Signals | None = None
    twice: bool = False
    ignored: bool = False
    descriptor: int | None = None
    stream: str = ""

    def __str__(self) -> str:
        if self.number is not None:
            return self.number.name + (" twice" if self.twice else "") + (" ignored" if self.ignored else "")
        return f"{('stdin', 'stdout', 'stderr')[self.descriptor or 0]} {self.stream}"


class Ended(NamedTuple):
    """Exit code of a process as a shell shows it, and what it wrote to stderr."""

    code: int
    messages: str


def draw_disturbance(chooser: random.Random, kind: str) -> Disturbance:
    """Draw a disturbance; training mostly gets signals, other commands as many signals as broken streams."""
    if chooser.random() < (0.8 if kind == "train" else 0.5):
        number = chooser.choice(SIGNALS)
        twice = number == signal.SIGHUP and chooser.random() < 0.3
        return Disturbance(number, twice, number == signal.SIGHUP and not twice and chooser.random() < 0.3)
    return Disturbance(descriptor=chooser.choice((0, 1, 2, 2)), stream=chooser.choice(STREAMS))


def run_disturbed(words: list[str], folder: Path, disturbance: Disturbance, moment: float) -> Ended:
    """Run a command in a fork of this process and disturb it after `moment` seconds."""
    log = folder / "messages"
    log.unlink(missing_ok=True)
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.close(reader)
            redirect(log, disturbance, writer)
            code = run_command(words)
        finally:
            os._exit(code)
    os.close(writer)
    began = time.monotonic()
    status: int | None = None
    while status is None and time.monotonic() - began < moment:
        ended, found = os.waitpid(child, os.WNOHANG)
        status = found if ended else None
        time.sleep(0.002)
    if status is None and disturbance.number is not None:
        os.kill(child, disturbance.number)
        if disturbance.twice:
            time.sleep(0.05)
            os.kill(child, disturbance.number)  # the process may have ended; it is not reaped yet
    os.close(reader)
    if status is None:
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Ended(128 - code if code < 0 else code, text)


def redirect(log: Path, disturbance: Disturbance, writer: int) -> None:
    """Connect the standard streams of this new process, with the disturbance."""
    null, handle = os.open(os.devnull, os.O_RDWR), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor, target in enumerate((null, null, handle)):
        os.dup2(target, descriptor)
    if disturbance.descriptor is not None:
        if disturbance.stream == "closed":
            os.close(disturbance.descriptor)
        else:
            full = os.open("/dev/full", os.O_RDWR)
            os.dup2(full if disturbance.stream == "full" else writer, disturbance.descriptor)
            os.close(full)
    for descriptor in {null, handle, writer}:
        os.close(descriptor)
    reopen_standard_streams()
    if disturbance.ignored:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def reopen_standard_streams() -> None:
    """Make new stream objects as a starting interpreter does: None for a closed descriptor."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            setattr(sys, name, None)
        else:
            mode, buffering = "r" if descriptor == 0 else "w", 1 if descriptor == 2 else -1
            setattr(sys, name, os.fdopen(descriptor, mode, buffering, encoding="utf-8", closefd=False))


def run_command(words: list[str]) -> int:
    """Run a command as the interpreter does, which exits with 120 if it cannot write what is buffered."""
    from saccade.cli.main import main

    code = main(words)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:
            code = 120
    return code


class Trial(NamedTuple):
    """Files of all tries, and how long each undisturbed command takes."""

    root: Path
    data: Path
    model: Path
    seconds: dict[str, float]

    def words(self, kind: str, folder: Path) -> list[str]:
        """Return the arguments of a command that writes into `folder`."""
        model, sources = str(folder / "model"), str(self.root / "sources")
        if kind == "translate":
            return ["translate", model, "--input", sources, "--output", str(folder / "output"), "--beam", "1"]
        if kind == "evaluate":
            references = str(self.root / "references")
            return ["evaluate", model, "--source", sources, "--reference", references, "--name", "x", "--beam", "1"]
        if kind == "export":
            return ["export", model, "--format", "huggingface", "--output", str(folder / "exported")]
        return command(RUN, self.data, self.root / "cache", folder / "run")


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder by name, without the model and the messages."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.name != "messages"]
    names = {str(path.relative_to(folder)): path for path in found}
    return {name: plain(path) for name, path in names.items() if not name.startswith("model/") or "eval" in name}


def plain(path: Path) -> bytes:
    """Return the content of a file without values that depend on the clock; a result must be complete JSON."""
    if path.suffix != ".json" or "eval" not in path.parts:
        return path.read_bytes()
    values = json.loads(path.read_text(encoding="utf-8"))
    return re.sub(rb'"[^"]*(seconds|second|time|date)[^"]*": [^,}]*', b"", json.dumps(values).encode())


def expected_code(kind: str, disturbance: Disturbance) -> set[int]:
    """Return the documented exit codes of a disturbed command; 0 if it had ended before."""
    if disturbance.number is not None:
        return {0} if disturbance.ignored else {0, 128 + disturbance.number}
    if disturbance.descriptor == 1 and kind in ("evaluate", "export"):  # these print results
        return {0, BROKEN_PIPE} if disturbance.stream == "pipe" else {1}
    return {0}


def faults_of_training(trial: Trial, folder: Path, first: Ended, disturbance: Disturbance) -> list[str]:
    """Check the checkpoint of an interrupted run, resume it, and compare it with the undisturbed run."""
    faults: list[str] = []
    run = folder / "run"
    stopped = re.search(r"stopped after ([\d,]+) updates", first.messages)
    if stopped is not None and first.code and disturbance.number is not None:
        step = int(stopped[1].replace(",", ""))
        if step and not (run / "checkpoints" / f"step-{step}").is_dir():
            faults.append(f"no checkpoint of step {step}")
    if first.code:
        words = ["train", "--resume", str(run)] if run.exists() else trial.words("train", folder)
        again = run_disturbed(words, folder, Disturbance(), 0)
        if again.code:
            return [*faults, f"resuming failed with {again.code}: {again.messages[-500:]}"]
    return faults + differences(trial.root / "reference-train" / "run", run)


def faults_of_output(trial: Trial, kind: str, folder: Path, code: int) -> list[str]:
    """Check the files that a disturbed command left, and that the same command then succeeds."""
    reference = contents(trial.root / f"reference-{kind}")
    found = {name: data for name, data in contents(folder).items() if not Path(name).parts[0].startswith(".")}
    faults = [f"unexpected file {name}" for name in found.keys() - reference.keys() if "/." not in name]
    for name, data in reference.items():
        if kind == "translate" and code:
            is_prefix = data.startswith(found.get(name, b"")) and found.get(name, b"\n")[-1:] in (b"\n", b"")
            faults += [] if is_prefix else [f"{name} is not a prefix in complete lines"]
        elif name in found and found[name] != data:
            faults.append(f"{name} differs")
        elif name not in found and (not code or (any(name in found for name in reference) and kind == "export")):
            faults.append(f"{name} is missing")
    if code:
        shutil.rmtree(folder / "exported", ignore_errors=True)  # export refuses an existing folder
        again = run_disturbed(trial.words(kind, folder), folder, Disturbance(), 0)
        if again.code:
            faults.append(f"the same command failed afterwards with {again.code}: {again.messages[-500:]}")
        elif {name: data for name, data in contents(folder).items() if "/." not in f"/{name}"} != reference:
            faults.append("the same command gives another result afterwards")
    return faults


def prepare(root: Path) -> Trial:
    """Write data, train a model, and run every command without a disturbance."""
    from saccade.data.number_words import number_pairs

    data = root / "pairs.tsv"
    write_data(data)
    pairs = number_pairs(train=600, valid=0, test=SENTENCES, below=10_000, seed=1).test
    (root / "sources").write_text("".join(f"{source}\n" for source, _ in pairs), encoding="utf-8")
    (root / "references").write_text("".join(f"{target}\n" for _, target in pairs), encoding="utf-8")
    trial = Trial(root, data, root / "reference-train" / "run" / "model-best", {})
    for kind in KINDS:
        folder = new_folder(trial, f"reference-{kind}", kind)
        began = time.monotonic()
        ended = run_disturbed(trial.words(kind, folder), folder, Disturbance(), 0)
        trial.seconds[kind] = time.monotonic() - began
        if ended.code:
            raise SystemExit(f"{kind} failed without a disturbance: {ended.messages}")
        print(f"{kind}: {trial.seconds[kind]:.1f} s undisturbed", flush=True)
    return trial


def new_folder(trial: Trial, name: str, kind: str) -> Path:
    """Return a new folder for a command, with a copy of the model if it needs one."""
    folder = trial.root / name
    folder.mkdir()
    if kind != "train":
        shutil.copytree(trial.model, folder / "model")
    return folder


def try_once(trial: Trial, kind: str, number: int, disturbance: Disturbance, chooser: random.Random) -> list[str]:
    """Disturb one command and return what is wrong afterwards."""
    folder = new_folder(trial, f"try-{number}", kind)
    moment = chooser.uniform(0, trial.seconds[kind])
    ended = run_disturbed(trial.words(kind, folder), folder, disturbance, moment)
    faults = [f"it says {words}" for words in INTERNAL_ERRORS if words in ended.messages]
    if ended.code not in expected_code(kind, disturbance):
        faults.append(f"exit code {ended.code}: {ended.messages[-500:]}")
    if kind == "train":
        faults += faults_of_training(trial, folder, ended, disturbance)
    else:
        faults += faults_of_output(trial, kind, folder, ended.code)
    print(
        f"{number}: {kind}, {disturbance} after {moment:.2f} s: exit code {ended.code}, {faults or 'good'}", flush=True
    )
    if not faults:
        shutil.rmtree(folder)
    return faults


def main() -> int:
    """Repeat until the given number of tries is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    import saccade.cli.main
    import saccade.inference.loading
    import saccade.training.run  # noqa: F401  (so that every child has it already)

    chooser = random.Random(options.seed)
    root = Path(tempfile.mkdtemp(prefix="streams-"))
    trial = prepare(root)
    counts: Counter[str] = Counter()
    failed = 0
    for number in range(options.tries):
        kind = options.commands[number % len(options.commands)]
        disturbance = draw_disturbance(chooser, kind)
        failed += bool(try_once(trial, kind, number, disturbance, chooser))
        counts[kind] += 1
        counts["signals" if disturbance.number is not None else "streams"] += 1
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    if failed:
        print(f"{failed} of {options.tries} tries went wrong ({listed}); kept for inspection: {root}")
        return 1
    shutil.rmtree(root)
    print(f"{options.tries} tries ({listed}): nothing lost, nothing half written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One line of 100,000 characters among 20 short ones: time to the first output, total, and from Ctrl-C to the exit.

make bench-long-line RUN=demo/run ARGUMENTS="--json figures.json"
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from saccade.data.number_words import english

SHORT_LINES = 20
LONG_AFTER = 10  # short lines before the long one
CHARACTERS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="a run or model folder, such as that of `saccade demo`")
    parser.add_argument("--characters", type=int, default=CHARACTERS)
    parser.add_argument("--interrupt-after", type=float, nargs="*", default=[0.0, 0.2, 0.4], metavar="SECONDS")
    parser.add_argument("--options", default="--beam 5", help="of saccade translate")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.txt"
        found = {}
        for name, lines in {"short": short_lines(), "long": with_long_line(options.characters)}.items():
            source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            found[name] = translate(options.run, source, options.options)
        exits = [interrupt(options.run, source, options.options, after) for after in options.interrupt_after]
    found["seconds_from_interrupt_to_exit"] = exits
    for name in ("short", "long"):
        first, before, total = (found[name][key] for key in ("first", "before_long", "total"))
        print(f"{name}: first output {first:.1f} s, {LONG_AFTER} lines {before:.1f} s, all {total:.1f} s")
    print("from SIGINT to exit: " + ", ".join(f"{seconds:.2f} s" for seconds in exits))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def short_lines() -> list[str]:
    """Numbers in words."""
    return [english(37 * (number + 1)) for number in range(SHORT_LINES)]


def with_long_line(characters: int) -> list[str]:
    """The short lines with a long one among them, of numbers that are separated by full stops and spaces."""
    lines, long, number = short_lines(), "", 0
    while len(long) < characters:
        number += 1
        long += english(17 * number % 1000) + (". " if number % 3 == 0 else " ")
    return [*lines[:LONG_AFTER], long[:characters], *lines[LONG_AFTER:]]


def command(run: Path, source: Path, options: str) -> list[str]:
    """The command that translates a file to stdout."""
    program = [sys.executable, "-m", "saccade.cli.main", "translate", str(run)]
    return [*program, "--input", str(source), *options.split()]


def translate(run: Path, source: Path, options: str) -> dict[str, float]:
    """Seconds from the start of the process to the first line, to those before the long one, and to the end."""
    began = time.perf_counter()
    with subprocess.Popen(command(run, source, options), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        times = [time.perf_counter() - began for _ in process.stdout]
    return {"first": times[0], "before_long": times[LONG_AFTER - 1], "total": time.perf_counter() - began}


def interrupt(run: Path, source: Path, options: str, after: float) -> float:
    """Seconds from SIGINT to the exit, if the signal comes some seconds after the first output."""
    with subprocess.Popen(command(run, source, options), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)
        began = time.perf_counter()
        process.send_signal(signal.SIGINT)
        process.communicate()
        return time.perf_counter() - began


if __name__ == "__main__":
    main()

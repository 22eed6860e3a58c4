"""`saccade complexity`: table 1 of "Attention Is All You Need", measured on this machine."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.errors import INTERRUPTED
from saccade.cli.json_output import STANDARD_OUTPUT, write_json_output
from saccade.cli.output_file import check_output, replacing
from saccade.cli.table import table
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.studies.complexity.findings import Findings
    from saccade.studies.complexity.measurement import Measurement
    from saccade.studies.complexity.paths import SignalPath
    from saccade.studies.complexity.series import Plan
    from saccade.studies.complexity.subjects import Sizes

LENGTHS = "64,128,256,512,1024,2048,4096,8192,16384"
WIDTHS = "64,128,256"
PATH_LENGTHS = "16,32,64,128"
LONGEST_PATH = 512  # beyond, gradients through a recurrent layer vanish in float64, and explicit attention needs much


def complexity(
    lengths: Annotated[str, typer.Option(metavar="N,N…", help="Places of the sequence.")] = LENGTHS,
    widths: Annotated[str, typer.Option(metavar="D,D…", help="Widths of the layers.")] = WIDTHS,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Only some of explicit, fused, restricted, recurrent, convolution, dilated, separable.",
        ),
    ] = None,
    kernel: Annotated[int, typer.Option(min=3, help="Places that a convolution sees, an odd number.")] = 3,
    radius: Annotated[int, typer.Option(min=1, help="Places that restricted attention sees on each side.")] = 32,
    heads: Annotated[int, typer.Option(min=1, help="Heads of every self-attention.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long to repeat each measurement; 3 times at least.")] = 0.5,
    memory: Annotated[
        float,
        typer.Option(
            metavar="GB", help="What needs more is left out; measured on Linux with glibc, elsewhere reckoned."
        ),
    ] = 4.0,
    path_lengths: Annotated[
        str,
        typer.Option(metavar="N,N…", help=f"Places among which the longest path is sought, {LONGEST_PATH} at most."),
    ] = PATH_LENGTHS,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="As JSON; without a .json file to stdout.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Every measurement as a row.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Time and memory over length, as a picture.")] = None,
) -> None:
    """Measure what layers cost, and how it grows.

    Time and peak memory of self-attention, recurrent and convolutional layers, with the exponents that they show; the
    operations that wait for each other; and the longest path between two places, found by following gradients through
    real stacks. Beside each figure stands what table 1 of "Attention Is All You Need" says.

    \b
    saccade complexity
    saccade complexity --layers fused,recurrent --widths 512 --lengths 256,512,1024
    saccade complexity --json cost.json --csv cost.csv --png cost.png

    Runs on the processor, with the threads that torch would take (OMP_NUM_THREADS). What cannot be measured is left out
    and said to be. Ctrl-C ends it with what there is so far.
    """
    places = tuple(numbers(path_lengths, "--path-lengths"))
    if places[-1] > LONGEST_PATH:
        raise UsageError(
            f"--path-lengths must be at most {LONGEST_PATH}, not {places[-1]:,}",
            do="gradients vanish on longer ways; the formulas that the table prints beside are exact for any length",
        )
    json_path = None if json_file in (None, STANDARD_OUTPUT) else Path(str(json_file))
    for path in (json_path, csv, png):
        if path is not None:
            check_output(path)
    if seconds <= 0:
        raise UsageError(f"--seconds must be more than 0, not {seconds:g}")
    if memory <= 0:
        raise UsageError(f"--memory must be more than 0, not {memory:g}")
    if kernel % 2 == 0:
        raise UsageError(f"--kernel must be odd, not {kernel}", do="a kernel that is centred has a middle place")
    length_list, width_list = numbers(lengths, "--lengths"), numbers(widths, "--widths")
    for width in width_list:
        if width % heads:
            raise UsageError(f"a width of {width} cannot be split into {heads} heads", do="change --widths or --heads")

    from saccade.studies.complexity.series import Plan
    from saccade.studies.complexity.subjects import SUBJECTS, Sizes, chosen

    names = list(SUBJECTS) if layers is None else [name.strip() for name in layers.split(",")]
    plan = Plan(
        tuple(chosen(names)),
        tuple(length_list),
        tuple(width_list),
        Sizes(kernel, radius, heads),
        seconds,
        round(memory * 1e9),
    )
    findings = find(plan, places)
    try:  # minutes of work are seen before a full disk can spoil the files, and kept if nobody reads them
        if json_file == STANDARD_OUTPUT:
            write_json_output(STANDARD_OUTPUT, as_json(findings))
        else:
            print_tables(findings)
        sys.stdout.flush()
    finally:
        write_files(findings, json_path, csv, png)
    if findings.interrupted:
        raise typer.Exit(INTERRUPTED)


def write_files(findings: Findings, json_path: Path | None, csv: Path | None, png: Path | None) -> None:
    """Those that are wanted, each whole or not at all."""
    from saccade.studies.complexity.picture import plot_png
    from saccade.studies.complexity.report import write_csv

    if json_path is not None:
        with replacing(json_path) as place:
            write_json_output(str(place), as_json(findings))
    if csv is not None:
        with replacing(csv) as place:
            write_csv(findings, place)
    if png is not None:
        with replacing(png) as place:
            plot_png(findings, place)


def find(plan: Plan, places: tuple[int, ...]) -> Findings:
    """Measure and follow all, with a line on stderr for each measurement: the whole takes minutes.

    A fault ends one measurement, Ctrl-C all that are left.
    """
    from saccade.studies.complexity.findings import Findings
    from saccade.studies.complexity.series import measurements

    paths: dict[str, dict[int, SignalPath]] = {name: {} for name in plan.layers}
    faults: dict[str, str] = {}
    found: list[Measurement] = []
    interrupted = False
    try:
        for name in plan.layers:  # first, since a fault in a layer shows here within seconds
            listed = ", ".join(f"{count:,}" for count in places)
            print(f"{name}: following gradients among {listed} places", file=sys.stderr)
            fault = follow(name, places, plan.sizes, paths[name])
            if fault is not None:
                faults[name] = fault
        with closing(measurements(plan)) as measuring:
            for measurement in measuring:
                found.append(measurement)
                print(line_of(measurement), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted: this is what was found so far", file=sys.stderr, flush=True)
    lengths = {name: {count: path.length for count, path in followed.items()} for name, followed in paths.items()}
    steps = {name: {count: path.steps for count, path in followed.items()} for name, followed in paths.items()}
    return Findings(plan, tuple(found), lengths, steps, faults, interrupted)


def follow(name: str, places: tuple[int, ...], sizes: Sizes, found: dict[int, SignalPath]) -> str | None:
    """Find the longest paths of a layer one by one; returns the fault that ended it, if there was one."""
    from saccade.studies.complexity.paths import longest_path
    from saccade.studies.complexity.subjects import SUBJECTS
    from saccade.studies.complexity.worker import fault_of

    try:
        for count in places:
            found[count] = longest_path(SUBJECTS[name], count, sizes)
    except (RuntimeError, MemoryError, SaccadeError) as error:
        print(f"{name}: left out, {fault_of(error)}", file=sys.stderr)
        return fault_of(error)
    return None


def line_of(found: Measurement) -> str:
    """One measurement for who waits."""
    from saccade.studies.complexity.report import milliseconds

    what = f"{found.layer}, d = {found.width}, n = {found.length:,}"
    if found.left_out is not None:
        return f"{what}: left out, {found.left_out}"
    assert found.forward is not None
    assert found.backward is not None
    peak = "" if found.memory is None else f", peak {found.memory / 1e6:,.1f} MB"
    times = f"{milliseconds(found.forward.median)} ms forward, {milliseconds(found.backward.median)} ms backward"
    return f"{what}: {times}{peak} ({found.repeats} runs)"


def print_tables(findings: Findings) -> None:
    """Every section with its title and its notes."""
    from saccade.studies.complexity.report import sections

    blocks = []
    for section in sections(findings):
        notes = "".join(f"\n  {note}" for note in section.notes)
        blocks.append(f"{section.title}\n\n{table(section.rows, right=section.right)}{notes}")
    print("\n\n".join(blocks))
    made = findings.made()
    if made and all(found.memory is None for found in made):
        print("\nmemory is not measured on this system: that takes Linux with glibc")


def as_json(findings: Findings) -> dict[str, Any]:
    """What was found, and where."""
    return {"machine": machine(findings), **findings.to_json()}


def machine(findings: Findings) -> dict[str, str | int]:
    """Where the figures come from; the threads are those of the processes that measured, 0 where none did."""
    import platform

    import torch

    threads = max((found.threads for found in findings.made()), default=0)
    build = torch.__config__.show()
    return {"system": platform.platform(), "torch": torch.__version__, "torch_build": build, "threads": threads}


def numbers(text: str, option: str) -> list[int]:
    """Positive whole numbers between commas, in order and each once."""
    found = set()
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < 1:
            raise UsageError(
                f"{option}: '{word.strip()}' is not a positive whole number", do=f"for example: {option} 64,128,256"
            )
        found.add(int(word))
    return sorted(found)

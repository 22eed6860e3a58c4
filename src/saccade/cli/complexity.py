"""`saccade complexity`: table 1 of "Attention Is All You Need", measured on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.json_output import STANDARD_OUTPUT, write_json_output
from saccade.cli.table import table
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.complexity.findings import Findings
    from saccade.complexity.measurement import Measurement
    from saccade.complexity.series import Plan

LENGTHS = "64,128,256,512,1024,2048,4096,8192,16384"
WIDTHS = "64,128,256"
PATH_LENGTHS = "16,32,64,128"


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
    memory: Annotated[float, typer.Option(metavar="GB", help="What needs more than this is left out.")] = 2.0,
    path_lengths: Annotated[
        str, typer.Option(metavar="N,N…", help="Places among which the longest path is sought.")
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

    Runs on the processor, with the threads that torch would take (OMP_NUM_THREADS).
    """
    places = tuple(numbers(path_lengths, "--path-lengths"))
    check_files(json_file, csv, png)
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

    from saccade.complexity.series import Plan
    from saccade.complexity.subjects import SUBJECTS, Sizes, chosen

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
    if json_file is not None:
        write_json_output(json_file, {"machine": machine(), **findings.to_json()})
    if csv is not None:
        from saccade.complexity.report import write_csv

        write_csv(findings, csv)
    if png is not None:
        from saccade.complexity.picture import plot_png

        plot_png(findings, png)
    if json_file != STANDARD_OUTPUT:
        print_tables(findings)


def find(plan: Plan, places: tuple[int, ...]) -> Findings:
    """Measure and follow all, with a line on stderr for each measurement: the whole takes minutes."""
    from saccade.complexity.findings import Findings
    from saccade.complexity.paths import path_lengths, sequential_steps
    from saccade.complexity.series import measurements
    from saccade.complexity.subjects import SUBJECTS

    paths, steps = {}, {}
    for name in plan.layers:  # first, since a fault in a layer shows here within seconds
        print(
            f"{name}: following gradients among {', '.join(f'{count:,}' for count in places)} places", file=sys.stderr
        )
        paths[name] = path_lengths(SUBJECTS[name], places, plan.sizes)
        steps[name] = {count: sequential_steps(SUBJECTS[name], count, plan.sizes) for count in places}
    found = []
    for measurement in measurements(plan):
        print(line_of(measurement), file=sys.stderr, flush=True)
        found.append(measurement)
    return Findings(plan, tuple(found), paths, steps)


def line_of(found: Measurement) -> str:
    """One measurement for who waits."""
    from saccade.complexity.report import milliseconds

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
    from saccade.complexity.report import sections

    blocks = []
    for section in sections(findings):
        notes = "".join(f"\n  {note}" for note in section.notes)
        blocks.append(f"{section.title}\n\n{table(section.rows, right=section.right)}{notes}")
    print("\n\n".join(blocks))
    if all(found.memory is None for found in findings.measurements):
        print("\nmemory is not measured on this system: that takes Linux with glibc")


def machine() -> dict[str, str | int]:
    """Where the figures come from."""
    import platform

    import torch

    return {"system": platform.platform(), "torch": torch.__version__, "threads": torch.get_num_threads()}


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


def check_files(json_file: str | None, *pictures: Path | None) -> None:
    """Refuse a place that cannot be written before minutes are spent."""
    named = None if json_file in (None, STANDARD_OUTPUT) else Path(str(json_file))
    for path in (named, *pictures):
        if path is not None and not path.absolute().parent.is_dir():
            raise SaccadeError(
                "there is no such directory", where=str(path.parent), do="make it first, or write elsewhere"
            )
        if path is not None and path.is_dir():
            raise SaccadeError("is a directory", where=str(path), do="name a file in it")

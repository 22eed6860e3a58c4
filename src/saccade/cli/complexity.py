"""`saccade complexity`: table 1 of "Attention Is All You Need", measured on this machine."""

from __future__ import annotations

import math
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade import messages
from saccade.cli.output.atomic_file import atomic_write
from saccade.cli.output.errors import INTERRUPTED
from saccade.cli.output.json_output import STANDARD_OUTPUT, JsonFile, write_json_output
from saccade.cli.output.output_paths import check_outputs
from saccade.cli.output.plot_file import PlotFile
from saccade.cli.output.table import format_table
from saccade.cli.output.task import task
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.studies.complexity.findings import Findings
    from saccade.studies.complexity.layers import LayerSizes
    from saccade.studies.complexity.measurement import Measurement
    from saccade.studies.complexity.path_lengths import SignalPath
    from saccade.studies.complexity.series import MeasurementPlan

LENGTHS = "64,128,256,512,1024,2048,4096,8192,16384"
WIDTHS = "64,128,256"
PATH_LENGTHS = "16,32,64,128"
MAX_PATH_LENGTH = 512  # beyond, gradients through a recurrent layer vanish in float64


def complexity(
    lengths: Annotated[str, typer.Option(metavar="N,N…", help="Sequence lengths, in positions.")] = LENGTHS,
    widths: Annotated[str, typer.Option(metavar="D,D…", help="Layer widths (d).")] = WIDTHS,
    layers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Measure only these of explicit, fused, restricted, recurrent, convolution, dilated, separable.",
        ),
    ] = None,
    kernel: Annotated[int, typer.Option(min=3, help="Kernel size of the convolutions, an odd number.")] = 3,
    radius: Annotated[
        int, typer.Option(min=1, help="Positions on each side that restricted attention attends to.")
    ] = 32,
    heads: Annotated[int, typer.Option(min=1, help="Heads of each self-attention.")] = 1,
    seconds: Annotated[float, typer.Option(help="How long to repeat each measurement; at least 3 repeats.")] = 0.5,
    memory: Annotated[
        float,
        typer.Option(
            metavar="GB",
            help="Skip layers that need more memory; measured on Linux with glibc, estimated elsewhere.",
        ),
    ] = 4.0,
    path_lengths: Annotated[
        str,
        typer.Option(metavar="N,N…", help=f"Sequence lengths for the maximum path length, at most {MAX_PATH_LENGTH}."),
    ] = PATH_LENGTHS,
    json_file: JsonFile = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every measurement as CSV.")] = None,
    plot: PlotFile = None,
) -> None:
    """Measure the time and memory of layers.

    Time and peak memory of self-attention, recurrent and convolutional layers with their growth exponents, the number
    of sequential operations, and the maximum path length between two positions, measured by gradients in real stacks.
    Each value is printed next to its formula in table 1 of "Attention Is All You Need".

    \b
    saccade complexity
    saccade complexity --layers fused,recurrent --widths 512 --lengths 256,512,1024
    saccade complexity --json cost.json --csv cost.csv --plot cost.png

    Runs on the CPU, with the number of threads that torch uses (OMP_NUM_THREADS). Measurements that fail are listed as
    left out. Ctrl-C prints the results so far.
    """
    path_length_list = tuple(numbers(path_lengths, "--path-lengths"))
    if path_length_list[-1] > MAX_PATH_LENGTH:
        raise UsageError(
            f"--path-lengths must be at most {MAX_PATH_LENGTH}, not {path_length_list[-1]:,}",
            hint="gradients vanish on longer paths; the formulas in the table are exact for any length",
        )
    json_path = None if json_file in (None, STANDARD_OUTPUT) else Path(str(json_file))
    check_outputs({"--json": json_path, "--csv": csv, "--plot": plot})
    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds must be more than 0, not {seconds:g}", hint="give seconds, such as --seconds 1")
    if not 0 < memory < math.inf:
        raise UsageError(f"--memory must be more than 0, not {memory:g}", hint="give gigabytes, such as --memory 4")
    if kernel % 2 == 0:
        raise UsageError(f"--kernel must be odd, not {kernel}", hint="a centered kernel has a middle position")
    length_list, width_list = numbers(lengths, "--lengths"), numbers(widths, "--widths")
    for width in width_list:
        if width % heads:
            raise UsageError(
                f"a width of {width} cannot be split into {heads} heads", hint="change --widths or --heads"
            )

    from saccade.studies.complexity.layers import LAYERS, LayerSizes, select_layers
    from saccade.studies.complexity.series import MeasurementPlan

    names = list(LAYERS) if layers is None else [name.strip() for name in layers.split(",")]
    plan = MeasurementPlan(
        tuple(select_layers(names)),
        tuple(length_list),
        tuple(width_list),
        LayerSizes(kernel, radius, heads),
        seconds,
        round(memory * 1e9),
    )
    messages.detail(f"layers {', '.join(names)}; lengths {lengths}; widths {widths}; {seconds:g} s each")
    with task("measuring", bar=False) as work:  # a line for each measurement shows the progress
        findings = run_measurements(plan, path_length_list)
    try:  # print before writing files, which may fail; write them even if printing fails
        if json_file == STANDARD_OUTPUT:
            write_json_output(STANDARD_OUTPUT, as_json(findings))
        else:
            print_tables(findings)
        sys.stdout.flush()
    finally:
        write_files(findings, json_path, csv, plot)
    if findings.interrupted:
        raise typer.Exit(INTERRUPTED)
    written = [str(path) for path in (json_path, csv, plot) if path is not None]
    work.finish(f"measured {len(names)} layers", ", ".join(written) or None)


def write_files(findings: Findings, json_path: Path | None, csv: Path | None, plot: Path | None) -> None:
    """Write the requested files, each atomically."""
    from saccade.studies.complexity.plot import plot_costs
    from saccade.studies.complexity.report import write_csv

    if json_path is not None:
        with atomic_write(json_path) as path:
            write_json_output(str(path), as_json(findings))
    if csv is not None:
        with atomic_write(csv) as path:
            write_csv(findings, path)
    if plot is not None:
        with atomic_write(plot) as path:
            plot_costs(findings, path)


def run_measurements(plan: MeasurementPlan, path_lengths: tuple[int, ...]) -> Findings:
    """Measure costs and path lengths of all layers, which takes minutes, and print a line on stderr for each.

    An error ends one measurement, Ctrl-C ends all remaining ones.
    """
    from saccade.studies.complexity.findings import Findings
    from saccade.studies.complexity.series import measurements

    paths: dict[str, dict[int, SignalPath]] = {name: {} for name in plan.layers}
    faults: dict[str, str] = {}
    found: list[Measurement] = []
    interrupted = False
    try:
        for name in plan.layers:  # first, because an error in a layer shows here within seconds
            listed = ", ".join(f"{count:,}" for count in path_lengths)
            messages.note(f"{name}: finding the longest path over {listed} positions")
            fault = find_longest_paths(name, path_lengths, plan.sizes, paths[name])
            if fault is not None:
                faults[name] = fault
        with closing(measurements(plan)) as measuring:
            for measurement in measuring:
                found.append(measurement)
                messages.note(line_of(measurement))
    except KeyboardInterrupt:
        interrupted = True
        messages.warn("interrupted: these are the results so far")
    lengths = {name: {count: path.length for count, path in followed.items()} for name, followed in paths.items()}
    steps = {name: {count: path.steps for count, path in followed.items()} for name, followed in paths.items()}
    return Findings(plan, tuple(found), lengths, steps, faults, interrupted)


def find_longest_paths(
    name: str, path_lengths: tuple[int, ...], sizes: LayerSizes, found: dict[int, SignalPath]
) -> str | None:
    """Add the longest path of a layer for each length to `found`; returns the error message if one failed."""
    from saccade.studies.complexity.layers import LAYERS
    from saccade.studies.complexity.measurement import describe_error
    from saccade.studies.complexity.path_lengths import longest_path

    try:
        for count in path_lengths:
            found[count] = longest_path(LAYERS[name], count, sizes)
    except (RuntimeError, MemoryError, SaccadeError) as error:
        messages.warn(f"{name}: left out, {describe_error(error)}")
        return describe_error(error)
    return None


def line_of(found: Measurement) -> str:
    """Return the progress line of one measurement."""
    from saccade.studies.complexity.report import format_milliseconds

    what = f"{found.layer}, d = {found.width}, n = {found.length:,}"
    if found.left_out is not None:
        return f"{what}: left out, {found.left_out}"
    assert found.forward is not None
    assert found.backward is not None
    peak = "" if found.memory is None else f", peak {found.memory / 1e6:,.1f} MB"
    forward, backward = (format_milliseconds(timing.median) for timing in (found.forward, found.backward))
    return f"{what}: {forward} ms forward, {backward} ms backward{peak} ({found.repeats} runs)"


def print_tables(findings: Findings) -> None:
    """Print every section with its title, table and notes."""
    from saccade.studies.complexity.report import sections

    blocks = []
    for section in sections(findings):
        notes = "".join(f"\n  {note}" for note in section.notes)
        blocks.append(f"{section.title}\n\n{format_table(section.rows, right=section.right)}{notes}")
    print("\n\n".join(blocks))
    made = findings.completed()
    if made and all(found.memory is None for found in made):
        print("\nmemory is not measured on this system: it needs Linux with glibc")


def as_json(findings: Findings) -> dict[str, Any]:
    """Return the findings with a description of the machine."""
    return {"machine": machine(findings), **findings.to_json()}


def machine(findings: Findings) -> dict[str, str | int]:
    """Return the system, the torch build and the threads of the measuring processes (0 if nothing was measured)."""
    import platform

    import torch

    threads = max((found.threads for found in findings.completed()), default=0)
    build = torch.__config__.show()
    return {"system": platform.platform(), "torch": torch.__version__, "torch_build": build, "threads": threads}


def numbers(text: str, option: str) -> list[int]:
    """Parse positive integers separated by commas; returns them sorted, without duplicates."""
    found = set()
    for word in text.split(","):
        if not word.strip().isdecimal() or int(word) < 1:
            raise UsageError(
                f"{option}: '{word.strip()}' is not a positive integer", hint=f"for example: {option} 64,128,256"
            )
        found.add(int(word))
    return sorted(found)

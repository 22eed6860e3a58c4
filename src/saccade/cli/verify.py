"""`saccade verify`: the laws of the interface, on a trained model with its own data."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.device import Device
from saccade.cli.json_output import STANDARD_OUTPUT, write_json_output
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.data.reading.pair_files import Pair
    from saccade.inference.verification import Equivalence


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory or a model folder.")],
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Other pairs than the run's own validation data.")
    ] = None,
    target: Annotated[Path | None, typer.Option(metavar="FILE", help="Target lines for --source.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="The most pairs to take, from the first on.")] = 64,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="As JSON; without a .json file to stdout.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Check that a trained model keeps its promises.

    What can be computed in two ways must agree: with the cache and without, alone and in a batch, on the explicit path
    and on the fused one, by the scorer and by the search, before and after the disk.

    \b
    saccade verify runs/x
    saccade verify models/y --source test.en --target test.de --sentences 200

    The pairs are the run's validation data, or the first of its training data. Exit code 1 says that a promise is
    broken.
    """
    from saccade.inference.device import choose_device
    from saccade.inference.verification import verify
    from saccade.model_folder import find_model_folder, load_model_folder

    place = choose_device(device)
    path = find_model_folder(run)
    folder = load_model_folder(path, place)
    pairs = given_pairs(source, target, sentences) if source or target else own_pairs(run, path, sentences)
    print(f"{path}: {len(pairs):,} pairs on {place}", file=sys.stderr)
    found: list[Equivalence] = []
    for equivalence in verify(folder, pairs, place, where=str(path)):
        found.append(equivalence)
        if json_file != STANDARD_OUTPUT:
            print(lines_of(equivalence), flush=True)  # the next one may take a while
    broken = sum(not equivalence.passed for equivalence in found)
    if json_file != STANDARD_OUTPUT:
        print(f"{len(found) - broken} of {len(found)} hold")
    if json_file is not None:
        values = {
            "model": str(path),
            "device": str(place),
            "pairs": len(pairs),
            "passed": not broken,
            "equivalences": [equivalence.to_json() for equivalence in found],
        }
        write_json_output(json_file, values)
    if broken:
        raise typer.Exit(1)


def lines_of(equivalence: Equivalence) -> str:
    """One equivalence for people: the verdict with its figures, then what they are taken from."""
    verdict = "ok" if equivalence.passed else "FAILED"
    figures = f"largest difference {equivalence.largest_difference:.1e}, tolerance {equivalence.tolerance:.0e}"
    return f"{equivalence.name:<18}  {verdict:<6}  {figures}\n{'':<28}{equivalence.detail}"


def given_pairs(source: Path | None, target: Path | None, count: int) -> list[Pair]:
    """The first pairs of the files on the command line."""
    from saccade.data.reading.pair_files import read_pairs

    if source is None:
        raise UsageError("--target is given without --source", do="name the file of source lines: --source FILE")
    return first(read_pairs(source, target), count)


def own_pairs(run: Path, folder: Path, count: int) -> list[Pair]:
    """The first validation pairs of the run that a model comes from, or else the first that it learnt from."""
    from saccade.config import read_yaml
    from saccade.data.reading.pair_stream import training_pairs, validation_pairs
    from saccade.training.config import run_config
    from saccade.training.run_directory import RunDirectory

    directory = RunDirectory(run if folder != run else folder.resolve().parent)
    if not directory.config.is_file():
        raise SaccadeError(
            "is a model folder without a run, so there is no data to check it with",
            where=str(run),
            do="give pairs: --source FILE --target FILE",
        )
    data = run_config(read_yaml(directory.config), where=str(directory.config), saved=True).data
    try:
        return first(validation_pairs(data) if data.valid_source else training_pairs(data, 0), count)
    except SaccadeError as error:  # the run may have been copied from where its data is
        raise SaccadeError(
            error.what, where=error.where, do="the run's data is not at its place: give --source FILE --target FILE"
        ) from None


def first(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """The first so many pairs."""
    return list(islice(pairs, count))

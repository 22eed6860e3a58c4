"""`saccade verify`: check that the fast and the reference paths of a trained model agree on its data."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade import messages
from saccade.cli.options.model import Device, Run
from saccade.cli.options.training_run import check_targets
from saccade.cli.output.json_output import STANDARD_OUTPUT, JsonFile, write_json_output
from saccade.cli.output.output_paths import check_outputs
from saccade.cli.output.task import task
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.data.reading.pair_files import Pair
    from saccade.inference.verification import Equivalence


def verify(
    run: Run,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Source sentences to use instead of the run's validation data.")
    ] = None,
    target: Annotated[Path | None, typer.Option(metavar="FILE", help="Target sentences for --source.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Use at most this many sentence pairs, from the start.")] = 64,
    json_file: JsonFile = None,
    device: Device = "auto",
) -> None:
    """Check that a trained model computes consistent results.

    Two ways to compute the same result must agree: with and without the KV cache, alone and in a batch, explicit and
    fused attention, scoring and search, before and after saving.

    \b
    saccade verify runs/x
    saccade verify models/y --source test.en --target test.de --sentences 200

    The sentence pairs come from the run's validation data, or else from its training data. Exits with 1 if a check
    fails.
    """
    from saccade.inference.device import choose_device
    from saccade.inference.verification import verify
    from saccade.model_folder import find_model_folder, load_model_folder

    check_outputs({"--json": json_file}, [source, target])
    torch_device = choose_device(device)
    path = find_model_folder(run)
    folder = load_model_folder(path, torch_device)
    pairs = given_pairs(source, target, sentences) if source or target else own_pairs(run, path, sentences)
    messages.note(f"{path}: {len(pairs):,} pairs on {torch_device}")
    messages.detail(
        f"model: {folder.choice.family}, {sum(weights.numel() for weights in folder.model.parameters()):,} parameters"
    )
    found: list[Equivalence] = []
    shows_checks = json_file != STANDARD_OUTPUT
    with task("verifying", None, "checks", bar=not (shows_checks and sys.stdout.isatty())) as work:
        for equivalence in verify(folder, pairs, torch_device, where=str(path)):
            found.append(equivalence)
            if shows_checks:
                print(lines_of(equivalence), flush=True)  # the next check may take a while
            work.advance()
    failed = sum(not equivalence.passed for equivalence in found)
    if json_file != STANDARD_OUTPUT:
        print(f"{len(found) - failed} of {len(found)} passed")
    if json_file is not None:
        values = {
            "model": str(path),
            "device": str(torch_device),
            "pairs": len(pairs),
            "passed": not failed,
            "equivalences": [equivalence.to_json() for equivalence in found],
        }
        write_json_output(json_file, values)
    work.finish(f"verified with {len(pairs):,} pairs", None if json_file == STANDARD_OUTPUT else json_file)
    if failed:
        raise typer.Exit(1)


def lines_of(equivalence: Equivalence) -> str:
    """Return the result of one check as text: verdict and largest difference, then what was compared."""
    verdict = "ok" if equivalence.passed else "FAILED"
    figures = f"largest difference {equivalence.largest_difference:.1e}, tolerance {equivalence.tolerance:.0e}"
    return f"{equivalence.name:<18}  {verdict:<6}  {figures}\n{'':<28}{equivalence.detail}"


def given_pairs(source: Path | None, target: Path | None, count: int) -> list[Pair]:
    """Return the first pairs of the files named on the command line."""
    from saccade.data.config import DataConfig
    from saccade.data.reading.pair_files import read_pairs

    if source is None:
        raise UsageError("--target is given without --source", hint="name the file of source sentences: --source FILE")
    if target is None:
        check_targets(DataConfig(source=(str(source),)))
    return first_pairs(read_pairs(source, target), count)


def own_pairs(run: Path, folder: Path, count: int) -> list[Pair]:
    """Return the first validation pairs of the run that the model belongs to, or else the first training pairs."""
    from saccade.data.reading.pair_stream import training_pairs, validation_pairs
    from saccade.training.config_resolution import load_saved_config
    from saccade.training.runs.directory import RunDirectory

    directory = RunDirectory(run if folder != run else folder.resolve().parent)
    if not directory.config.is_file():
        raise SaccadeError(
            "is a model folder without a run, so it has no data to verify it with",
            where=str(run),
            hint="give sentence pairs: --source FILE --target FILE",
        )
    data = load_saved_config(directory.config).data
    try:
        return first_pairs(validation_pairs(data) if data.valid_source else training_pairs(data, 0), count)
    except SaccadeError as error:  # the run may have been copied without its data
        raise SaccadeError(
            error.what, where=error.where, hint="the data of the run cannot be read: give --source FILE --target FILE"
        ) from None


def first_pairs(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """Return the first `count` pairs."""
    return list(islice(pairs, count))

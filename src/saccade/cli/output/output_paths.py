"""Checks of the output paths of a command before it starts: nothing that a run or a model needs is overwritten."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from saccade.cli.output.atomic_file import check_writable
from saccade.errors import UsageError
from saccade.file_names import without_links
from saccade.folder import MANIFEST

STANDARD_STREAM = "-"
RUN_MARKS = ("config.yaml", "env.json")
RUN_PARTS = frozenset(
    {*RUN_MARKS, "train.log", "metrics.csv", "timing.csv", "data.json", "start.json", "results.png"}
    | {"tokenizers", "tb", "samples", "checkpoints"}
)
"""Files and folders of a run that training writes; users may add others beside them."""
WEIGHTS = ("model.safetensors", "model.bin", "encoder.onnx", "pytorch_model.bin")
DESCRIPTIONS = (MANIFEST, "config.json", "saccade.json")


def check_outputs(outputs: Mapping[str, str | Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Raise an error if an output file cannot be written, is an input or another output, or belongs to a model.

    `outputs` are the paths by the name of their option; None is no file, and `--json -` is standard output.
    """
    files = {
        option: Path(path)
        for option, path in outputs.items()
        if path is not None and (option, str(path)) != ("--json", STANDARD_STREAM)
    }
    seen: dict[Path, str] = {}
    for option, path in files.items():
        if str(path) == STANDARD_STREAM:
            raise UsageError(f"{option} cannot go to standard output", hint="name a file")
        check_not_input(option, path, inputs)
        check_not_part_of_model(option, path)
        check_writable(path)
        if path.is_file() or not path.exists():  # several outputs may go to one device or pipe
            other = seen.setdefault(without_links(path), option)
            if other != option:
                raise UsageError(f"{other} and {option} name the same file {path}", hint="name two files")


def check_not_input(option: str, output: Path, inputs: Iterable[Path | None]) -> None:
    """Raise an error if an output would overwrite an input file."""
    for path in inputs:
        if path is not None and output.is_file() and path.exists() and output.samefile(path):
            raise UsageError(f"{option} would overwrite the input {path}", hint="name another file")


def check_not_part_of_model(option: str, path: Path) -> None:
    """Raise an error if a path is in a model folder or checkpoint, or is one of the files that training writes."""
    resolved = without_links(path)
    for folder in resolved.parents:
        if is_model(folder):
            raise UsageError(f"{option} {path} is inside the model folder {folder}", hint="name a path elsewhere")
        if all((folder / name).is_file() for name in RUN_MARKS) and resolved.relative_to(folder).parts[0] in RUN_PARTS:
            raise UsageError(f"{option} {path} is a part of the run {folder}", hint="name another path")


def is_model(folder: Path) -> bool:
    """Return whether a folder holds weights with their description: a model, a checkpoint or an exported model."""
    return any((folder / name).is_file() for name in WEIGHTS) and any(
        (folder / name).is_file() for name in DESCRIPTIONS
    )

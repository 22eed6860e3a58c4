"""`saccade info`: describe a run or a model folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from saccade.cli.options.model import Run
from saccade.cli.output.json_output import JsonFile, write_json_output


def info(
    run: Run,
    json_file: JsonFile = None,
) -> None:
    """Describe a run or a model folder.

    Prints family, settings, vocabulary, parameters, training cost, scores and decoding defaults, and checks the
    SHA-256 of every file in the folder.
    """
    from saccade.model_folder import find_model_folder

    folder = find_model_folder(run)
    values = model_facts(folder)
    directory = run if folder != run else folder.resolve().parent
    values["training"] = training_facts(directory)
    values["evaluations"] = evaluations(directory)
    if json_file is not None:
        write_json_output(json_file, values)
    else:
        print("\n".join(lines_of(values)))


def model_facts(folder: Path) -> dict[str, Any]:
    """Return facts from the model folder alone."""
    from saccade.config import build
    from saccade.decoding.config import DecodingConfig
    from saccade.folder import verify
    from saccade.model_folder import GENERATION, load_model_folder, vocabulary_sizes
    from saccade.models.registry import load_family

    began = time.perf_counter()
    verify(folder)
    verified = time.perf_counter()
    loaded = load_model_folder(folder)
    loading = time.perf_counter() - verified
    decoding = build(DecodingConfig, loaded.generation, where=str(folder / GENERATION))
    sizes = vocabulary_sizes(loaded.tokenizers)
    source, target = loaded.tokenizers
    files = [path for path in folder.iterdir() if path.is_file()]  # skips subfolders: exports for other engines
    return {
        "folder": str(folder),
        "family": loaded.choice.family,
        "paper": load_family(loaded.choice.family).paper,
        "parameters": sum(parameter.numel() for parameter in loaded.model.parameters()),
        "vocabulary": {
            "joint": sizes.joint,
            "source": {"kind": source.kind, "size": source.size, "normalization": source.normalization},
            "target": {"kind": target.kind, "size": target.size, "normalization": target.normalization},
        },
        "settings": loaded.choice.config.model_dump(mode="json"),
        "decoding": decoding.model_dump(mode="json"),
        "verification": {
            "files": len(files) - 1,
            "megabytes": sum(file.stat().st_size for file in files) / 1e6,
            "seconds": verified - began,
            "loading_seconds": loading,  # includes the verification of large files, which runs in parallel
        },
    }


def training_facts(directory: Path) -> dict[str, Any] | None:
    """Return the training cost from the newest checkpoint of a run, if there is one."""
    from saccade.training.checkpoints.checkpoint import list_checkpoints, load_state
    from saccade.training.runs.directory import RunDirectory

    kept = list_checkpoints(RunDirectory(directory).checkpoints)
    if not kept:
        return None
    progress = load_state(kept[-1]).progress
    names = ("step", "source_tokens", "target_tokens", "flops", "seconds")
    return {"epoch": progress.position.epoch, **{name: getattr(progress, name) for name in names}}


def evaluations(directory: Path) -> dict[str, dict[str, float | None]]:
    """Return the scores in a run's eval/ directory, by test set and by metric."""
    from saccade.folder import damaged, read_json

    found: dict[str, dict[str, float | None]] = {}
    for path in sorted((directory / "eval").glob("*.json")):
        try:
            scores = {str(score["name"]): score["value"] for score in read_json(path)["scores"]}
        except (KeyError, TypeError):
            raise damaged(path, "holds no scores") from None
        if not all(value is None or type(value) in (int, float) for value in scores.values()):
            raise damaged(path, "holds a score that is not a number")
        found[path.stem] = scores
    return found


def lines_of(values: dict[str, Any]) -> list[str]:
    """Return the facts as text, one per line."""
    vocabulary = values["vocabulary"]
    source, target = vocabulary["source"], vocabulary["target"]
    sizes = f"{source['size']:,} {source['kind']} tokens"
    sizes += " for both sides" if vocabulary["joint"] else f" to {target['size']:,} {target['kind']} tokens"
    lines = [
        f"model       {values['folder']}",
        f"family      {values['family']}: {values['paper']}",
        f"parameters  {values['parameters']:,}",
        f"vocabulary  {sizes}, normalized by {source['normalization']}",
        f"settings    {listing(values['settings'])}",
        f"decoding    {listing(values['decoding'])}",
        verification_line(values["verification"]),
    ]
    training = values["training"]
    if training:
        lines.append(
            f"training    {training['step']:,} updates, {training['target_tokens']:,} target tokens, "
            f"{training['flops']:.2e} FLOPs, {training['seconds'] / 60:.1f} minutes"
        )
    else:
        lines.append("training    see the model card, README.md")
    for name, scores in values["evaluations"].items():
        shown = ", ".join(f"{metric} {'∞' if value is None else f'{value:.2f}'}" for metric, value in scores.items())
        lines.append(f"scores      {name}: {shown}")
    return lines


def listing(settings: dict[str, Any]) -> str:
    """Return settings in one line, with the names of the command line."""
    return ", ".join(f"{name.replace('_', '-')} {value}" for name, value in settings.items())


def verification_line(found: dict[str, Any]) -> str:
    """Return the verified files, and the time of verification alone and with loading."""
    what = f"{found['files']} files, {found['megabytes']:.1f} MB, match their SHA-256"
    cost = f"{1000 * found['seconds']:.0f} ms alone, {1000 * found['loading_seconds']:.0f} ms with loading"
    return f"verified    {what}: {cost}"

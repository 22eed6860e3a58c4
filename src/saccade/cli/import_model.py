"""`saccade import`: convert a Hugging Face model to a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade import messages
from saccade.cli.output.output_paths import check_not_part_of_model
from saccade.cli.output.task import task


def import_model(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A Marian or Pegasus model folder of Hugging Face transformers.")
    ],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="A new model folder.")],
) -> None:
    """Import a model from Hugging Face transformers.

    Reads a folder written by `saccade export --format huggingface`, also after fine-tuning in transformers:
    config.json, model.safetensors and the tokenizer files. No code in the folder is executed.

    \b
    saccade import x-huggingface --output x
    saccade translate x < in > out
    """
    from saccade.config import build
    from saccade.decoding.config import DecodingConfig
    from saccade.interop.huggingface_import import load_huggingface
    from saccade.interop.output_folder import check_free
    from saccade.model_folder import ModelFolder, save_model_folder

    check_not_part_of_model("--output", output)
    check_free(output)
    with task("importing") as work:
        found = load_huggingface(folder)
        parameters = sum(parameter.numel() for parameter in found.model.parameters())
        messages.note(f"{found.choice.family}, {parameters:,} parameters, from {folder}")
        settings = found.choice.config.model_dump(mode="json")
        messages.detail("settings: " + ", ".join(f"{name} {value}" for name, value in settings.items()))
        card = f"# Imported model\n\nRead from the Hugging Face folder {folder.name}.\n"
        decoding = build(DecodingConfig, found.decoding, where=str(folder)).model_dump(mode="json")
        model = ModelFolder(found.model, found.choice, found.tokenizers, decoding, card)
        if output.is_dir():
            output.rmdir()  # check_free made sure that it is empty
        save_model_folder(output, model)
    print(f"model: {output}")
    messages.note(f"use it: saccade translate {output} < in > out")
    work.finish("imported", output)

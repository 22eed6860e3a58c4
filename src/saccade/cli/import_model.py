"""`saccade import`: a model of another program as a model folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def import_model(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A Marian or Pegasus model of transformers.")],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="A new model folder.")],
) -> None:
    """Read a model of Hugging Face transformers.

    It takes what `saccade export --format huggingface` wrote, also after it was fine-tuned there and saved again:
    config.json, model.safetensors and the tokenizer's files. Nothing in the folder is run.

    \b
    saccade import x-huggingface --output x
    saccade translate x < in > out
    """
    from saccade.config import build
    from saccade.decoding.config import DecodingConfig
    from saccade.interop.huggingface_import import load_huggingface
    from saccade.interop.output_folder import check_free
    from saccade.model_folder import ModelFolder, save_model_folder

    check_free(output)
    found = load_huggingface(folder)
    parameters = sum(parameter.numel() for parameter in found.model.parameters())
    print(f"{found.choice.family}, {parameters:,} parameters, from {folder}", file=sys.stderr, flush=True)
    card = f"# Imported model\n\nRead from the Hugging Face folder {folder.name}.\n"
    decoding = build(DecodingConfig, found.decoding, where=str(folder)).model_dump(mode="json")
    model = ModelFolder(found.model, found.choice, found.tokenizers, decoding, card)
    if output.is_dir():
        output.rmdir()  # an empty one
    save_model_folder(output, model)
    print(f"model: {output}")
    print(f"use it: saccade translate {output} < in > out", file=sys.stderr)

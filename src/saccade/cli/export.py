"""`saccade export`: convert a model for Hugging Face transformers, ONNX Runtime or CTranslate2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from saccade import messages
from saccade.cli.options.model import Run
from saccade.cli.output.output_paths import check_not_part_of_model
from saccade.cli.output.task import task

Format = Literal["huggingface", "onnx", "ctranslate2"]

USE: dict[Format, str] = {
    "huggingface": "open it with AutoModelForSeq2SeqLM.from_pretrained and AutoTokenizer.from_pretrained",
    "onnx": "run encoder.onnx once and decoder.onnx for each token; saccade.json describes their inputs",
    "ctranslate2": "open it with ctranslate2.Translator, its tokenizer with tokenizers (docs/guide/exporting.md)",
}


def export(
    run: Run,
    format_: Annotated[Format, typer.Option("--format", help="Format of the exported model.")],
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder.")],
) -> None:
    """Export a model for another program.

    Formats: Hugging Face transformers, ONNX and CTranslate2. Outputs are equal to those of Saccade. If the format
    cannot express the model, the error names the setting that prevents it.

    \b
    saccade export runs/x --format huggingface --output x-huggingface
    saccade export runs/x --format onnx --output x-onnx
    """
    from saccade.config import build
    from saccade.decoding.config import DecodingConfig
    from saccade.interop.output_folder import check_free, output_folder
    from saccade.model_folder import GENERATION, find_model_folder, load_model_folder

    check_not_part_of_model("--output", output)
    check_free(output)
    found = find_model_folder(run)
    with task(f"exporting to {format_}") as work, output_folder(output) as path:
        folder = load_model_folder(found)
        decoding = build(DecodingConfig, folder.generation, where=str(found / GENERATION)).model_dump(mode="json")
        parameters = sum(parameter.numel() for parameter in folder.model.parameters())
        messages.note(f"{format_}: {folder.choice.family}, {parameters:,} parameters, from {found}")
        if format_ == "huggingface":
            from saccade.interop.huggingface_export import save_huggingface

            save_huggingface(path, folder.model, folder.choice.config, folder.tokenizers, decoding)
        elif format_ == "onnx":
            from saccade.interop.onnx import save_onnx

            save_onnx(path, folder.model, folder.choice.family, folder.tokenizers)
        else:
            from saccade.interop.ctranslate2 import save_ctranslate2

            save_ctranslate2(path, folder.model, folder.choice.config, folder.tokenizers)  # type: ignore[arg-type]
    for file in sorted(output.iterdir()):
        messages.detail(f"{file}: {file.stat().st_size:,} bytes")
    print(f"{format_}: {output}")
    messages.note(USE[format_])
    work.finish("exported", output)

"""`saccade models`: list the presets of every model family."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from saccade.cli.output.json_output import JsonFile, write_json_output
from saccade.cli.output.table import format_table

PAPER_VOCABULARY = 37_000  # joint vocabulary of Vaswani et al. 2017, to compare with the paper's parameter counts


def models(
    vocabulary: Annotated[
        int, typer.Option(min=5, help="Size of the joint vocabulary for the parameter counts.")
    ] = PAPER_VOCABULARY,
    json_file: JsonFile = None,
) -> None:
    """List the models that can be trained."""
    from saccade.models.registry import load_family, presets

    rows = [
        {
            "preset": name,
            "family": choice.family,
            "parameters": count_parameters(choice, vocabulary),
            "layers": layers(choice.config.model_dump()),
            "width": choice.config.width,
            "paper": load_family(choice.family).paper,
        }
        for name, choice in presets().items()
    ]
    if json_file is not None:
        write_json_output(json_file, {"vocabulary": vocabulary, "presets": rows})
        return
    header = ["preset", "family", "parameters", "layers", "width", "paper"]
    cells = [[f"{row[name]:,}" if name == "parameters" else str(row[name]) for name in header] for row in rows]
    print(format_table([header, *cells], right=("parameters", "width")))
    print(f"\nparameters with a joint vocabulary of {vocabulary:,}; to train one: saccade train --preset NAME …")


def count_parameters(choice: Any, vocabulary: int) -> int:
    """Return the number of parameters, counted on the meta device without allocating memory."""
    import torch

    from saccade.interface import VocabularySizes

    with torch.device("meta"):
        model = choice.build(VocabularySizes(vocabulary, vocabulary, joint=True))
    return sum(parameter.numel() for parameter in model.parameters())


def layers(settings: dict[str, Any]) -> str:
    """Layer counts in the order of the settings: 6+6 for 6 encoder and 6 decoder layers."""
    return "+".join(str(value) for name, value in settings.items() if name.endswith("layers"))

"""`saccade models`: the named sizes of every family."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from saccade.cli.json_output import write_json_output
from saccade.cli.table import table

PAPER_VOCABULARY = 37_000  # the joint vocabulary of Vaswani et al. 2017, so that the counts are those of the paper


def models(
    vocabulary: Annotated[
        int, typer.Option(min=5, help="Joint vocabulary at which parameters are counted.")
    ] = PAPER_VOCABULARY,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="As JSON; without a .json file to stdout.")
    ] = None,
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
    print(table([header, *cells], right=("parameters", "width")))
    print(f"\nparameters at a joint vocabulary of {vocabulary:,}; train one with: saccade train --preset NAME …")


def count_parameters(choice: Any, vocabulary: int) -> int:
    """How many parameters the model has, counted without giving them memory."""
    import torch

    from saccade.interface import VocabularySizes

    with torch.device("meta"):
        model = choice.build(VocabularySizes(vocabulary, vocabulary, joint=True))
    return sum(parameter.numel() for parameter in model.parameters())


def layers(settings: dict[str, Any]) -> str:
    """Layer counts in the order of the settings: 6+6 for an encoder and a decoder."""
    return "+".join(str(value) for name, value in settings.items() if name.endswith("layers"))

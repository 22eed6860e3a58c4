"""`saccade attention`: where the model looks while it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.alignment import draw, save_heads_png, save_png
from saccade.cli.device import Device
from saccade.cli.ensemble import Ensemble, EnsembleMean, EnsembleWeights, system_of
from saccade.cli.json_output import write_json_output
from saccade.cli.settings import decoding_settings
from saccade.errors import UsageError


def attention(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory or a model folder.")],
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="What the model reads.")],
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model writes; without it, its own output.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="A heat map as a picture.")] = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="With --png: every head of every cross layer, not their mean.")
    ] = False,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="Pieces and weights; without a .json file to stdout.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam that finds the output.")] = None,
    ensemble: Ensemble = None,
    ensemble_mean: EnsembleMean = None,
    ensemble_weights: EnsembleWeights = None,
    device: Device = "auto",
) -> None:
    """Show where a model looks while it writes.

    Rows are what it writes, columns what it reads; dark is much attention. The heads of an ensemble are those of all
    its models, which must share one source tokenizer.

    \b
    saccade attention runs/x "a sentence"
    saccade attention runs/x "a sentence" --png heads.png --heads
    """
    if heads and png is None:
        raise UsageError("--heads draws a picture", do="say where to: --png heads.png")
    translator = system_of(run, ensemble, ensemble_mean, ensemble_weights).load(device)
    settings = decoding_settings(translator, context, {"beam": beam})
    explanation = translator.explain(sentence, target, **settings.model_dump())
    if png is not None:
        (save_heads_png if heads else save_png)(explanation, png)
    if json_file is not None:
        write_json_output(json_file, explanation.to_json())
    if png is None and json_file is None:
        print(f"{explanation.source}\n→ {explanation.target}\n")
        print(draw(explanation))

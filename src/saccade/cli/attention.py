"""`saccade attention`: show the attention weights of one translation."""

from __future__ import annotations

from typing import Annotated

import typer

from saccade.cli.input.sentences import check_sentence
from saccade.cli.options.decoding_help import describe_decoding
from saccade.cli.options.help_page import HelpPage
from saccade.cli.options.model import Device, EnsembleOptions, ModelOrEnsemble, Run
from saccade.cli.options.settings import decoding_settings
from saccade.cli.output.alignment import draw, save_heads_plot, save_plot
from saccade.cli.output.atomic_file import atomic_write
from saccade.cli.output.json_output import STANDARD_OUTPUT, JsonFile, write_json_output
from saccade.cli.output.output_paths import check_outputs
from saccade.cli.output.plot_file import PlotFile
from saccade.cli.output.task import task
from saccade.errors import UsageError

ATTENTION_PAGE = HelpPage(
    describe_decoding,
    ("--plot", "--heads", "--words", "--target", "--json", "--beam", "--ensemble", "--device"),
    "Show all options and exit: decoding, ensemble weights.",
    {"--beam": "decoding.beam"},
)


def attention(
    context: typer.Context,
    run: Run,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="The input sentence.")],
    target: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The output to explain.  [default: the translation]")
    ] = None,
    plot: PlotFile = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="With --plot: one heat map per cross-attention head, not their mean.")
    ] = False,
    words: Annotated[
        bool, typer.Option("--words", help="Merge pieces into words: sum over source pieces, mean over output pieces.")
    ] = False,
    json_file: JsonFile = None,
    beam: Annotated[int | None, typer.Option(help="Beam size of the translation.")] = None,
    *,
    ensemble: EnsembleOptions,
    device: Device = "auto",
) -> None:
    """Show the attention weights of one translation.

    Rows are output tokens, columns source tokens. The scale goes from 0 to 1, and the weight of uniform attention is
    marked. An ensemble shows the heads of all its models, which must share one source tokenizer.

    \b
    saccade attention runs/x "a sentence"
    saccade attention runs/x "a sentence" --words --plot alignment.png
    saccade attention runs/x "a sentence" --plot heads.svg --heads
    """
    if heads and plot is None:
        raise UsageError("--heads needs --plot", hint="name the file to write: --plot heads.png")
    check_outputs({"--plot": plot, "--json": json_file})
    for text in (sentence, target or ""):
        check_sentence(text)
    with task("explaining") as work:
        translator = ModelOrEnsemble.from_options(run, ensemble).load(device)
        settings = decoding_settings(translator, context, {"beam": beam})
        explanation = translator.explain(sentence, target, **settings.model_dump())
        if words:
            explanation = explanation.merge_words()
        if plot is not None:
            with atomic_write(plot) as path:
                (save_heads_plot if heads else save_plot)(explanation, path)
    if json_file is not None:
        write_json_output(json_file, explanation.to_json())
    written = [str(path) for path in (plot, json_file) if path is not None and str(path) != STANDARD_OUTPUT]
    work.finish("explained one translation", ", ".join(written) or None)
    if plot is None and json_file is None:
        print(f"{explanation.source}\n→ {explanation.target}\n")
        print(draw(explanation))

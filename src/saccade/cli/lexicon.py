"""`saccade lexicon`: which word translates which, learnt from pairs; and the `--lexicon` option of what decodes."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from saccade.cli.output_file import check_output
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.data.config import DataConfig
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translator import Translator

LexiconFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --decoding.replace-unknown lexicon: what `saccade lexicon` wrote."),
]


def lexicon(
    source: Annotated[
        list[Path],
        typer.Option(metavar="FILE", help="Source lines, or pairs, as in `saccade train`. May be given several times."),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="Write the lexicon here, as .tsv: a new file.")],
    target: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Target lines, one for each source line; one file for each --source."),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Of expectation maximisation.")] = 5,
    min_probability: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out words that a source word becomes less often.")
    ] = 0.1,
    best: Annotated[int, typer.Option(min=1, metavar="N", help="The N most probable words of each source word.")] = 1,
    source_column: Annotated[str, typer.Option(metavar="NAME", help="Where the source stands in pairs.")] = "source",
    target_column: Annotated[str, typer.Option(metavar="NAME", help="Where the target stands in pairs.")] = "target",
    normalization: Annotated[
        Literal["nfc", "nfkc", "none"], typer.Option(help="Of the texts: as in the training, --data.normalization.")
    ] = "nfc",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --output if it is there already.")] = False,
) -> None:
    """Learn a lexicon of words from pairs.

    It is learnt by IBM Model 1, with words between spaces as in `--data.tokenizer word`: one line for each pair of
    words, with its probability.

    \b
    saccade lexicon --source a.en --target a.de --output lexicon.tsv
    saccade translate runs/x --decoding.replace-unknown lexicon --lexicon lexicon.tsv < in > out
    """
    config = data_config(
        {
            "source": [str(path) for path in source],
            "target": [str(path) for path in target or ()],
            "source_column": source_column,
            "target_column": target_column,
            "normalization": normalization,
        }
    )
    check_place(output, [*source, *(target or ())], overwrite=overwrite)
    write(config, output, iterations=iterations, min_probability=min_probability, best=best)


def check_place(output: Path, inputs: list[Path], *, overwrite: bool) -> None:
    """Refuse a place for the lexicon before it is learnt: one that cannot be written, or that holds something else."""
    if output.suffix == ".gz":
        raise UsageError("a lexicon is written as plain text", do="let the name of --output end in .tsv")
    check_output(output)
    if not output.exists():
        return
    if any(path.exists() and output.samefile(path) for path in inputs):
        raise UsageError(f"{output} is read and cannot be the output too", do="choose another --output")
    if not output.is_file():
        raise SaccadeError("is no file that could be replaced", where=str(output), do="choose another --output")
    if not overwrite:
        raise SaccadeError("is there already", where=str(output), do="choose another --output, or add --overwrite")


def data_config(values: dict[str, Any]) -> DataConfig:
    """The settings that name the data; what contradicts itself in them is a fault of usage."""
    from saccade.config import build
    from saccade.data.config import DataConfig

    try:
        return build(DataConfig, values, where="data")
    except SaccadeError as error:
        raise UsageError(error.what, do=error.do) from None


def write(config: DataConfig, output: Path, *, iterations: int, min_probability: float, best: int) -> None:
    """Learn and write a lexicon; what was done goes to the standard error."""
    from saccade.data.ibm_model import learn_translations
    from saccade.data.inputs import Inputs
    from saccade.data.lexicon import CorpusPairs, write_lexicon

    def progress(iteration: int, log_likelihood: float) -> None:
        print(f"iteration {iteration}: perplexity {math.exp(-log_likelihood):.2f} a word", file=sys.stderr)

    inputs = Inputs(config)
    table = learn_translations(
        CorpusPairs(config), iterations=iterations, normalization=config.normalization, progress=progress
    )
    inputs.check_unchanged()
    entries = table.best(best, min_probability)
    if not entries:
        raise SaccadeError(
            f"no pair of words has a probability of {min_probability:g}",
            do="lower --min-probability, or give more data",
        )
    write_lexicon(output.resolve(), entries)  # a link stays one
    count = len({entry.source for entry in entries})
    print(f"{count:,} of {len(table.source_words) - 1:,} source words: {output}", file=sys.stderr)


def give_lexicon(translator: Translator, settings: DecodingConfig, path: Path | None) -> None:
    """Read the lexicon of a translator, and refuse what cannot be done or would do nothing, before it decodes."""
    from saccade.data.lexicon import read_lexicon

    if path is not None and settings.replace_unknown != "lexicon":
        raise UsageError("--lexicon is not used", do="add --decoding.replace-unknown lexicon, or leave --lexicon out")
    if path is None and settings.replace_unknown == "lexicon":
        raise UsageError("unknown words should be looked up, and no lexicon is named", do="give --lexicon FILE")
    translator.lexicon = None if path is None else read_lexicon(path)
    translator.check_replacement(settings)

"""`saccade lexicon`: which word translates which, learnt from pairs; and the `--lexicon` option of what decodes."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from saccade.cli.output_file import check_output
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.data.config import DataConfig
    from saccade.data.tokenizers.tokenizer_pair import Tokenizers
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translator import Translator

LexiconFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --decoding.replace-unknown lexicon: what `saccade lexicon` wrote."),
]

ShortlistFile = Annotated[
    Path | None,
    typer.Option(
        "--vocabulary-shortlist",
        metavar="FILE",
        help="Consider only likely translations of the input's pieces: what `saccade lexicon --pieces RUN` wrote.",
    ),
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
    pieces: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Of this model's pieces instead of words: for --vocabulary-shortlist."),
    ] = None,
    min_probability: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Leave out words that a source word becomes less often.  [default: 0.1, of pieces 0.0001]",
        ),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="The N most probable words of each source word.  [default: 1, of pieces 50]"
        ),
    ] = None,
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

    Of pieces: which ones a model should consider for each piece of a text.

    \b
    saccade lexicon --pieces runs/x --source a.en --target a.de --output shortlist.tsv
    saccade translate runs/x --vocabulary-shortlist shortlist.tsv < in > out
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
    wanted = WORDS if pieces is None else PIECES
    wanted = Wanted(
        wanted.best if best is None else best,
        wanted.min_probability if min_probability is None else min_probability,
    )
    write(config, output, wanted, iterations=iterations, tokenizers=None if pieces is None else tokenizers_of(pieces))


class Wanted(NamedTuple):
    """What a lexicon should hold."""

    best: int
    min_probability: float


WORDS = Wanted(1, 0.1)  # what stands for an unknown word must be right
PIECES = Wanted(50, 0.0001)  # what a search considers must be complete


def tokenizers_of(run: Path) -> Tokenizers:
    """Those of a model whose vocabulary is large enough to choose from."""
    from saccade.data.tokenizers.tokenizer_pair import load_tokenizers
    from saccade.model_folder import find_model_folder

    tokenizers = load_tokenizers(find_model_folder(run))
    for tokenizer in tokenizers:
        if tokenizer.kind in ("char", "byte"):
            raise SaccadeError(
                f"a vocabulary of {tokenizer.kind}s is so small that a shortlist gains nothing",
                where=str(run),
                do="leave --vocabulary-shortlist out",
            )
    return tokenizers


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


def write(
    config: DataConfig, output: Path, wanted: Wanted, *, iterations: int, tokenizers: Tokenizers | None = None
) -> None:
    """Learn and write a lexicon; what was done goes to the standard error."""
    from saccade.data.lexicon.ibm_model_1 import learn_translations
    from saccade.data.lexicon.lexicon_file import CorpusPairs, PiecePairs, write_lexicon
    from saccade.data.reading.input_files import Inputs

    def progress(iteration: int, log_likelihood: float) -> None:
        print(f"iteration {iteration}: perplexity {math.exp(-log_likelihood):.2f} a word", file=sys.stderr)

    inputs = Inputs(config)
    words = CorpusPairs(config)
    table = learn_translations(
        words if tokenizers is None else PiecePairs(words, tokenizers),
        iterations=iterations,
        normalization=config.normalization if tokenizers is None else None,
        progress=progress,
    )
    inputs.check_unchanged()
    entries = table.best(*wanted)
    if not entries:
        raise SaccadeError(
            f"no pair of words has a probability of {wanted.min_probability:g}",
            do="lower --min-probability, or give more data",
        )
    write_lexicon(output.resolve(), entries)  # a link stays one
    count = len({entry.source for entry in entries})
    kind = "words" if tokenizers is None else "pieces"
    print(f"{count:,} of {len(table.source_words) - 1:,} source {kind}: {output}", file=sys.stderr)


def give_lexicons(
    translator: Translator, settings: DecodingConfig, path: Path | None, shortlist: Path | None = None
) -> None:
    """Read the lexicons of a translator, and refuse what cannot be done or would do nothing, before it decodes."""
    from saccade.data.lexicon.lexicon_file import read_lexicon
    from saccade.inference.shortlist import read_shortlist

    if path is not None and settings.replace_unknown != "lexicon":
        raise UsageError("--lexicon is not used", do="add --decoding.replace-unknown lexicon, or leave --lexicon out")
    if path is None and settings.replace_unknown == "lexicon":
        raise UsageError("unknown words should be looked up, and no lexicon is named", do="give --lexicon FILE")
    translator.lexicon = None if path is None else read_lexicon(path)
    translator.check_replacement(settings)
    translator.shortlist = None if shortlist is None else read_shortlist(shortlist, translator.tokenizers)

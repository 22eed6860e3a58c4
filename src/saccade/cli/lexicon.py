"""`saccade lexicon`: learn a translation lexicon from sentence pairs with IBM Model 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from saccade import messages
from saccade.cli.options.training_run import check_targets
from saccade.cli.output.output_paths import check_outputs
from saccade.cli.output.task import task
from saccade.errors import SaccadeError, UsageError
from saccade.file_names import without_links

if TYPE_CHECKING:
    from saccade.data.config import DataConfig
    from saccade.data.tokenizers.tokenizer_pair import Tokenizers


def lexicon(
    source: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE", help="Source sentences, or sentence pairs, as in `saccade train`. Can be repeated."
        ),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="The lexicon, a new .tsv file.")],
    target: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Target sentences, one per source line; one file for each --source."),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of expectation maximization.")] = 5,
    pieces: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Use the tokens of this model instead of words: for --vocabulary-shortlist."),
    ] = None,
    min_probability: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Leave out translations that are less probable.  [default: 0.1; 0.0001 with --pieces]",
        ),
    ] = None,
    best: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Keep the N most probable translations.  [default: 1; 50 with --pieces]"),
    ] = None,
    source_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the source sentence in files of pairs.")
    ] = "source",
    target_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the target sentence in files of pairs.")
    ] = "target",
    normalization: Annotated[
        Literal["nfc", "nfkc", "none"],
        typer.Option(help="Unicode normalization; use the --data.normalization of the model."),
    ] = "nfc",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace --output if it exists.")] = False,
) -> None:
    """Learn a translation lexicon from sentence pairs.

    IBM Model 1 over words split at spaces, as in `--data.tokenizer word`. The lexicon has one line per word pair, with
    its probability.

    \b
    saccade lexicon --source a.en --target a.de --output lexicon.tsv
    saccade translate runs/x --decoding.replace-unknown lexicon --lexicon lexicon.tsv < in > out

    With --pieces, it lists the output tokens that a model considers for each input token.

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
    check_lexicon_path(output, [*source, *(target or ())], overwrite=overwrite)
    defaults = WORDS if pieces is None else PIECES
    limits = EntryLimits(
        defaults.best if best is None else best,
        defaults.min_probability if min_probability is None else min_probability,
    )
    write(config, output, limits, iterations=iterations, tokenizers=None if pieces is None else tokenizers_of(pieces))


class EntryLimits(NamedTuple):
    """Which entries a lexicon keeps."""

    best: int
    min_probability: float


WORDS = EntryLimits(1, 0.1)  # precision: the entry replaces an unknown word
PIECES = EntryLimits(50, 0.0001)  # recall: the search considers only these


def tokenizers_of(run: Path) -> Tokenizers:
    """Return the tokenizers of a model; a character or byte vocabulary is an error."""
    from saccade.data.tokenizers.tokenizer_pair import load_tokenizers
    from saccade.model_folder import find_model_folder

    tokenizers = load_tokenizers(find_model_folder(run))
    for tokenizer in tokenizers:
        if tokenizer.kind in ("char", "byte"):
            raise SaccadeError(
                f"a {tokenizer.kind} vocabulary is too small for a shortlist to help",
                where=str(run),
                hint="leave --vocabulary-shortlist out",
            )
    return tokenizers


def check_lexicon_path(output: Path, inputs: list[Path], *, overwrite: bool) -> None:
    """Raise an error before training if the lexicon cannot be written, or would replace another file."""
    if output.suffix == ".gz":
        raise UsageError("a lexicon is written as plain text", hint="choose an --output that ends in .tsv")
    check_outputs({"--output": output}, inputs)
    if not output.exists():
        return
    if not output.is_file():
        raise SaccadeError("is not a regular file", where=str(output), hint="choose another --output")
    if not overwrite:
        raise SaccadeError("already exists", where=str(output), hint="choose another --output, or add --overwrite")


def data_config(values: dict[str, Any]) -> DataConfig:
    """Return the data config; invalid values are a UsageError."""
    from saccade.config import build
    from saccade.data.config import DataConfig

    try:
        return build(DataConfig, values, where="data")
    except SaccadeError as error:
        raise UsageError(error.what, hint=error.hint) from None


def write(
    config: DataConfig, output: Path, limits: EntryLimits, *, iterations: int, tokenizers: Tokenizers | None = None
) -> None:
    """Learn and write a lexicon; progress goes to stderr."""
    from saccade.data.lexicon.ibm_model_1 import learn_translations
    from saccade.data.lexicon.lexicon_file import write_lexicon
    from saccade.data.reading.input_files import InputFiles
    from saccade.data.reading.pair_stream import TrainingPairs
    from saccade.data.tokenizers.tokenizer_pair import PiecePairs

    def progress(iteration: int, log_likelihood: float) -> None:
        messages.note(f"iteration {iteration}: perplexity {math.exp(-log_likelihood):.2f} per word")
        work.advance()

    inputs = InputFiles(config)
    check_targets(config)
    words = TrainingPairs(config)
    with task("learning", iterations, "iterations") as work:
        table = learn_translations(
            words if tokenizers is None else PiecePairs(words, tokenizers),
            iterations=iterations,
            normalization=config.normalization if tokenizers is None else None,
            progress=progress,
        )
        inputs.check_unchanged()
        entries = table.best(*limits)
        if not entries:
            raise SaccadeError(
                f"no word pair has a probability of at least {limits.min_probability:g}",
                hint="lower --min-probability, or give more data",
            )
        write_lexicon(without_links(output), entries)  # keep a symbolic link and replace the file it points to
    kind = "words" if tokenizers is None else "pieces"
    messages.detail(f"{len(entries):,} entries from {len(table.keys):,} pairs of {kind}")
    count = len({entry.source for entry in entries})
    work.finish(f"learned {count:,} of {len(table.source_words) - 1:,} source {kind}", output)

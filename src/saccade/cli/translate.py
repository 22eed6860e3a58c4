"""`saccade translate`: one line in, one line out."""

from __future__ import annotations

import contextlib
import json
import math
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from saccade.cli.alignment import hard_alignment
from saccade.cli.device import Device
from saccade.cli.engine import Engine, Precision
from saccade.cli.ensemble import Ensemble, EnsembleMean, EnsembleWeights, system_of
from saccade.cli.lexicon import LexiconFile, ShortlistFile, give_lexicons
from saccade.cli.settings import decoding_settings
from saccade.cli.standard_input import read_standard_input
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translator import Candidate, Translation, Translator

SEPARATOR = " ||| "


def translate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory or a model folder.")],
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Read from here instead of the standard input.")
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write here instead of to the standard output.")
    ] = None,
    output_format: Annotated[
        Literal["text", "jsonl", "tsv"],
        typer.Option("--format", help="Lines of text; one JSON object a line; source and translation with a TAB."),
    ] = "text",
    scores: Annotated[bool, typer.Option("--scores", help="Add the score of each output.")] = False,
    alignment: Annotated[
        bool, typer.Option("--alignment", help="Add which source piece each target piece looks at: 0-0 1-2 …")
    ] = False,
    prefix: Annotated[
        Path | None, typer.Option(metavar="FILE", help="How each output must begin, line by line; may be empty.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam; 1 is greedy search.")] = None,
    nbest: Annotated[int | None, typer.Option(help="Outputs for each line, best first.")] = None,
    sample: Annotated[bool | None, typer.Option("--sample", help="Draw at random instead of searching.")] = None,
    temperature: Annotated[float | None, typer.Option(help="With --sample: below 1 is safer, above 1 wilder.")] = None,
    top_k: Annotated[int | None, typer.Option(help="With --sample: among the k most probable tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="With --sample: among the tokens that hold this share.")] = None,
    seed: Annotated[int | None, typer.Option(help="With --sample: the same seed draws the same outputs.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Input tokens at once; changes speed, not results.")] = None,
    lexicon: LexiconFile = None,
    vocabulary_shortlist: ShortlistFile = None,
    ensemble: Ensemble = None,
    ensemble_mean: EnsembleMean = None,
    ensemble_weights: EnsembleWeights = None,
    engine: Engine = "auto",
    precision: Precision = "float32",
    device: Device = "auto",
) -> None:
    """Translate raw text: one line in, one line out.

    \b
    saccade translate runs/x < in > out
    saccade translate runs/x --input in.txt --format jsonl --nbest 5 --scores
    saccade translate runs/x --ensemble runs/y --ensemble runs/z < in > out

    Lines keep their order, and an empty one stays empty; all but the text goes to stderr. With --nbest, lines of text
    begin with the number of their input line, from 0; further fields follow after |||.
    """
    translator = system_of(run, ensemble, ensemble_mean, ensemble_weights).load(device, engine, precision)
    if alignment:
        translator.check_explainable()
    settings = decoding_settings(
        translator,
        context,
        {
            "beam": beam,
            "nbest": nbest,
            "sample": sample,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
            "batch_tokens": batch_tokens,
        },
    )
    give_lexicons(translator, settings, lexicon, vocabulary_shortlist)
    translator.engine(settings, prefixes=prefix is not None)  # refuses before anything is read
    extras = Extras(translator, scores=scores, alignment=alignment)
    render = FORMATS[output_format]
    check_output(output_file, input_file, prefix)
    translations = translate_lines(translator, settings, input_file, prefix, scores=scores)
    first = list(islice(translations, 1))  # what cannot be read leaves an older output as it is
    with opened(output_file) as file:
        for index, translation in enumerate(chain(first, translations)):
            record = Record(index, translation.source, extras.of(translation), numbered=settings.nbest > 1)
            file.write("".join(f"{line}\n" for line in render(record)))  # at once: Ctrl-C leaves no half of a line


def translate_lines(
    translator: Translator, settings: DecodingConfig, input_file: Path | None, prefix: Path | None, *, scores: bool
) -> Iterator[Translation]:
    """The translations of a file or of the standard input; a person at a keyboard gets each one at once."""
    from saccade.data.reading.pair_files import read_lines

    typed = input_file is None and sys.stdin.isatty()
    lines = read_lines(input_file) if input_file is not None else read_standard_input()
    if typed and prefix is None:
        print("one sentence a line; Ctrl-D ends", file=sys.stderr)
        for index, line in enumerate(lines):
            yield from translator.translate_window([line], settings, first=index, scores=scores)
        return
    prefixes = read_lines(prefix) if prefix is not None else None
    at_hand = input_is_at_hand if input_file is None else lambda: True
    yield from translator.stream(lines, settings, prefixes, scores=scores, at_hand=at_hand)
    if prefixes is not None and next(prefixes, None) is not None:
        raise SaccadeError("holds more lines than the input", where=str(prefix), do="give one prefix a line")


def input_is_at_hand() -> bool:
    """Whether the standard input has something to read; a pipe may have nothing for as long as its writer likes."""
    try:
        return bool(select.select([sys.stdin.buffer], [], [], 0)[0])
    except (OSError, TypeError, ValueError):  # it is no file, or the system can only wait for sockets
        return False


def check_output(output: Path | None, *inputs: Path | None) -> None:
    """Refuse to write over what is read."""
    for file in inputs:
        if output is not None and file is not None and output.exists() and file.exists() and output.samefile(file):
            raise UsageError(f"the output would overwrite its input {file}", do="give --output another file")


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[IO[str]]:
    """The file to write to, or the standard output."""
    if path is None:
        yield sys.stdout
    else:
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file


@dataclass(frozen=True)
class Extras:
    """What is shown of an output beside its text."""

    translator: Translator
    scores: bool
    alignment: bool

    def of(self, translation: Translation) -> list[dict[str, Any]]:
        """The fields of every candidate."""
        return [self.fields(translation.source, candidate) for candidate in translation.candidates]

    def fields(self, source: str, candidate: Candidate) -> dict[str, Any]:
        """The fields of one candidate; JSON has no infinity, so an impossible output's score is null."""
        fields: dict[str, Any] = {"text": candidate.text}
        if self.scores:
            fields |= {
                "score": candidate.score if math.isfinite(candidate.score) else None,
                "log_probability": candidate.log_probability if math.isfinite(candidate.log_probability) else None,
                "token_log_probabilities": list(candidate.token_log_probabilities),
                "pieces": list(candidate.pieces),
            }
        if self.alignment:
            fields |= self.alignment_fields(source, candidate)
        return fields

    def alignment_fields(self, source: str, candidate: Candidate) -> dict[str, Any]:
        """The pieces of both sides and which belong together; an empty output has none."""
        if not candidate.tokens:
            return {"source_pieces": [], "target_pieces": [], "alignment": ""}
        explanation = self.translator.explain(source, candidate.tokens)
        return {
            "source_pieces": list(explanation.source_pieces[:-1]),
            "target_pieces": list(explanation.target_pieces[:-1]),
            "alignment": hard_alignment(explanation),
        }


@dataclass(frozen=True)
class Record:
    """One input with its outputs, ready to be written."""

    index: int
    source: str
    candidates: Sequence[Mapping[str, Any]]
    numbered: bool  # several outputs for each input were asked for


def text_lines(record: Record) -> Iterable[str]:
    """A line a candidate; where there may be several, each begins with the number of its input."""
    numbers = [str(record.index)] if record.numbered else []
    return [SEPARATOR.join([*numbers, *columns(candidate)]) for candidate in record.candidates]


def tsv_lines(record: Record) -> Iterable[str]:
    """A line a candidate, with its source first."""
    return ["\t".join([record.source.replace("\t", " "), *columns(candidate)]) for candidate in record.candidates]


def jsonl_lines(record: Record) -> Iterable[str]:
    """One object an input: the best candidate's fields, and where there may be several, all of them."""
    values: dict[str, Any] = {"source": record.source, **record.candidates[0]}
    if record.numbered:
        values["candidates"] = record.candidates
    return [json.dumps(values, ensure_ascii=False)]


def columns(candidate: Mapping[str, Any]) -> list[str]:
    """Text, score and alignment, as far as they are there."""
    shown = [candidate["text"]]
    if "score" in candidate:
        shown.append("-inf" if candidate["score"] is None else f"{candidate['score']:.4f}")
    if "alignment" in candidate:
        shown.append(candidate["alignment"])
    return shown


FORMATS: dict[str, Callable[[Record], Iterable[str]]] = {
    "text": text_lines,
    "tsv": tsv_lines,
    "jsonl": jsonl_lines,
}

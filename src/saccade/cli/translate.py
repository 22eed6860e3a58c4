"""`saccade translate`: translate text line by line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from saccade import messages
from saccade.cli.input.sentences import SentenceInput, is_standard, standard_input_is_ready
from saccade.cli.options.decoding_help import SHORTCUTS, describe_decoding
from saccade.cli.options.help_page import HelpPage
from saccade.cli.options.model import Device, EngineOptions, EnsembleOptions, LexiconOptions, ModelOrEnsemble, Run
from saccade.cli.options.settings import decoding_settings
from saccade.cli.output.alignment import hard_alignment
from saccade.cli.output.output_paths import check_outputs
from saccade.cli.output.record_writer import RecordWriter, open_output
from saccade.cli.output.task import task
from saccade.errors import SaccadeError
from saccade.inference.translation import Candidate, Part

if TYPE_CHECKING:
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translation import Translation
    from saccade.inference.translator import Translator

SEPARATOR = " ||| "

TRANSLATE_PAGE = HelpPage(
    describe_decoding,
    (
        *("--input", "--output", "--format", "--beam", "--nbest", "--scores", "--alignment", "--sample"),
        *("--decoding.length-alpha", "--decoding.max-length", "--decoding.replace-unknown", "--ensemble"),
        *("--precision", "--device", "--batch-tokens"),
    ),
    "Show all options and exit: sampling, length and coverage penalties, forced prefixes, lexicons and shortlists, "
    "ensemble weights, engines.",
    SHORTCUTS,
)


def translate(
    context: typer.Context,
    run: Run,
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="[SENTENCE]...", help="Translate these instead of stdin.")
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Read from FILE instead of stdin, which is `-`.")
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to FILE instead of stdout, which is `-`.")
    ] = None,
    output_format: Annotated[
        Literal["text", "jsonl", "tsv"],
        typer.Option("--format", help="Text lines; one JSON object per line; or source TAB translation."),
    ] = "text",
    scores: Annotated[bool, typer.Option("--scores", help="Add the score of each output.")] = False,
    alignment: Annotated[
        bool,
        typer.Option("--alignment", help="Add the source token with most attention for each target token: 0-0 1-2 …"),
    ] = False,
    prefix: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Force the beginning of each output: one prefix per line, which may be empty."
        ),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy search.")] = None,
    nbest: Annotated[int | None, typer.Option(help="Number of outputs per line, best first.")] = None,
    sample: Annotated[bool | None, typer.Option("--sample", help="Sample from the model instead of searching.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="With --sample: below 1 sharpens the distribution, above 1 flattens it.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="With --sample: sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="With --sample: sample from the smallest set of tokens with this probability.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="With --sample: random seed; the same seed gives the same outputs.")
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(help="Input tokens per batch, 0 for the default; changes speed, not results."),
    ] = None,
    *,
    lexicons: LexiconOptions,
    ensemble: EnsembleOptions,
    engine: EngineOptions,
    device: Device = "auto",
) -> None:
    """Translate text line by line.

    \b
    saccade translate runs/x "a sentence"
    saccade translate runs/x < in > out
    saccade translate runs/x --input in.txt --format jsonl --nbest 5 --scores
    saccade translate runs/x --ensemble runs/y --ensemble runs/z < in > out

    Outputs keep the order of the input lines, and an empty line stays empty. A line that is longer than the training
    data is split at sentence ends. Messages go to stderr. With --nbest, each output line starts with the number of its
    input line, from 0; fields are separated by |||.
    """
    source, output_file = SentenceInput.of(sentences, input_file), None if is_standard(output_file) else output_file
    check_outputs({"--output": output_file}, [source.file, prefix, *lexicons.files()])
    translator = ModelOrEnsemble.from_options(run, ensemble).load(device, engine.engine, engine.precision)
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
    lexicons.load(translator, settings)
    chosen = translator.engine(settings, prefixes=prefix is not None)  # raises an error before any input is read
    messages.detail(f"engine: {chosen.name}")
    fields = OutputFields(translator, scores=scores, alignment=alignment)
    render = FORMATS[output_format]
    with task("translating", source.count(), "lines", bar=not shows_results(output_file)) as work:
        translations = translate_lines(translator, settings, source, prefix, scores=scores)
        first = list(islice(translations, 1))  # an unreadable input is reported before the output file is truncated
        with open_output(output_file) as file:
            writer = RecordWriter(file)
            try:
                for index, translation in enumerate(chain(first, translations)):
                    record = Record(index, translation.source, fields.of_all(translation), numbered=settings.nbest > 1)
                    writer.write("".join(f"{line}\n" for line in render(record)))
                    work.advance()
            except KeyboardInterrupt:
                work.done = writer.complete()
                work.written = f"{output_file or 'stdout'} holds the first {work.done:,}"
                raise
    if not source.interactive:
        work.finish(f"translated {work.done:,} line{'' if work.done == 1 else 's'}", output_file)


def shows_results(output_file: Path | None) -> bool:
    """Return whether the results go to a terminal, where they show the progress themselves."""
    return output_file is None and sys.stdout.isatty()


def translate_lines(
    translator: Translator, settings: DecodingConfig, source: SentenceInput, prefix: Path | None, *, scores: bool
) -> Iterator[Translation]:
    """Translate the lines of the input; lines typed in a terminal are translated one by one."""
    from saccade.data.reading.pair_files import read_lines

    lines = source.lines()
    if source.interactive and prefix is None:
        messages.note("one sentence per line; Ctrl-D ends")
        for index, line in enumerate(lines):
            yield from translator.translate_window([line], settings, first_index=index, scores=scores)
        return
    prefixes = read_lines(prefix) if prefix is not None else None
    reads_stdin = source.file is None and source.sentences is None
    input_ready = standard_input_is_ready if reads_stdin else lambda: True
    yield from translator.stream(lines, settings, prefixes, scores=scores, input_ready=input_ready)
    if prefixes is not None and next(prefixes, None) is not None:
        raise SaccadeError("holds more lines than the input", where=str(prefix), hint="give one prefix per input line")


@dataclass(frozen=True)
class OutputFields:
    """The fields of each output: text and, if requested, scores and alignment."""

    translator: Translator
    scores: bool
    alignment: bool

    def of_all(self, translation: Translation) -> list[dict[str, Any]]:
        """Return the fields of every candidate."""
        return [self.of_candidate(translation.source, candidate) for candidate in translation.candidates]

    def of_candidate(self, source: str, candidate: Candidate) -> dict[str, Any]:
        """Return the fields of one candidate; an infinite score becomes null, because JSON has no infinity."""
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
        """Return the tokens of both sides and their alignment; empty for an empty output.

        The parts of a long input are aligned one by one.
        """
        source_pieces: list[str] = []
        target_pieces: list[str] = []
        pairs: list[tuple[int, int]] = []
        for part in candidate.parts or [Part(source, candidate)]:
            if part.candidate.tokens:
                explanation = self.translator.explain(part.source, part.candidate.tokens)
                first_source, first_target = len(source_pieces), len(target_pieces)
                pairs += [(first_source + one, first_target + other) for one, other in hard_alignment(explanation)]
                source_pieces += explanation.source_pieces[:-1]
                target_pieces += explanation.target_pieces[:-1]
        alignment = " ".join(f"{source}-{target}" for source, target in pairs)
        return {"source_pieces": source_pieces, "target_pieces": target_pieces, "alignment": alignment}


@dataclass(frozen=True)
class Record:
    """One input sentence with its outputs."""

    index: int
    source: str
    candidates: Sequence[Mapping[str, Any]]
    numbered: bool  # whether several outputs per input were requested


def text_lines(record: Record) -> Iterable[str]:
    """Return one line per candidate; with several outputs per input, each line starts with the number of the input."""
    numbers = [str(record.index)] if record.numbered else []
    return [SEPARATOR.join([*numbers, *columns(candidate)]) for candidate in record.candidates]


def tsv_lines(record: Record) -> Iterable[str]:
    """Return one line per candidate, starting with its source."""
    return ["\t".join([record.source.replace("\t", " "), *columns(candidate)]) for candidate in record.candidates]


def jsonl_lines(record: Record) -> Iterable[str]:
    """Return one object per input: the fields of the best candidate and, if several were requested, a list of all."""
    values: dict[str, Any] = {"source": record.source, **record.candidates[0]}
    if record.numbered:
        values["candidates"] = record.candidates
    return [json.dumps(values, ensure_ascii=False)]


def columns(candidate: Mapping[str, Any]) -> list[str]:
    """Return text, score and alignment, if present."""
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

"""`saccade evaluate`: scores that others can reproduce, and whether a difference is more than chance."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.device import Device
from saccade.cli.engine import Engine, Precision
from saccade.cli.ensemble import Ensemble, EnsembleMean, EnsembleWeights, System, system_of
from saccade.cli.json_output import STANDARD_OUTPUT, write_json_output
from saccade.cli.lexicon import LexiconFile, ShortlistFile, give_lexicons
from saccade.cli.settings import decoding_settings
from saccade.errors import SaccadeError, UsageError, did_you_mean

if TYPE_CHECKING:
    from saccade.decoding.config import DecodingConfig
    from saccade.evaluation.bootstrap import Comparison
    from saccade.evaluation.metrics import Score
    from saccade.evaluation.report import Report
    from saccade.inference.translator import Translator

DEFAULT_METRICS = ("bleu", "chrf", "ter", "exact-match")
PERPLEXITY = "perplexity"
DEFAULT_TOKENIZE = "13a"


def evaluate(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run directory or a model folder; not with --hypotheses.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What is translated, one sentence a line.")
    ] = None,
    reference: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Right answers, line by line; may be given several times.")
    ] = None,
    keyed_references: Annotated[
        bool,
        typer.Option("--keyed-references", help="Reference lines are `source TAB reference`, several for a source."),
    ] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="bleu, chrf, ter, exact-match, sequence-error, word-error, symbol-error, character-error, perplexity;"
            f" may be given several times.  [default: {', '.join((*DEFAULT_METRICS, PERPLEXITY))}]",
        ),
    ] = None,
    tokenize: Annotated[
        str, typer.Option(metavar="NAME", help="How BLEU splits words: 13a, intl, zh, ja-mecab, char, none …")
    ] = DEFAULT_TOKENIZE,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="BLEU without regard to case.")] = False,
    hypotheses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score these outputs; no model is needed.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another model, compared by a paired bootstrap.")
    ] = None,
    baseline_output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another system's outputs, compared likewise.")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations here.")] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="[FILE]", help="As JSON; without a .json file to stdout.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="For RUN/eval/NAME.json.  [default: that of the source file]")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Width of the beam; 1 is greedy search.")] = None,
    lexicon: LexiconFile = None,
    vocabulary_shortlist: ShortlistFile = None,
    ensemble: Ensemble = None,
    ensemble_mean: EnsembleMean = None,
    ensemble_weights: EnsembleWeights = None,
    engine: Engine = "auto",
    precision: Precision = "float32",
    device: Device = "auto",
) -> None:
    """Score a model on a test set, or compare two.

    \b
    saccade evaluate runs/x --source t.en --reference t.de
    saccade evaluate runs/x --source t.en --reference t.de --baseline runs/y
    saccade evaluate runs/x --ensemble runs/y --source t.en --reference t.de --baseline runs/x
    saccade evaluate --hypotheses out.de --reference t.de --metric bleu

    Signatures say how to reproduce each figure. The result is also kept as RUN/eval/NAME.json, but that of an ensemble
    is not: it belongs to none of its models.
    """
    metrics = find_metrics(metric, with_model=hypotheses is None)
    if (run is None) == (hypotheses is None):
        raise UsageError("there is one system to score", do="name a RUN, or --hypotheses FILE, and not both")
    if run is None and baseline is None and lexicon is not None:
        raise UsageError("--lexicon is for a model that translates", do="name a RUN instead of --hypotheses")
    if run is None and vocabulary_shortlist is not None:
        raise UsageError("--vocabulary-shortlist is for a RUN that translates", do="name a RUN, or leave it out")
    if run is None and (ensemble or ensemble_mean or ensemble_weights):
        raise UsageError("--ensemble adds models to a RUN", do="name a RUN instead of --hypotheses")
    for option, is_set in (("--engine", engine != "auto"), ("--precision", precision != "float32")):
        if run is None and baseline is None and is_set:
            raise UsageError(f"{option} is for a model that translates", do="name a RUN instead of --hypotheses")
    if ensemble and name is not None:
        raise UsageError("the result of an ensemble is kept in no run", do="keep it with --json FILE, without --name")
    system = None if run is None else system_of(run, ensemble, ensemble_mean, ensemble_weights)
    check_tokenizer(tokenize)
    compares = baseline is not None or baseline_output is not None
    if compares and "bleu" in metrics and (tokenize != DEFAULT_TOKENIZE or lowercase):
        raise UsageError("the bootstrap compares cased BLEU with the 13a tokenizer", do="leave --tokenize out")
    sources = read_sources(source, needed=run is not None or baseline is not None or keyed_references)
    references = read_references(reference or [], sources, keyed=keyed_references)

    translator: Translator | None = None
    settings: DecodingConfig | None = None
    if system is not None:
        translator = system.load(device, engine, precision)
        settings = search_settings(translator, context, beam, lexicon, vocabulary_shortlist)
        outputs = translate_all(translator, settings, sources)
    else:
        assert hypotheses is not None
        outputs = read_file(hypotheses)
    if output is not None:
        output.write_text("".join(f"{line}\n" for line in outputs), encoding="utf-8")

    scores = score_all(outputs, references, metrics, tokenize=tokenize, lowercase=lowercase)
    if PERPLEXITY in metrics and translator is not None:
        scores.append(score_perplexity(translator, sources, [accepted[0] for accepted in references]))
    comparisons: list[Comparison] = []
    if baseline is not None:
        other = System(baseline).load(device, engine, precision)  # or the engines would be compared too
        other_settings = search_settings(other, context, beam, lexicon)
        comparisons = compare(metrics, translate_all(other, other_settings, sources), outputs, references)
    elif baseline_output is not None:
        comparisons = compare(metrics, read_file(baseline_output), outputs, references)

    report = make_report(scores, len(outputs))
    files = {
        "hypotheses": hypotheses,
        "source": source,
        "references": reference,
        "baseline": baseline or baseline_output,
        "lexicon": lexicon,
        "shortlist": vocabulary_shortlist,
    }
    values = to_json(report, comparisons, files, system, settings)
    if translator is not None and settings is not None:
        values["engine"] = translator.engine(settings).name
    if precision != "float32":
        values["precision"] = precision
    if json_file != STANDARD_OUTPUT:
        print("\n".join([str(report), *(str(comparison) for comparison in comparisons)]))
    if json_file is not None:
        write_json_output(json_file, values)
    if run is not None and source is not None and not ensemble:
        keep_in_run(run, name or test_name(source), values)


def find_metrics(given: Sequence[str] | None, *, with_model: bool) -> list[str]:
    """The metrics asked for, or the default ones; perplexity needs a model."""
    from saccade.evaluation.metrics import METRICS

    if not given:
        return [*DEFAULT_METRICS, PERPLEXITY] if with_model else list(DEFAULT_METRICS)
    valid = [*METRICS, PERPLEXITY]
    for name in given:
        if name not in valid:
            raise UsageError(f"unknown metric '{name}'", do=did_you_mean(name, valid))
        if name == PERPLEXITY and not with_model:
            raise UsageError("perplexity needs a model", do="name a RUN instead of --hypotheses")
    return list(given)


def check_tokenizer(name: str) -> None:
    """Refuse an unknown BLEU tokenizer before anything is translated."""
    from saccade.evaluation.metrics import bleu_metric

    try:
        bleu_metric(tokenize=name)
    except SaccadeError as error:
        raise UsageError(error.what, do=error.do) from None


def read_file(path: Path) -> list[str]:
    """All lines of a file."""
    from saccade.data.reading.pair_files import read_lines

    return list(read_lines(path))


def read_sources(path: Path | None, *, needed: bool) -> list[str]:
    """The sentences to translate, or none where ready outputs are scored."""
    if path is None and needed:
        raise UsageError("no test set is named", do="give --source FILE and --reference FILE")
    return [] if path is None else read_file(path)


def read_references(paths: Sequence[Path], sources: Sequence[str], *, keyed: bool) -> list[list[str]]:
    """All acceptable references of each sentence."""
    from saccade.data.reading.pair_files import read_pairs
    from saccade.evaluation.references import keyed_references

    if not paths:
        raise UsageError("no references are named", do="give --reference FILE, several times for several references")
    if keyed:
        return keyed_references(sources, (row for path in paths for row in read_pairs(path)))
    columns = [read_file(path) for path in paths]
    expected = len(sources) or len(columns[0])
    for path, column in zip(paths, columns, strict=True):
        if len(column) != expected:
            raise SaccadeError(
                f"has {len(column):,} lines, but {expected:,} are expected",
                where=str(path),
                do="line n of each reference file must answer line n of the source; an empty line counts",
            )
    return [list(row) for row in zip(*columns, strict=True)]


def search_settings(
    translator: Translator,
    context: typer.Context,
    beam: int | None,
    lexicon: Path | None,
    shortlist: Path | None = None,
) -> DecodingConfig:
    """The settings of a translator's search; lexicons that it needs are read."""
    settings = decoding_settings(translator, context, {"beam": beam, "nbest": 1})
    give_lexicons(translator, settings, lexicon, shortlist)
    return settings


def translate_all(translator: Translator, settings: DecodingConfig, sources: Sequence[str]) -> list[str]:
    """The best output for every source."""
    return [translation.text for translation in translator.stream(sources, settings, scores=False)]


def score_all(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    *,
    tokenize: str,
    lowercase: bool,
) -> list[Score]:
    """Every metric that compares texts; only BLEU has options."""
    from saccade.evaluation.metrics import bleu, score

    return [
        bleu(outputs, references, tokenize=tokenize, lowercase=lowercase, advise=True)
        if name == "bleu"
        else score(name, outputs, references)
        for name in metrics
        if name != PERPLEXITY
    ]


def score_perplexity(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> Score:
    """How surprised the model is by the references."""
    from saccade.evaluation.perplexity import perplexity_score

    pairs = translator.score(sources, targets)
    return perplexity_score(-sum(pair.log_probability for pair in pairs), sum(pair.count for pair in pairs))


def compare(
    metrics: Sequence[str], baseline: Sequence[str], outputs: Sequence[str], references: Sequence[Sequence[str]]
) -> list[Comparison]:
    """A paired bootstrap for every metric that splits into sentences."""
    from saccade.evaluation.bootstrap import paired_bootstrap

    return [paired_bootstrap(name, baseline, outputs, references) for name in metrics if name != PERPLEXITY]


def make_report(scores: list[Score], count: int) -> Report:
    """The scores as one report."""
    from saccade.evaluation.report import Report

    return Report(scores, count)


def to_json(
    report: Report,
    comparisons: Sequence[Comparison],
    files: dict[str, Any],
    system: System | None,
    settings: DecodingConfig | None,
) -> dict[str, Any]:
    """The report with all that it depends on."""
    values = report.to_json()
    if system is not None:
        values |= system.to_json()
    for name, value in files.items():
        if value:
            values[name] = [str(path) for path in value] if isinstance(value, list) else str(value)
    if settings is not None:
        values["decoding"] = settings.model_dump(mode="json")
    if comparisons:
        values["comparisons"] = [asdict(comparison) for comparison in comparisons]
    return values


def test_name(source: Path) -> str:
    """The name of a test set: that of its file without the endings of language and compression."""
    return Path(source.name.removesuffix(".gz")).stem


def keep_in_run(run: Path, name: str, values: dict[str, Any]) -> None:
    """Write eval/NAME.json if this is a run directory, and say so."""
    from saccade.training.run_directory import RunDirectory

    if not RunDirectory(run).config.is_file():
        return
    path = run / "eval" / f"{name}.json"
    verb = "replaced" if path.exists() else "kept in"
    path.parent.mkdir(exist_ok=True)
    write_json_output(str(path), values)
    print(f"{verb} {path}", file=sys.stderr)

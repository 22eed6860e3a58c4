"""`saccade evaluate`: reproducible scores, and significance tests between two systems."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options.model import Device, EngineOptions, EnsembleOptions, LexiconOptions, System
from saccade.cli.options.settings import decoding_settings
from saccade.cli.output.json_output import STANDARD_OUTPUT, JsonFile, write_json_output
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
    source: Annotated[Path | None, typer.Option(metavar="FILE", help="Source sentences, one per line.")] = None,
    reference: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Reference translations, one per line. Can be repeated.")
    ] = None,
    keyed_references: Annotated[
        bool,
        typer.Option(
            "--keyed-references", help="Reference lines are `source TAB reference`; a source may have several."
        ),
    ] = False,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="bleu, chrf, ter, exact-match, sequence-error, word-error, symbol-error, character-error, perplexity;"
            f" can be repeated.  [default: {', '.join((*DEFAULT_METRICS, PERPLEXITY))}]",
        ),
    ] = None,
    tokenize: Annotated[
        str, typer.Option(metavar="NAME", help="Tokenizer of BLEU: 13a, intl, zh, ja-mecab, char, none …")
    ] = DEFAULT_TOKENIZE,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Case-insensitive BLEU.")] = False,
    hypotheses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score these outputs instead of those of a model.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Another model to compare with, by paired bootstrap resampling.")
    ] = None,
    baseline_output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Outputs of another system to compare with.")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations to FILE.")] = None,
    json_file: JsonFile = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Save the result as RUN/eval/NAME.json.  [default: name of the source file]"),
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Beam size; 1 is greedy search.")] = None,
    *,
    lexicons: LexiconOptions,
    ensemble: EnsembleOptions,
    engine: EngineOptions,
    device: Device = "auto",
) -> None:
    """Score a model on a test set, or compare two models.

    \b
    saccade evaluate runs/x --source t.en --reference t.de
    saccade evaluate runs/x --source t.en --reference t.de --baseline runs/y
    saccade evaluate runs/x --ensemble runs/y --source t.en --reference t.de --baseline runs/x
    saccade evaluate --hypotheses out.de --reference t.de --metric bleu

    Each score has a signature with everything needed to reproduce it. The result is also saved as RUN/eval/NAME.json,
    except for an ensemble.
    """
    metrics = find_metrics(metric, with_model=hypotheses is None)
    if (run is None) == (hypotheses is None):
        raise UsageError("evaluate scores one system", do="name a RUN, or --hypotheses FILE, and not both")
    if run is None:
        check_model_options(lexicons, ensemble, engine, has_baseline=baseline is not None)
    if ensemble.ensemble and name is not None:
        raise UsageError("the result of an ensemble is not saved in a run", do="use --json FILE instead of --name")
    system = None if run is None else System.from_options(run, ensemble)
    check_tokenizer(tokenize)
    compares = baseline is not None or baseline_output is not None
    if compares and "bleu" in metrics and (tokenize != DEFAULT_TOKENIZE or lowercase):
        raise UsageError("the bootstrap compares cased BLEU with the 13a tokenizer", do="leave --tokenize out")
    sources = read_sources(source, needed=run is not None or baseline is not None or keyed_references)
    references = read_references(reference or [], sources, keyed=keyed_references)

    translator: Translator | None = None
    settings: DecodingConfig | None = None
    if system is not None:
        translator = system.load(device, engine.engine, engine.precision)
        settings = search_settings(translator, context, beam, lexicons)
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
        # The same engine and precision, so that only the models differ.
        other = System(baseline).load(device, engine.engine, engine.precision)
        other_settings = search_settings(other, context, beam, LexiconOptions(lexicons.lexicon))
        comparisons = compare(metrics, translate_all(other, other_settings, sources), outputs, references)
    elif baseline_output is not None:
        comparisons = compare(metrics, read_file(baseline_output), outputs, references)

    report = make_report(scores, len(outputs))
    files = {
        "hypotheses": hypotheses,
        "source": source,
        "references": reference,
        "baseline": baseline or baseline_output,
        "lexicon": lexicons.lexicon,
        "shortlist": lexicons.vocabulary_shortlist,
    }
    values = to_json(report, comparisons, files, system, settings)
    if translator is not None and settings is not None:
        values["engine"] = translator.engine(settings).name
    if engine.precision != "float32":
        values["precision"] = engine.precision
    if json_file != STANDARD_OUTPUT:
        print("\n".join([str(report), *(str(comparison) for comparison in comparisons)]))
    if json_file is not None:
        write_json_output(json_file, values)
    if run is not None and source is not None and not ensemble.ensemble:
        save_in_run(run, name or test_set_name(source), values)


def check_model_options(
    lexicons: LexiconOptions, ensemble: EnsembleOptions, engine: EngineOptions, *, has_baseline: bool
) -> None:
    """Raise an error for options of a model when only --hypotheses are scored; some also apply to a --baseline."""
    if lexicons.vocabulary_shortlist is not None:
        raise UsageError("--vocabulary-shortlist needs a RUN", do="name a RUN, or leave it out")
    if ensemble.ensemble or ensemble.ensemble_mean or ensemble.ensemble_weights:
        raise UsageError("--ensemble adds models to a RUN", do="name a RUN instead of --hypotheses")
    for option, is_set in (
        ("--lexicon", lexicons.lexicon is not None),
        ("--engine", engine.engine != "auto"),
        ("--precision", engine.precision != "float32"),
    ):
        if is_set and not has_baseline:
            raise UsageError(f"{option} needs a model that translates", do="name a RUN instead of --hypotheses")


def find_metrics(given: Sequence[str] | None, *, with_model: bool) -> list[str]:
    """The requested metrics, or the default ones; perplexity needs a model."""
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
    """Raise an error for an unknown BLEU tokenizer before translating."""
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
    """The source sentences; empty if no file is given and none is needed."""
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
                do="line n of each reference file must translate line n of the source; empty lines count",
            )
    return [list(row) for row in zip(*columns, strict=True)]


def search_settings(
    translator: Translator,
    context: typer.Context,
    beam: int | None,
    lexicons: LexiconOptions,
) -> DecodingConfig:
    """The decoding settings of a translator; also loads its lexicons."""
    settings = decoding_settings(translator, context, {"beam": beam, "nbest": 1})
    lexicons.load(translator, settings)
    return settings


def translate_all(translator: Translator, settings: DecodingConfig, sources: Sequence[str]) -> list[str]:
    """The best output for each source sentence."""
    return [translation.text for translation in translator.stream(sources, settings, scores=False)]


def score_all(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    *,
    tokenize: str,
    lowercase: bool,
) -> list[Score]:
    """All scores except perplexity; only BLEU has options."""
    from saccade.evaluation.metrics import bleu, score

    return [
        bleu(outputs, references, tokenize=tokenize, lowercase=lowercase, advise=True)
        if name == "bleu"
        else score(name, outputs, references)
        for name in metrics
        if name != PERPLEXITY
    ]


def score_perplexity(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> Score:
    """The perplexity of the references under the model."""
    from saccade.evaluation.perplexity import perplexity_score

    pairs = translator.score(sources, targets)
    return perplexity_score(-sum(pair.log_probability for pair in pairs), sum(pair.count for pair in pairs))


def compare(
    metrics: Sequence[str], baseline: Sequence[str], outputs: Sequence[str], references: Sequence[Sequence[str]]
) -> list[Comparison]:
    """Paired bootstrap resampling for all metrics except perplexity."""
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
    """The report with the files and settings that it depends on."""
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


def test_set_name(source: Path) -> str:
    """The name of a test set: its file name without the language suffix and .gz."""
    return Path(source.name.removesuffix(".gz")).stem


def save_in_run(run: Path, name: str, values: dict[str, Any]) -> None:
    """Write eval/NAME.json if this is a run directory."""
    from saccade.training.runs.directory import RunDirectory

    if not RunDirectory(run).config.is_file():
        return
    path = run / "eval" / f"{name}.json"
    action = "replaced" if path.exists() else "saved as"
    path.parent.mkdir(exist_ok=True)
    write_json_output(str(path), values)
    print(f"{action} {path}", file=sys.stderr)

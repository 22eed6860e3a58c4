"""`saccade evaluate`: reproducible scores, and significance tests between two systems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.input.test_set import read_file, read_test_set
from saccade.cli.options.decoding_help import describe_decoding
from saccade.cli.options.help_page import HelpPage
from saccade.cli.options.model import Device, EngineOptions, EnsembleOptions, LexiconOptions, ModelOrEnsemble
from saccade.cli.options.settings import decoding_settings
from saccade.cli.output.atomic_file import write_text_atomically
from saccade.cli.output.evaluation_result import save_in_run, test_set_name, to_json
from saccade.cli.output.json_output import STANDARD_OUTPUT, JsonFile, write_json_output
from saccade.cli.output.output_paths import check_outputs
from saccade.cli.output.task import Task, task
from saccade.errors import SaccadeError, UsageError, did_you_mean
from saccade.file_names import check_file_name

if TYPE_CHECKING:
    from saccade.decoding.config import DecodingConfig
    from saccade.evaluation.bootstrap import Comparison, Interval
    from saccade.evaluation.comet import CometTestSet
    from saccade.evaluation.metrics import Score
    from saccade.evaluation.report import Report
    from saccade.inference.translator import Translator

PERPLEXITY = "perplexity"
COMET = "comet"
DEFAULT_TOKENIZE = "13a"

EVALUATE_PAGE = HelpPage(
    describe_decoding,
    (
        *("--source", "--reference", "--metric", "--beam", "--baseline", "--confidence", "--hypotheses"),
        *("--tokenize", "--lowercase", "--output", "--json", "--no-save", "--ensemble", "--precision", "--device"),
    ),
    "Show all options and exit: outputs of other systems, files of pairs, decoding, lexicons, engines.",
    {"--beam": "decoding.beam"},
)


def evaluate(
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run directory or a model folder; not with --hypotheses.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Source sentences, one per line; or, without --reference, sentence pairs as .tsv, .csv, .jsonl or "
            ".parquet.",
        ),
    ] = None,
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
            help="bleu, chrf, ter, exact-match, sequence-error, word-error, symbol-error, character-error, comet,"
            " perplexity; can be repeated.  [default: bleu, chrf, ter, exact-match and perplexity; for single"
            " words, exact-match comes first]",
        ),
    ] = None,
    comet_model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model of the metric comet: a checkpoint, a folder, or a name such as Unbabel/wmt22-comet-da, which "
            "is downloaded once.",
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
    confidence: Annotated[
        bool, typer.Option("--confidence", help="Add 95 % confidence intervals, by bootstrap resampling.")
    ] = False,
    source_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the source sentence in a file of pairs.")
    ] = "source",
    target_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the reference in a file of pairs.")
    ] = "target",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the translations to FILE.")] = None,
    json_file: JsonFile = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Save the result as RUN/eval/NAME.json.  [default: name of the source file]"),
    ] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="Do not save the result in the run.")] = False,
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
    saccade evaluate runs/x --source t.tsv --confidence
    saccade evaluate runs/x --source t.en --reference t.de --baseline runs/y
    saccade evaluate runs/x --ensemble runs/y --source t.en --reference t.de --baseline runs/x
    saccade evaluate --hypotheses out.de --reference t.de --metric bleu

    Each score has a signature with everything needed to reproduce it. The result is also saved as RUN/eval/NAME.json,
    except for an ensemble, a run that is read-only, and with --no-save.
    """
    check_metrics(metric or [], with_model=hypotheses is None)
    check_comet(metric or [], comet_model)
    if (run is None) == (hypotheses is None):
        raise UsageError("evaluate scores one system", hint="name a RUN, or --hypotheses FILE, and not both")
    if run is None:
        check_model_options(lexicons, ensemble, engine, has_baseline=baseline is not None)
    if ensemble.ensemble and name is not None:
        raise UsageError("the result of an ensemble is not saved in a run", hint="use --json FILE instead of --name")
    if name is not None:
        check_file_name(name, "--name")
        if no_save:
            raise UsageError("--name has no effect with --no-save", hint="leave one of the two out")
    system = None if run is None else ModelOrEnsemble.from_options(run, ensemble)
    check_tokenizer(tokenize)
    check_outputs(
        {"--output": output, "--json": json_file},
        [source, *(reference or []), hypotheses, baseline_output, *lexicons.files()],
    )
    sources, references = read_test_set(
        source,
        reference or [],
        columns=(source_column, target_column),
        keyed=keyed_references,
        sources_needed=run is not None or baseline is not None or comet_model is not None,
    )
    metrics = metric or choose_metrics(references, with_model=run is not None)
    compares = baseline is not None or baseline_output is not None
    if (compares or confidence) and "bleu" in metrics and (tokenize != DEFAULT_TOKENIZE or lowercase):
        raise UsageError("the bootstrap resamples cased BLEU with the 13a tokenizer", hint="leave --tokenize out")

    translator: Translator | None = None
    settings: DecodingConfig | None = None
    models = (run is not None) + (baseline is not None)
    comet = None if comet_model is None else load_comet_test_set(comet_model, device, sources, references)
    with task("evaluating", models * len(sources) or None, "sentences" if models else "") as work:
        if system is not None:
            translator = system.load(device, engine.engine, engine.precision)
            settings = search_settings(translator, context, beam, lexicons)
            outputs = translate_all(translator, settings, sources, work)
        else:
            assert hypotheses is not None
            outputs = read_file(hypotheses)
        if output is not None:
            write_text_atomically(output, "".join(f"{line}\n" for line in outputs))
            work.written = f"{output} holds all {len(outputs):,} translations"

        scores = score_all(outputs, references, metrics, comet, tokenize=tokenize, lowercase=lowercase)
        if PERPLEXITY in metrics and translator is not None:
            scores.append(score_perplexity(translator, sources, [accepted[0] for accepted in references]))
        comparisons: list[Comparison] = []
        if baseline is not None:
            # The same engine and precision, so that only the models differ.
            other = ModelOrEnsemble(baseline).load(device, engine.engine, engine.precision)
            other_settings = search_settings(other, context, beam, LexiconOptions(lexicons.lexicon))
            translated = translate_all(other, other_settings, sources, work)
            comparisons = compare(metrics, translated, outputs, references, comet)
        elif baseline_output is not None:
            comparisons = compare(metrics, read_file(baseline_output), outputs, references, comet)
        intervals = find_intervals(metrics, scores, outputs, references, comet) if confidence else {}

    report = make_report(scores, len(outputs), intervals)
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
    saves = run is not None and source is not None and not ensemble.ensemble and not no_save
    saved = save_in_run(run, name or test_set_name(source), values) if saves and run and source else None
    work.finish(f"scored {len(outputs):,} sentence{'' if len(outputs) == 1 else 's'}", saved)


def check_model_options(
    lexicons: LexiconOptions, ensemble: EnsembleOptions, engine: EngineOptions, *, has_baseline: bool
) -> None:
    """Raise an error for options of a model when only --hypotheses are scored; some also apply to a --baseline."""
    if lexicons.vocabulary_shortlist is not None:
        raise UsageError("--vocabulary-shortlist needs a RUN", hint="name a RUN, or leave it out")
    if ensemble.ensemble or ensemble.ensemble_mean or ensemble.ensemble_weights:
        raise UsageError("--ensemble adds models to a RUN", hint="name a RUN instead of --hypotheses")
    for option, is_set in (
        ("--lexicon", lexicons.lexicon is not None),
        ("--engine", engine.engine != "auto"),
        ("--precision", engine.precision != "float32"),
    ):
        if is_set and not has_baseline:
            raise UsageError(f"{option} needs a model that translates", hint="name a RUN instead of --hypotheses")


def check_metrics(names: Sequence[str], *, with_model: bool) -> None:
    """Raise an error for an unknown metric, or one that needs a model that is not there."""
    from saccade.evaluation.metrics import METRICS

    valid = [*METRICS, COMET, PERPLEXITY]
    for name in names:
        if name not in valid:
            raise UsageError(f"unknown metric '{name}'", hint=did_you_mean(name, valid))
        if name == PERPLEXITY and not with_model:
            raise UsageError("perplexity needs a model", hint="name a RUN instead of --hypotheses")


def check_comet(names: Sequence[str], model: str | None) -> None:
    """Raise an error if the metric comet is given without its model, or the model without the metric."""
    if COMET in names and model is None:
        raise UsageError(
            "the metric comet needs a model",
            hint="--comet-model FOLDER; or --comet-model Unbabel/wmt22-comet-da, which downloads 2.3 GB once",
        )
    if model is not None and COMET not in names:
        raise UsageError("--comet-model has no effect without --metric comet", hint="add --metric comet")


def load_comet_test_set(
    model: str, device: str, sources: Sequence[str], references: Sequence[Sequence[str]]
) -> CometTestSet:
    """Load the COMET model of a test set."""
    from saccade.evaluation.comet import CometTestSet, load_comet
    from saccade.inference.device import choose_device

    return CometTestSet(load_comet(model, choose_device(device)), sources, references)


def choose_metrics(references: Sequence[Sequence[str]], *, with_model: bool) -> list[str]:
    """Return the default metrics for these references."""
    from saccade.evaluation.default_metrics import default_metrics

    return [*default_metrics(references), *([PERPLEXITY] if with_model else [])]


def check_tokenizer(name: str) -> None:
    """Raise an error for an unknown BLEU tokenizer before translating."""
    from saccade.evaluation.metrics import bleu_metric

    try:
        bleu_metric(tokenize=name)
    except SaccadeError as error:
        raise UsageError(error.what, hint=error.hint) from None


def search_settings(
    translator: Translator,
    context: typer.Context,
    beam: int | None,
    lexicons: LexiconOptions,
) -> DecodingConfig:
    """Return the decoding settings of a translator; also loads its lexicons."""
    settings = decoding_settings(translator, context, {"beam": beam, "nbest": 1})
    lexicons.load(translator, settings)
    return settings


def translate_all(translator: Translator, settings: DecodingConfig, sources: Sequence[str], work: Task) -> list[str]:
    """Return the best output for each source sentence."""
    outputs: list[str] = []
    for translation in translator.stream(sources, settings, scores=False):
        outputs.append(translation.text)
        work.advance()
    return outputs


def score_all(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Sequence[str],
    comet: CometTestSet | None,
    *,
    tokenize: str,
    lowercase: bool,
) -> list[Score]:
    """Return all scores except perplexity; only BLEU has options."""
    from saccade.evaluation.metrics import bleu, score

    def compute(name: str) -> Score:
        if name == COMET and comet is not None:
            return comet.score(outputs)
        if name == "bleu":
            return bleu(outputs, references, tokenize=tokenize, lowercase=lowercase, advise=True)
        return score(name, outputs, references)

    return [compute(name) for name in metrics if name != PERPLEXITY]


def score_perplexity(translator: Translator, sources: Sequence[str], targets: Sequence[str]) -> Score:
    """Return the perplexity of the references under the model."""
    from saccade.evaluation.perplexity import perplexity_score

    pairs = translator.score(sources, targets)
    return perplexity_score(-sum(pair.log_probability for pair in pairs), sum(pair.count for pair in pairs))


def compare(
    metrics: Sequence[str],
    baseline: Sequence[str],
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    comet: CometTestSet | None,
) -> list[Comparison]:
    """Compare by paired bootstrap resampling of all metrics except perplexity."""
    from saccade.evaluation.bootstrap import paired_bootstrap

    return [
        comet.compare(baseline, outputs)
        if name == COMET and comet is not None
        else paired_bootstrap(name, baseline, outputs, references)
        for name in metrics
        if name != PERPLEXITY
    ]


def find_intervals(
    metrics: Sequence[str],
    scores: Sequence[Score],
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    comet: CometTestSet | None,
) -> dict[str, Interval]:
    """Return the 95 % interval of each score, by its name; perplexity has none."""
    from saccade.evaluation.bootstrap import interval

    names = [name for name in metrics if name != PERPLEXITY]  # perplexity is the last of the scores
    return {
        score.name: comet.interval(outputs)
        if name == COMET and comet is not None
        else interval(name, outputs, references)
        for name, score in zip(names, scores, strict=False)
    }


def make_report(scores: list[Score], count: int, intervals: dict[str, Interval]) -> Report:
    """Return the scores as one report."""
    from saccade.evaluation.report import Report

    return Report(scores, count, intervals)

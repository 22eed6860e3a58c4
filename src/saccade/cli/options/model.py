"""Options of commands that load a model: RUN, --device, --engine, --precision, --ensemble, --lexicon."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from saccade import messages
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.decoding.config import DecodingConfig
    from saccade.inference.translator import Translator

EngineName = Literal["auto", "torch", "ctranslate2"]
PrecisionName = Literal["float32", "int8"]
MeanName = Literal["arithmetic", "geometric"]

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory or a model folder.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 … or mps.")]


@dataclass(frozen=True)
class EngineOptions:
    """The inference engine and its precision."""

    engine: Annotated[
        EngineName,
        typer.Option(
            help="Inference engine; auto is torch, or ctranslate2 on CPUs that Saccade's kernels do not cover."
        ),
    ] = "auto"
    precision: Annotated[
        PrecisionName,
        typer.Option(help="int8 decodes large batches faster on a CPU; a few outputs differ from float32."),
    ] = "float32"


@dataclass(frozen=True)
class EnsembleOptions:
    """Other models of the ensemble."""

    ensemble: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Another model of an ensemble with RUN. Can be repeated."),
    ] = None
    ensemble_mean: Annotated[
        MeanName | None,
        typer.Option(
            help="With --ensemble: average probabilities (arithmetic) or log-probabilities (geometric)."
            "  [default: arithmetic]"
        ),
    ] = None
    ensemble_weights: Annotated[
        str | None,
        typer.Option(
            metavar="W,W…", help="With --ensemble: weight of each model, RUN first.  [default: equal weights]"
        ),
    ] = None


@dataclass(frozen=True)
class LexiconOptions:
    """Lexicon files that decoding reads."""

    lexicon: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --decoding.replace-unknown lexicon: output of `saccade lexicon`."),
    ] = None
    vocabulary_shortlist: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Restrict the output vocabulary to likely translations of the input tokens: "
            "output of `saccade lexicon --pieces RUN`.",
        ),
    ] = None

    def files(self) -> list[Path | None]:
        """Return the files that are read, which no output may overwrite."""
        return [self.lexicon, self.vocabulary_shortlist]

    def load(self, translator: Translator, settings: DecodingConfig) -> None:
        """Give the translator its lexicons; an option that cannot be used, or would have no effect, is an error."""
        from saccade.data.lexicon.lexicon_file import read_lexicon
        from saccade.inference.shortlist_file import read_shortlist

        path, shortlist = self.lexicon, self.vocabulary_shortlist
        if path is not None and settings.replace_unknown != "lexicon":
            raise UsageError(
                "--lexicon has no effect", hint="add --decoding.replace-unknown lexicon, or leave --lexicon out"
            )
        if path is None and settings.replace_unknown == "lexicon":
            raise UsageError("--decoding.replace-unknown lexicon needs a lexicon", hint="give --lexicon FILE")
        translator.lexicon = None if path is None else read_lexicon(path)
        translator.check_replacement(settings)
        translator.shortlist = None if shortlist is None else read_shortlist(shortlist, translator.tokenizers)


@dataclass(frozen=True)
class ModelOrEnsemble:
    """One model or an ensemble that decodes."""

    run: Path
    others: tuple[Path, ...] = ()
    mean: MeanName = "arithmetic"
    weights: tuple[float, ...] | None = None

    @classmethod
    def from_options(cls, run: Path, options: EnsembleOptions) -> ModelOrEnsemble:
        """Return the system that the options name; --ensemble-mean and --ensemble-weights need --ensemble."""
        if not options.ensemble:
            for name in ("ensemble_mean", "ensemble_weights"):
                if getattr(options, name) is not None:
                    option = f"--{name.replace('_', '-')}"
                    raise UsageError(f"{option} needs several models", hint="name the others with --ensemble RUN")
            return cls(run)
        mean = options.ensemble_mean or "arithmetic"
        return cls(run, tuple(options.ensemble), mean, parse_weights(options.ensemble_weights))

    def load(self, device: str, engine: EngineName = "torch", precision: PrecisionName = "float32") -> Translator:
        """Load the translator; ensemble weights that do not fit the number of models are a UsageError."""
        from saccade.allocator import keep_freed_memory
        from saccade.decoding.ensemble import shares_of
        from saccade.inference.loading import load

        keep_freed_memory()  # changes the process: right for a command, not for a program that imports Saccade
        try:
            shares_of(self.weights, 1 + len(self.others))
        except SaccadeError as error:
            raise UsageError(error.what, hint=error.hint) from None
        translator = load(
            [self.run, *self.others],
            device,
            engine=engine,
            precision=precision,
            mean=self.mean,
            weights=self.weights,
        )
        members = ", ".join(str(path) for path in (self.run, *self.others))
        messages.detail(f"model: {members}, on {translator.device}, {precision}")
        gc.collect()
        gc.freeze()  # these objects live until the end: each collection would spend 80 ms on scanning them
        return translator

    def to_json(self) -> dict[str, Any]:
        """Return the model paths and ensemble settings that a result depends on."""
        values: dict[str, Any] = {"model": str(self.run)}
        if self.others:
            values["ensemble"] = [str(path) for path in self.others]
            values["ensemble_mean"] = self.mean
            values["ensemble_weights"] = list(self.weights or [1.0] * (1 + len(self.others)))
        return values


def parse_weights(text: str | None) -> tuple[float, ...] | None:
    """Parse comma-separated weights such as `2,1`."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"'{text}' is not a list of weights", hint="give numbers separated by commas: --ensemble-weights 2,1"
        ) from None

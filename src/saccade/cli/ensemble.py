"""The `--ensemble` options of every verb that decodes: several models write one output together."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from saccade.cli.engine import EngineName, PrecisionName
from saccade.errors import SaccadeError, UsageError

if TYPE_CHECKING:
    from saccade.inference.translator import Translator

MeanName = Literal["arithmetic", "geometric"]

Ensemble = Annotated[
    list[Path] | None,
    typer.Option(metavar="RUN", help="A further model that decodes along with RUN; may be given several times."),
]
EnsembleMean = Annotated[
    MeanName | None,
    typer.Option(help="With --ensemble: the mean of probabilities or of their logarithms.  [default: arithmetic]"),
]
EnsembleWeights = Annotated[
    str | None,
    typer.Option(metavar="W,W…", help="With --ensemble: how much each model counts, RUN first.  [default: alike]"),
]


@dataclass(frozen=True)
class System:
    """What decodes: one model, or several together."""

    run: Path
    others: tuple[Path, ...] = ()
    mean: MeanName = "arithmetic"
    weights: tuple[float, ...] | None = None

    def load(self, device: str, engine: EngineName = "torch", precision: PrecisionName = "float32") -> Translator:
        """The translator; weights that do not fit are a fault of usage."""
        from saccade.allocator import keep_memory
        from saccade.decoding.ensemble import shares_of
        from saccade.inference.loading import load

        keep_memory()  # a process of ours may; a program that imports Saccade decides for itself
        try:
            shares_of(self.weights, 1 + len(self.others))
        except SaccadeError as error:
            raise UsageError(error.what, do=error.do) from None
        found = load(
            [self.run, *self.others],
            device,
            engine=engine,
            precision=precision,
            mean=self.mean,
            weights=self.weights,
        )
        gc.collect()
        gc.freeze()  # what is there now stays: to look through all of it for garbage takes 80 ms each time
        return found

    def to_json(self) -> dict[str, Any]:
        """What a result depends on; one model needs no more than its name."""
        values: dict[str, Any] = {"model": str(self.run)}
        if self.others:
            values["ensemble"] = [str(path) for path in self.others]
            values["ensemble_mean"] = self.mean
            values["ensemble_weights"] = list(self.weights or [1.0] * (1 + len(self.others)))
        return values


def system_of(run: Path, others: Sequence[Path] | None, mean: MeanName | None, weights: str | None) -> System:
    """The system that the options name; options that would do nothing are refused."""
    if not others:
        if mean is not None or weights is not None:
            option = "--ensemble-mean" if mean is not None else "--ensemble-weights"
            raise UsageError(f"{option} needs several models", do="name the others with --ensemble RUN")
        return System(run)
    return System(run, tuple(others), mean or "arithmetic", parse_weights(weights))


def parse_weights(text: str | None) -> tuple[float, ...] | None:
    """The numbers in `2,1`."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"'{text}' is no list of weights", do="give numbers with commas between: --ensemble-weights 2,1"
        ) from None

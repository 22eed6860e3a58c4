"""Choice of the engine for a request: torch, or CTranslate2 where it gives the same results."""

from __future__ import annotations

from threading import Lock
from typing import get_args

from saccade.arguments import check_text
from saccade.decoding.config import DecodingConfig
from saccade.errors import UsageError, did_you_mean
from saccade.inference.engines.ctranslate2_engine import CTranslate2Engine, unsupported
from saccade.inference.engines.ctranslate2_export import USE_TORCH, CTranslate2Exporter
from saccade.inference.engines.engine import Engine, EngineName, Precision
from saccade.inference.engines.torch_engine import TorchEngine
from saccade.ops.int8_linear import int8_available

USE_FLOAT32 = "leave the precision at float32"


class EngineSelector:
    """The engines of a translator; CTranslate2 is loaded at the first request that it supports."""

    def __init__(
        self, torch_engine: TorchEngine, target_vocabulary: int, exporter: CTranslate2Exporter | None = None
    ) -> None:
        """Without an exporter every request goes to torch."""
        self.torch = torch_engine
        self.target_vocabulary = target_vocabulary
        self.exporter = exporter
        self.ctranslate2: CTranslate2Engine | None = None
        self.lock = Lock()

    def choose(self, settings: DecodingConfig, *, prefixes: bool = False, shortlist: bool = False) -> Engine:
        """Return the engine for a request; raise an error if the user chose one that does not support it."""
        exporter = self.exporter
        if exporter is None:
            return self.torch
        reason = unsupported(settings, self.target_vocabulary, prefixes=prefixes, shortlist=shortlist)
        if reason is not None and exporter.required:
            hint = USE_TORCH if exporter.precision == "float32" or int8_available() else USE_FLOAT32
            raise UsageError(f"the engine ctranslate2 does not support this request: {reason}", hint=hint)
        if reason is not None:
            return self.torch
        with self.lock:  # concurrent callers: the first one builds the engine for all
            if self.ctranslate2 is None and self.exporter is not None:
                self.ctranslate2 = exporter.build(self.torch)
                self.exporter = (
                    None if self.ctranslate2 is None else exporter
                )  # do not try again; stderr has the reason
        return self.torch if self.ctranslate2 is None else self.ctranslate2


def check_engine(engine: EngineName, precision: Precision, models: int) -> None:
    """Raise an error for an unknown engine or precision, or for an engine that cannot run this number of models."""
    check_text(engine, "engine", hint=f"valid: {', '.join(get_args(EngineName))}")
    check_text(precision, "precision", hint=f"valid: {', '.join(get_args(Precision))}")
    if engine not in get_args(EngineName):
        raise UsageError(f"unknown engine '{engine}'", hint=did_you_mean(engine, get_args(EngineName)))
    if precision not in get_args(Precision):
        raise UsageError(f"unknown precision '{precision}'", hint=did_you_mean(precision, get_args(Precision)))
    if models > 1 and engine == "ctranslate2":
        raise UsageError("the engine ctranslate2 does not support ensembles", hint=USE_TORCH)

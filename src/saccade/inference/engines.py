"""Which engine does the work: torch, or CTranslate2 for what it does as we do it."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Lock
from typing import Any, get_args

import torch

from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError, UsageError, did_you_mean
from saccade.inference.ctranslate2_cache import key_of, open_export
from saccade.inference.ctranslate2_engine import CTranslate2Engine, refusal
from saccade.inference.engine import Engine, EngineName, Precision, TorchEngine
from saccade.inference.opening import Parts
from saccade.inference.proof import drawn_sentences, prove, validation_sentences
from saccade.interop.ctranslate2 import expressible, import_runtime, longest_sequence, save_ctranslate2
from saccade.models.family import ModelConfig
from saccade.models.transformer import TransformerConfig
from saccade.ops.int8_linear import int8_available

USE_TORCH = "leave the engine to auto, or choose torch"
NO_BYTES = "leave the precision to float32"


class Engines:
    """Those that a translator has; that of CTranslate2 is made when the first work comes that it can do."""

    def __init__(self, torch_engine: TorchEngine, vocabulary: int, exporter: Exporter | None = None) -> None:
        """`vocabulary` is that of the target; without an exporter torch does everything."""
        self.torch = torch_engine
        self.vocabulary = vocabulary
        self.exporter = exporter
        self.ctranslate2: CTranslate2Engine | None = None
        self.lock = Lock()

    def choose(self, settings: DecodingConfig, *, prefixes: bool = False, shortlist: bool = False) -> Engine:
        """The engine for some work, or an error if the one that was asked for cannot do it."""
        exporter = self.exporter
        if exporter is None:
            return self.torch
        reason = refusal(settings, self.vocabulary, prefixes=prefixes, shortlist=shortlist)
        if reason is not None and exporter.insists:
            do = USE_TORCH if exporter.precision == "float32" or int8_available() else NO_BYTES
            raise UsageError(f"the engine ctranslate2 cannot do this: {reason}", do=do)
        if reason is not None:
            return self.torch
        with self.lock:  # several threads may come at once, and the first one makes it for all
            if self.ctranslate2 is None and self.exporter is not None:
                self.ctranslate2 = exporter.engine(self.torch)
                self.exporter = None if self.ctranslate2 is None else exporter  # it has said why
        return self.torch if self.ctranslate2 is None else self.ctranslate2


class Exporter:
    """Makes the CTranslate2 engine of a model folder."""

    def __init__(
        self,
        folder: Path,
        parts: Parts,
        decoding: DecodingConfig,
        *,
        precision: Precision = "float32",
        insists: bool = False,
    ) -> None:
        """The parts are those of an expressible model; `insists`: whoever asked for this engine wants no other."""
        assert isinstance(parts.config, TransformerConfig)
        self.folder = folder
        self.config = parts.config
        self.parts = parts
        self.tokenizers = parts.tokenizers
        self.decoding = decoding
        self.precision: Precision = precision
        self.insists = insists

    def engine(self, fallback: Engine) -> CTranslate2Engine | None:
        """The engine; None, and a line on the standard error, where it is not the same as torch or cannot be had."""
        try:
            key = key_of(self.parts.manifest)

            def write(place: Path) -> None:
                save_ctranslate2(place, self.parts.model(), self.config)  # type: ignore[arg-type]

            def proof(place: Path) -> dict[str, Any]:
                return self.proof(self.made(load_runtime(place, "float32"), fallback), fallback)

            with open_export(self.folder, key, write, proof) as export:
                if export.proof.get("passed") is not True:
                    raise SaccadeError(
                        "the CTranslate2 form of this model does not give the same outputs",
                        where=str(self.folder),
                        do=USE_TORCH,
                    )
                return self.made(load_runtime(export.path, self.precision), fallback)
        except (SaccadeError, OSError) as error:
            if self.insists:
                raise
            reason = error.one_line if isinstance(error, SaccadeError) else error.strerror or str(error)
            print(f"saccade: using torch: {reason}", file=sys.stderr)
            return None

    def made(self, runtime: Any, fallback: Engine) -> CTranslate2Engine:
        """The engine around a runtime."""
        return CTranslate2Engine(
            runtime,
            vocabulary=max(tokenizer.size for tokenizer in self.tokenizers),
            places=longest_sequence(self.config),
            longest=self.config.max_positions if self.config.positions == "learned" else None,
            symbols=self.tokenizers.target.symbols,
            fallback=fallback,
        )

    def proof(self, engine: Engine, fallback: Engine) -> dict[str, Any]:
        """How far the engine agrees with torch, on some sentences of random pieces and on the run's validation data."""
        source = self.tokenizers.source
        places = longest_sequence(self.config)
        known = source.encode_batch(validation_sentences(self.folder.parent))
        sentences = drawn_sentences(source.size, places - 1) + [ids for ids in known if 0 < len(ids) < places]
        return prove(fallback, engine, [(ids,) for ids in sentences], self.decoding).to_json()


def load_runtime(path: Path, precision: Precision) -> Any:
    """A translator of CTranslate2: one worker for each thread that torch would take, each with one thread of its own.

    Two threads that share a product wait for each other after each, with int8 ten times as long as they work.
    """
    threads = torch.get_num_threads()
    try:
        return import_runtime().Translator(
            str(path),
            device="cpu",
            compute_type=precision,
            inter_threads=threads,
            intra_threads=1,
            max_queued_batches=-1,
        )
    except (RuntimeError, ValueError) as error:
        raise SaccadeError(f"CTranslate2 cannot load it: {error}", where=str(path), do=USE_TORCH) from None
    finally:
        torch.set_num_threads(threads)  # it sets the number of its own threads for the whole process


def unavailable(config: ModelConfig, device: torch.device) -> str | None:
    """Why CTranslate2 is no engine for this model here, or None."""
    reason = expressible(config)
    if reason is None and device.type != "cpu":
        reason = f"it runs on the CPU here, and the device is {device.type}"
    if reason is None:
        try:
            import_runtime()
        except SaccadeError as error:
            reason = error.what
    return reason


def check_engine(engine: EngineName, precision: Precision, models: int) -> None:
    """Refuse names that there are not, and combinations that would do nothing."""
    for name, valid in ((engine, get_args(EngineName)), (precision, get_args(Precision))):
        if name not in valid:
            kind = "engine" if valid == get_args(EngineName) else "precision"
            raise UsageError(f"unknown {kind} '{name}'", do=did_you_mean(name, valid))
    if models > 1 and engine == "ctranslate2":
        raise UsageError("the engine ctranslate2 runs one model, not several together", do=USE_TORCH)

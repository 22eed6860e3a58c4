"""The CTranslate2 engine of a model folder: export, check against torch, load into the runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saccade import messages
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.inference.engines.ctranslate2_cache import cache_key, open_export
from saccade.inference.engines.ctranslate2_engine import CTranslate2Engine
from saccade.inference.engines.engine import Engine, Precision
from saccade.inference.engines.parity import check_parity, random_sentences, validation_sources
from saccade.interface import TranslationModel
from saccade.interop.ctranslate2 import import_runtime, max_length, save_ctranslate2, unsupported_reason
from saccade.models.family import ModelConfig
from saccade.models.transformer import TransformerConfig

USE_TORCH = "leave the engine at auto, or choose torch"


@dataclass(frozen=True)
class CTranslate2Exporter:
    """Builds the CTranslate2 engine of a model folder."""

    folder: Path
    manifest: Mapping[str, Any]
    config: TransformerConfig
    load_model: Callable[[], TranslationModel]
    tokenizers: Tokenizers
    decoding: DecodingConfig
    precision: Precision = "float32"
    required: bool = False  # the user chose CTranslate2: raise an error instead of using torch

    @property
    def max_positions(self) -> int | None:
        """The maximum number of positions of the model; None without learned positions."""
        return self.config.max_positions if self.config.positions == "learned" else None

    def build(self, fallback: Engine) -> CTranslate2Engine | None:
        """Return the engine; None, with a line on stderr, if it differs from torch or cannot be built."""

        def export(path: Path) -> None:
            save_ctranslate2(path, self.load_model(), self.config)  # type: ignore[arg-type]

        def check(path: Path) -> dict[str, Any]:
            return self.parity(self.engine(load_runtime(path, "float32"), fallback), fallback)

        try:
            with open_export(self.folder, cache_key(self.manifest), export, check) as exported:
                if exported.parity.get("passed") is not True:
                    raise SaccadeError(
                        "the CTranslate2 export of this model does not give the outputs of torch",
                        where=str(self.folder),
                        hint=USE_TORCH,
                    )
                return self.engine(load_runtime(exported.path, self.precision), fallback)
        except (SaccadeError, OSError) as error:
            if self.required:
                raise
            reason = error.one_line if isinstance(error, SaccadeError) else error.strerror or str(error)
            messages.warn(f"saccade: using torch: {reason}")
            return None

    def engine(self, runtime: Any, fallback: Engine) -> CTranslate2Engine:
        """Return the engine of a loaded runtime."""
        return CTranslate2Engine(
            runtime,
            vocabulary=max(tokenizer.size for tokenizer in self.tokenizers),
            positions=max_length(self.config),
            max_target_positions=self.max_positions,
            symbols=self.tokenizers.target.symbols,
            fallback=fallback,
        )

    def parity(self, engine: Engine, reference: Engine) -> dict[str, Any]:
        """Parity with the reference on random sentences and on the validation sources of the run."""
        tokenizer, positions = self.tokenizers.source, max_length(self.config)
        validation = tokenizer.encode_batch(validation_sources(self.folder.parent))
        sentences = random_sentences(tokenizer.size, positions - 1)
        sentences += [ids for ids in validation if 0 < len(ids) < positions]
        return check_parity(reference, engine, [(ids,) for ids in sentences], self.decoding).to_json()


def load_runtime(path: Path, precision: Precision) -> Any:
    """Return a CTranslate2 translator with one worker per torch thread, each with one thread.

    Threads that share a matrix product synchronize after each one; with int8 that takes ten times the computation.
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
        raise SaccadeError(f"CTranslate2 cannot load the export: {error}", where=str(path), hint=USE_TORCH) from None
    finally:
        torch.set_num_threads(threads)  # CTranslate2 changes the number of threads of the process


def unavailable(config: ModelConfig, device: torch.device) -> str | None:
    """Why CTranslate2 cannot run this model on this device, or None."""
    reason = unsupported_reason(config)
    if reason is None and device.type != "cpu":
        reason = f"CTranslate2 runs on the CPU here, not on {device.type}"
    if reason is None:
        try:
            import_runtime()
        except SaccadeError as error:
            reason = error.what
    return reason

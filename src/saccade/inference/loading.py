"""Translators from model folders: of one model, or of several together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from saccade.config import build
from saccade.csrc.library import library
from saccade.data.lexicon.lexicon_file import read_lexicon
from saccade.decoding.config import DecodingConfig
from saccade.decoding.ensemble import Ensemble, Mean, shares_of
from saccade.errors import UsageError
from saccade.inference.agreement import check_same_target, same_reading
from saccade.inference.batching import source_from
from saccade.inference.device import choose_device
from saccade.inference.engine import EngineName, Precision
from saccade.inference.engines import NO_BYTES, Exporter, check_engine, unavailable
from saccade.inference.opening import open_parts
from saccade.inference.shortlist import read_shortlist
from saccade.inference.translator import Translator
from saccade.model_folder import GENERATION, ModelFolder, find_model_folder, load_model_folder
from saccade.ops.int8_linear import int8_available
from saccade.plans.plan import plan_for


def load(
    path: str | Path | Sequence[str | Path],
    device: str = "auto",
    *,
    engine: EngineName = "auto",
    precision: Precision = "float32",
    mean: Mean = "arithmetic",
    weights: Sequence[float] | None = None,
    lexicon: str | Path | None = None,
    shortlist: str | Path | None = None,
) -> Translator:
    """A translator from a run directory or a model folder, on the fastest device there is.

    The engine `auto` is torch; on a CPU without kernels of ours it is CTranslate2 for what that can do. The `precision`
    may be int8, faster with many texts and less exact.

    Several paths are an ensemble: the models decode together, by the `mean` of their probabilities, with `weights` if
    they should not count alike. Decoding defaults are those of the first. `lexicon` is a file of words that unknown
    ones can be replaced by, `shortlist` one of pieces: a search then considers only likely translations.
    """
    place = choose_device(device)
    paths = [path] if isinstance(path, str | Path) else list(path)
    shares_of(weights, len(paths))  # refused before the models are read
    check_engine(engine, precision, len(paths))
    folders = [find_model_folder(Path(name)) for name in paths]
    if len(folders) == 1:
        found = open_translator(folders[0], place, engine, precision)
    else:
        translators = [open_translator(folder, place, "torch", precision) for folder in folders]
        found = together(translators, [str(name) for name in paths], mean=mean, weights=weights)
    found.lexicon = None if lexicon is None else read_lexicon(lexicon)
    found.shortlist = None if shortlist is None else read_shortlist(shortlist, found.tokenizers)
    return found


def open_translator(folder: Path, device: torch.device, engine: EngineName, precision: Precision) -> Translator:
    """The translator of one model folder; `auto` asks CTranslate2 only where torch has no kernels of ours for it."""
    has_kernels = library() is not None and (precision == "float32" or int8_available())
    if engine == "torch" or (engine == "auto" and has_kernels):
        if precision == "int8":
            check_bytes(device)
        return translator_from(load_model_folder(folder, device), device, where=str(folder), precision=precision)
    parts = open_parts(folder, device)
    decoding = build(DecodingConfig, parts.generation, where=str(folder / GENERATION))
    reason = unavailable(parts.config, device)
    if reason is not None and (engine == "ctranslate2" or precision == "int8"):
        do = "leave the engine to auto" if engine == "ctranslate2" else NO_BYTES
        raise UsageError(f"the engine ctranslate2 cannot run this model: {reason}", do=do)
    exporter = None
    if reason is None:
        insists = engine == "ctranslate2" or precision == "int8"
        exporter = Exporter(folder, parts, decoding, precision=precision, insists=insists)
    return Translator(parts.model, parts.tokenizers, decoding, device, exporter=exporter)


def check_bytes(device: torch.device) -> None:
    """Refuse products of bytes where there are none."""
    if device.type != "cpu":
        do = f"choose the device cpu, or {NO_BYTES}"
        raise UsageError(f"int8 runs on the CPU here, and the device is {device.type}", do=do)
    if not int8_available():
        needed = "AVX2" if library() is not None else "AVX2, and a C compiler when Saccade is installed"
        raise UsageError(f"torch has no products of bytes here: they need {needed}", do=NO_BYTES)


def translator_from(
    folder: ModelFolder,
    device: torch.device | str = "cpu",
    where: str = "model",
    *,
    precision: Precision = "float32",
) -> Translator:
    """A translator from a model folder in memory."""
    decoding = build(DecodingConfig, folder.generation, where=str(Path(where) / GENERATION))
    return Translator(plan_for(folder.model, precision), folder.tokenizers, decoding, device)


def together(
    translators: Sequence[Translator],
    names: Sequence[str],
    *,
    mean: Mean = "arithmetic",
    weights: Sequence[float] | None = None,
) -> Translator:
    """Several translators as one, with the decoding defaults of the first; `names` are for errors."""
    first = translators[0]
    check_same_target([translator.tokenizers.target for translator in translators], names)
    readers = [translator.tokenizers.source for translator in translators]
    source_tokenizers = readers[:1] if same_reading(readers) else readers
    example = source_from([([],) * len(source_tokenizers)], source_tokenizers, first.device)
    ensemble = Ensemble([translator.model for translator in translators], example, mean=mean, weights=weights)
    return Translator(ensemble, first.tokenizers, first.decoding, first.device, source_tokenizers=source_tokenizers)

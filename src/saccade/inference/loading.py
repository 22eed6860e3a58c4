"""Loading of a `Translator` from the path of a run directory or model folder, or of an ensemble from several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch

from saccade.arguments import check_call, check_choice, is_path, path_of
from saccade.config import build
from saccade.data.lexicon.lexicon_file import read_lexicon
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.ensemble import Mean, shares_of
from saccade.errors import SaccadeError, UsageError
from saccade.folder import MANIFEST, read_json, verify_while_reading
from saccade.inference.deferred_model import DeferredModel
from saccade.inference.device import choose_device
from saccade.inference.engines.ctranslate2_cache import seems_cached
from saccade.inference.engines.ctranslate2_export import CTranslate2Exporter, unavailable
from saccade.inference.engines.engine import EngineName, Precision
from saccade.inference.engines.selection import USE_FLOAT32, check_engine
from saccade.inference.ensemble_translator import build_ensemble
from saccade.inference.shortlist_file import read_shortlist
from saccade.inference.translator import Translator
from saccade.interface import TranslationModel
from saccade.model_folder import (
    CARD,
    CONFIG,
    GENERATION,
    WEIGHTS,
    ModelFolder,
    find_model_folder,
    load_model_folder,
    vocabulary_sizes,
)
from saccade.models.family import ModelConfig
from saccade.models.registry import choose
from saccade.models.transformer import TransformerConfig
from saccade.ops.dispatch import kernels_in_use
from saccade.ops.int8_linear import int8_available

READ_ATTEMPTS = 3  # training may replace a model folder while it is read


@check_call
def load(
    path: str | PathLike[str] | Sequence[str | PathLike[str]],
    device: str = "auto",
    *,
    engine: EngineName = "auto",
    precision: Precision = "float32",
    mean: Mean = "arithmetic",
    weights: Sequence[float] | None = None,
    lexicon: str | PathLike[str] | None = None,
    shortlist: str | PathLike[str] | None = None,
) -> Translator:
    """Return the translator of a run directory or a model folder, by default on the fastest device.

    The engine `auto` is torch, or CTranslate2 on a CPU without our kernels if it supports the model. The `precision`
    int8 is faster for large batches and changes a few outputs.

    Several paths are an ensemble: the models decode together by the `mean` of their probabilities, with equal weights
    unless `weights` are given. Decoding defaults are those of the first model. `lexicon` is a file of translations
    that replace unknown words; `shortlist` is a lexicon of pieces that restricts the output vocabulary.
    """
    paths = model_paths(path)
    torch_device = choose_device(device)
    check_choice(mean, "mean", get_args(Mean))
    shares_of(weights, len(paths))  # raises an error before any model is read
    check_engine(engine, precision, len(paths))
    lexicon_file = None if lexicon is None else path_of(lexicon, "lexicon")
    shortlist_file = None if shortlist is None else path_of(shortlist, "shortlist")
    folders = [find_model_folder(name) for name in paths]
    if len(folders) == 1:
        translator = load_translator(folders[0], torch_device, engine, precision)
    else:
        members = [load_translator(folder, torch_device, "torch", precision) for folder in folders]
        translator = build_ensemble(members, [str(name) for name in paths], mean=mean, weights=weights)
    if not isinstance(translator.load_model, DeferredModel):
        translator.load_plan()  # now, not with the first request
    translator.lexicon = None if lexicon_file is None else read_lexicon(lexicon_file)
    translator.shortlist = None if shortlist_file is None else read_shortlist(shortlist_file, translator.tokenizers)
    return translator


def model_paths(path: object) -> list[Path]:
    """Return the paths of the members, from the path of one model or a list of paths."""
    hint = "give the path of a run or of a model folder; several paths in a list are an ensemble"
    if is_path(path) or not isinstance(path, Sequence) or isinstance(path, bytes):
        return [path_of(path, "path", hint=hint)]
    return [path_of(name, f"path[{index}]", hint=hint) for index, name in enumerate(path)]


def load_translator(path: Path, device: torch.device, engine: EngineName, precision: Precision) -> Translator:
    """Return the translator of one model folder; `auto` is CTranslate2 if torch has no kernels for the precision."""
    has_kernels = kernels_in_use() and (precision == "float32" or int8_available())
    if engine == "torch" or (engine == "auto" and has_kernels):
        if precision == "int8":
            check_int8(device)
        return translator_from(load_model_folder(path, device), device, where=str(path), precision=precision)
    return load_for_ctranslate2(path, device, engine, precision)


def load_for_ctranslate2(path: Path, device: torch.device, engine: EngineName, precision: Precision) -> Translator:
    """Return the translator of one model folder with CTranslate2, or with torch if `auto` allows that."""
    required = engine == "ctranslate2" or precision == "int8"
    opened = open_model_folder(path, device)
    decoding = build(DecodingConfig, opened.generation, where=str(path / GENERATION))
    reason = unavailable(opened.config, device)
    if reason is not None and required:
        hint = "leave the engine at auto" if engine == "ctranslate2" else USE_FLOAT32
        raise UsageError(f"the engine ctranslate2 cannot run this model: {reason}", hint=hint)
    exporter = None
    if reason is None:
        assert isinstance(opened.config, TransformerConfig)
        exporter = CTranslate2Exporter(
            *(path, opened.manifest, opened.config, opened.load_model, opened.tokenizers, decoding),
            precision=precision,
            required=required,
        )
    return Translator(opened.load_model, opened.tokenizers, decoding, device, exporter=exporter)


def check_int8(device: torch.device) -> None:
    """Raise an error if torch has no int8 kernels on this device."""
    if device.type != "cpu":
        hint = f"choose the device cpu, or {USE_FLOAT32}"
        raise UsageError(f"int8 runs on the CPU only, not on {device.type}", hint=hint)
    if not int8_available():
        needed = "AVX2" if kernels_in_use() else "AVX2, and a C compiler when Saccade is installed"
        raise UsageError(f"the int8 kernels are not available on this machine: they need {needed}", hint=USE_FLOAT32)


def translator_from(
    folder: ModelFolder,
    device: torch.device | str = "cpu",
    where: str = "model",
    *,
    precision: Precision = "float32",
) -> Translator:
    """Return the translator of a model folder in memory."""
    decoding = build(DecodingConfig, folder.generation, where=str(Path(where) / GENERATION))
    return Translator(folder.model, folder.tokenizers, decoding, device, precision=precision)


class OpenedFolder(NamedTuple):
    """A verified model folder whose model may not be loaded yet."""

    config: ModelConfig
    load_model: DeferredModel[TranslationModel]
    tokenizers: Tokenizers
    generation: Mapping[str, Any]
    manifest: Mapping[str, Any]


def open_model_folder(path: Path, device: torch.device) -> OpenedFolder:
    """Verify and open a model folder; the model itself is loaded later if a CTranslate2 export is cached.

    A cached export names the weights and settings that a model was built from: they need not be checked again.
    """
    opened = open_without_model(path, device) if seems_cached(path) else None
    if opened is not None:
        return opened
    folder, manifest = load_unchanged(path, device)
    model = DeferredModel(lambda: folder.model)
    return OpenedFolder(folder.choice.config, model, folder.tokenizers, folder.generation, manifest)


def open_without_model(path: Path, device: torch.device) -> OpenedFolder | None:
    """Open a model folder without its model; None if its files contradict each other: loading it reports how."""
    with verify_while_reading(path, CONFIG, WEIGHTS, GENERATION, CARD) as names:
        manifest = read_json(path / MANIFEST)
        config = read_json(path / CONFIG)
        tokenizers = load_tokenizers(path, names)
        generation = read_json(path / GENERATION)
    try:
        choice = choose(config["model"], where=str(path / CONFIG))
    except (SaccadeError, KeyError):
        return None
    if config.get("sizes") != asdict(vocabulary_sizes(tokenizers)):
        return None

    def load_model() -> TranslationModel:
        folder, current_manifest = load_unchanged(path, device)
        if current_manifest != manifest:
            raise replaced(path)
        model: TranslationModel = folder.model
        return model

    return OpenedFolder(choice.config, DeferredModel(load_model), tokenizers, generation, manifest)


def load_unchanged(path: Path, device: torch.device) -> tuple[ModelFolder, Mapping[str, Any]]:
    """Return a model folder and the manifest of exactly these files, read again if training replaces them meanwhile."""
    for _ in range(READ_ATTEMPTS):
        before = read_json(path / MANIFEST)
        folder = load_model_folder(path, device)
        if read_json(path / MANIFEST) == before:
            return folder, before
    raise replaced(path)


def replaced(path: Path) -> SaccadeError:
    """Return the error for a model folder that was replaced while it was read."""
    return SaccadeError("the model folder was replaced while it was being read", where=str(path), hint="try again")

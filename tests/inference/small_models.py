"""Model folders of untrained Transformers, small enough to decode in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contracts.registered_models import build_model, choice_of
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.inference.translator import Translator
from saccade.model_folder import ModelFolder, save_model_folder, vocabulary_sizes

TEXTS = ["ab cd", "", "ef", "ab ab cd ef gh", "gh", "cd ef ab", "  ", "ef gh", "kl mn op", "abcdefgh", "p o n m l k"]

PAIRS = [Pair("ab cd ef gh ij kl mn op", "AB CD EF GH IJ KL MN OP"), Pair("gh ab", "GH AB")] * 3


def save_model(
    path: Path, changes: dict[str, Any] | None = None, *, family: str = "transformer", joint: bool = True, seed: int = 0
) -> Path:
    """Write a model folder; some of its outputs reach the maximum length."""
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="char", joint=joint))
    subject = (family, changes or {})
    model = build_model(subject, vocabulary_sizes(tokenizers), seed)
    decoding = {"beam": 3, "max_length_factor": 1.5, "max_length_offset": 4}
    save_model_folder(path, ModelFolder(model, choice_of(subject), tokenizers, decoding))
    return path


def best_tokens(translator: Translator, **changes: Any) -> list[tuple[int, ...]]:
    """The best output for each of the texts, decoded together."""
    translations = translator.stream(TEXTS, translator.settings(changes), scores=False)
    return [translation.candidates[0].tokens for translation in translations]


def engine_name(translator: Translator, **changes: Any) -> str:
    """The engine that is chosen for decoding settings."""
    return translator.engines.choose(translator.settings(changes).for_search).name

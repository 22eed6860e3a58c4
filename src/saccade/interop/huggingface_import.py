"""Import of an untrusted Marian or Pegasus folder of Hugging Face as our Transformer; no code in it is executed.

A setting that our Transformer cannot express is an error that names the setting. To support another setting, extend
`ACTIVATIONS` or `settings_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import damaged, read_json
from saccade.interface import VocabularySizes
from saccade.interop.huggingface_export import (
    ARCHITECTURES,
    CONFIG,
    GENERATION,
    SACCADE_KEY,
    WEIGHTS,
    embedding_entries,
    position_entries,
    shares_tables,
)
from saccade.interop.huggingface_tokenizer import TARGET, check_ids, load_tokenizer
from saccade.interop.transformer_names import Entry, entries, residual_permutation, table, to_ours
from saccade.layers.positions import sinusoids
from saccade.models.registry import Choice, choose
from saccade.models.transformer import TransformerConfig
from saccade.untrusted_files import shown

FAMILY = "transformer"
ACTIVATIONS: Mapping[str, Mapping[str, Any]] = {"relu": {}}  # our settings for each activation_function
POSITIONS = tuple(entry.theirs[0] for entry in position_entries())
BIAS = "final_logits_bias"


class ImportedModel(NamedTuple):
    """An imported model with its config, tokenizers and decoding defaults."""

    model: nn.Module
    choice: Choice
    tokenizers: Tokenizers
    decoding: dict[str, Any]


def load_huggingface(folder: Path) -> ImportedModel:
    """Read config, weights, tokenizer and decoding defaults of a folder."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "no such folder"
        raise SaccadeError(what, where=str(folder), hint="give a folder that transformers wrote with save_pretrained")
    if not (folder / CONFIG).is_file():
        raise SaccadeError(
            f"has no {CONFIG}", where=str(folder), hint="give a folder that transformers wrote with save_pretrained"
        )
    settings = read_json(folder / CONFIG)
    check_settings(settings, folder / CONFIG)
    tensors = load_weights(folder)
    check_ids(settings, folder / CONFIG)
    tokenizers = load_tokenizers(folder)
    choice = choose(
        {"family": FAMILY, **settings_of(settings, tensors, tokenizers, folder)}, where=str(folder / CONFIG)
    )
    model = build_model(choice, tokenizers, settings, tensors, folder)
    return ImportedModel(model, choice, tokenizers, decoding_of(settings, folder))


def check_settings(settings: Mapping[str, Any], path: Path) -> None:
    """Raise an error for settings that our Transformer does not support."""
    kind = settings.get("model_type")
    if settings.keys() == {"saccade", "model", "sizes"}:
        raise SaccadeError("is already a model of Saccade", where=str(path.parent), hint="use it directly")
    if kind not in ARCHITECTURES:
        raise SaccadeError(
            f"the model has the type {shown(kind)}",
            where=str(path),
            hint=f"these can be imported: {', '.join(ARCHITECTURES)}",
        )
    activation = settings.get("activation_function", "gelu")  # their default
    if activation not in ACTIVATIONS:
        raise unsupported(path, f"activation_function is {shown(activation)}", f"has {', '.join(ACTIVATIONS)}")
    for name in ("attention_heads", "ffn_dim"):
        sides = [settings.get(f"{side}_{name}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise unsupported(path, f"{name} is {shown(sides[0])} and {shown(sides[1])}", "has one for both sides")
    if not settings.get("scale_embedding", False) and settings.get("tie_word_embeddings", True):
        raise unsupported(path, "scale_embedding is false with tied embeddings", "scales them by the root of the width")


def unsupported(path: Path, found: str, ours: str) -> SaccadeError:
    """Return the error for a setting that our Transformer does not support."""
    return SaccadeError(
        f"{found}, and the Transformer of Saccade {ours}",
        where=str(path),
        hint="run the model with transformers or CTranslate2",
    )


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of model.safetensors, which must be finite; pickled weights are not read, but are an error."""
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / f"{WEIGHTS}.index.json").exists():
            what, hint = (
                "its weights are in several files",
                "save it in one: save_pretrained(…, max_shard_size='100GB')",
            )
        elif any(folder.glob("*.bin")):
            what = "its weights are pickled, and a pickled file can execute code"
            hint = f"if you trust it, load it with transformers and save it again as {WEIGHTS}"
        else:
            what, hint = f"has no {WEIGHTS}", "give a folder that transformers wrote with save_pretrained"
        raise SaccadeError(what, where=str(folder), hint=hint)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged(path, str(error)) from None
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise damaged(path, f"the tensor {shown(name)} has infinite or NaN values, or is not floating point")
    return tensors


def load_tokenizers(folder: Path) -> Tokenizers:
    """Load the tokenizer of both sides, or the target's from its subfolder if there is one."""
    source = load_tokenizer(folder)
    return Tokenizers(source, load_tokenizer(folder / TARGET) if (folder / TARGET).is_dir() else source)


def settings_of(
    settings: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizers: Tokenizers, folder: Path
) -> dict[str, Any]:
    """Convert the settings of Hugging Face to ours; our config validates the values."""
    if BIAS in tensors and tensors[BIAS].count_nonzero():
        raise unsupported(folder / WEIGHTS, f"{BIAS} is not zero", "has no bias in its output layer")
    values = {
        "width": settings.get("d_model"),
        "encoder_layers": settings.get("encoder_layers"),
        "decoder_layers": settings.get("decoder_layers"),
        "heads": settings.get("encoder_attention_heads"),
        "feed_forward": settings.get("encoder_ffn_dim"),
        "dropout": settings.get("dropout", 0.1),
        "attention_dropout": settings.get("attention_dropout", 0.0),
        "norm": "pre" if settings["model_type"] == "pegasus" else "post",
        "positions": position_kind(tensors, folder),
        "max_positions": settings.get("max_position_embeddings", 1024),
        "embeddings": embedding_sharing(settings, tensors, joint=tokenizers.source is tokenizers.target),
        "tie_output": settings.get("tie_word_embeddings", True),
    }
    return {**values, **ACTIVATIONS[settings["activation_function"]]}


def embedding_sharing(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], *, joint: bool) -> Any:
    """Return our `embeddings` setting: as exported, unless the source and target tables differ."""
    sides = [tensors.get(f"model.{side}.embed_tokens.weight") for side in ("encoder", "decoder")]
    if joint and sides[0] is not None and sides[1] is not None and not torch.equal(sides[0], sides[1]):
        return "separate"
    exported = settings.get(SACCADE_KEY)
    if isinstance(exported, dict) and "embeddings" in exported:
        return exported["embeddings"]
    shared = settings["model_type"] == "pegasus" or settings.get("share_encoder_decoder_embeddings", True)
    return "shared" if shared else "separate"


def position_kind(tensors: Mapping[str, Tensor], folder: Path) -> str:
    """Return our `positions` setting, inferred from the position tables in the file."""
    tables = [tensors[name].float() for name in POSITIONS if name in tensors]
    if any(part.dim() != 2 for part in tables):
        raise damaged(folder / WEIGHTS, "its position tables are not matrices")
    if all(is_sinusoidal(part) for part in tables):
        return "sinusoidal"
    if len(tables) == len(POSITIONS) and not any(part.count_nonzero() for part in tables):
        return "none"
    if len(tables) < len(POSITIONS) or not any(name.endswith(".encoder.layer_norm.weight") for name in tensors):
        raise unsupported(
            folder / WEIGHTS, "its positions are not sinusoidal", "has learned ones for both sides or for none"
        )
    return "learned"


def is_sinusoidal(positions: Tensor) -> bool:
    """Return whether a position table (positions, D) has sinusoids, up to half precision."""
    expected = sinusoids(*positions.shape).index_select(1, residual_permutation(positions.size(1)))
    return torch.allclose(positions, expected, atol=4e-3)


def build_model(
    choice: Choice, tokenizers: Tokenizers, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path
) -> nn.Module:
    """Build the model with the weights of the file; each tensor must match a parameter in name and shape."""
    config = choice.config
    assert isinstance(config, TransformerConfig)
    joint = tokenizers.source is tokenizers.target
    sizes = VocabularySizes(tokenizers.source.size, tokenizers.target.size, joint)
    pre, shared = config.norm == "pre", shares_tables(config, tokenizers)
    if config.encoder_layers + config.decoder_layers > len(tensors):  # checked before names are listed
        raise damaged(folder / CONFIG, "gives more layers than the weights file has")
    listed = [*entries(config.encoder_layers, config.decoder_layers, final_norms=pre)]
    listed += aliased(embedding_entries(config, shared=shared), tensors)
    if config.positions == "learned":
        listed += [
            table(f"{side}_embedding.positions.table", name)
            for side, name in zip(("source", "target"), POSITIONS, strict=True)
        ]
    check_names(listed, tensors, config, folder / WEIGHTS)
    outline = choice.outline(sizes, most=4 * len(tensors) + 64).state_dict()
    check_sizes(listed, tensors, {name: tuple(tensor.shape) for name, tensor in outline.items()}, folder / WEIGHTS)
    order = residual_permutation(config.width)
    converted = {entry.ours: to_ours(entry, tensors, order) for entry in listed}
    if shared:
        converted["source_embedding.table"] = converted["target_embedding.table"]
    if config.tie_output:
        converted["output.table"] = converted["target_embedding.table"]
    if not settings.get("scale_embedding", False):  # the output layer is not tied, so the tables can be scaled
        converted |= {
            name: converted[name] / config.width**0.5 for name in ("source_embedding.table", "target_embedding.table")
        }
    model: nn.Module = choice.make_uninitialized(sizes)
    model.load_state_dict(converted)
    return model.eval()


def aliased(listed: list[Entry], tensors: Mapping[str, Tensor]) -> list[Entry]:
    """Return the embedding entries with the names in the file: a tied tensor may have any of several names."""
    tied = ("model.shared.weight", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight")
    if len(listed) == 1:
        return [table(listed[0].ours, next((name for name in (*tied, "lm_head.weight") if name in tensors), tied[0]))]
    return [entry for entry in listed if entry.theirs[0] != "model.shared.weight"]


def check_names(listed: list[Entry], tensors: Mapping[str, Tensor], config: TransformerConfig, path: Path) -> None:
    """Raise an error if a tensor is missing or unexpected."""
    needed = {name for entry in listed for name in entry.theirs}
    if missing := needed - tensors.keys():
        raise damaged(path, f"the tensor {shown(min(missing))} is missing: config.json describes another model")
    tables = {
        "model.shared.weight",
        "lm_head.weight",
        *(f"model.{s}.embed_tokens.weight" for s in ("encoder", "decoder")),
    }
    if unexpected := tensors.keys() - needed - tables - {BIAS, *POSITIONS}:
        raise damaged(path, f"the tensor {shown(min(unexpected))} is not part of the model in config.json")
    if config.norm == "post" and config.positions != "sinusoidal":
        raise unsupported(path, "its positions are not sinusoidal", "supports other positions only in pre-norm models")


def check_sizes(
    listed: list[Entry], tensors: Mapping[str, Tensor], ours: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Raise an error if a tensor has the wrong shape; the parts of a concatenated parameter have equal sizes."""
    for entry in listed:
        rows, *others = ours[entry.ours]
        expected = (rows // len(entry.theirs), *others)
        for name in entry.theirs:
            if tuple(tensors[name].shape) != expected:
                raise damaged(path, f"the tensor {shown(name)} is {shown(tuple(tensors[name].shape))}, not {expected}")


def decoding_of(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return decoding defaults: those of the exported model, else beam size and length penalty of Hugging Face."""
    exported = settings.get(SACCADE_KEY)
    if isinstance(exported, dict) and isinstance(exported.get("decoding"), dict):
        return dict(exported["decoding"])
    if not (folder / GENERATION).is_file():
        return {}
    theirs = read_json(folder / GENERATION)
    decoding: dict[str, Any] = {}
    if theirs.get("num_beams") is not None:
        decoding["beam"] = theirs["num_beams"]
    if theirs.get("length_penalty") is not None:
        decoding |= {"length_penalty": "plain", "length_alpha": theirs["length_penalty"]}
    return decoding

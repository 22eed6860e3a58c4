"""A Marian or Pegasus folder of Hugging Face as a Transformer of ours; nothing in it is trusted, and nothing is run.

What our settings cannot express is refused, with the setting that stands in the way. A setting that our Transformer
learns later gets a line in `ACTIVATIONS` or in `settings_of`.
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
from saccade.interop.huggingface import (
    ARCHITECTURES,
    CONFIG,
    GENERATION,
    OURS,
    WEIGHTS,
    embedding_entries,
    position_entries,
    shares_tables,
)
from saccade.interop.huggingface_tokenizer import TARGET, check_ids, load_tokenizer
from saccade.interop.transformer_names import Entry, entries, stream_order, table, to_ours
from saccade.layers.positions import sinusoids
from saccade.models.registry import Choice, choose
from saccade.models.transformer import TransformerConfig
from saccade.untrusted_files import shown

FAMILY = "transformer"
ACTIVATIONS: Mapping[str, Mapping[str, Any]] = {"relu": {}}  # theirs to our settings
POSITIONS = tuple(entry.theirs[0] for entry in position_entries())
BIAS = "final_logits_bias"


class Imported(NamedTuple):
    """What a folder held, as ours."""

    model: nn.Module
    choice: Choice
    tokenizers: Tokenizers
    decoding: dict[str, Any]


def load_huggingface(folder: Path) -> Imported:
    """Read config, weights, tokenizer and decoding defaults of a folder."""
    if not (folder / CONFIG).is_file():
        raise SaccadeError(
            f"holds no {CONFIG}", where=str(folder), do="name a folder that transformers wrote with save_pretrained"
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
    return Imported(model, choice, tokenizers, decoding_of(settings, folder))


def check_settings(settings: Mapping[str, Any], path: Path) -> None:
    """Refuse what our Transformer is not."""
    kind = settings.get("model_type")
    if settings.keys() == {"saccade", "model", "sizes"}:
        raise SaccadeError("is a model of Saccade already", where=str(path.parent), do="use it as it is")
    if kind not in ARCHITECTURES:
        raise SaccadeError(
            f"the model is of the type {shown(kind)}",
            where=str(path),
            do=f"these can be imported: {', '.join(ARCHITECTURES)}",
        )
    activation = settings.get("activation_function", "gelu")  # their default
    if activation not in ACTIVATIONS:
        raise refused(path, f"activation_function is {shown(activation)}", f"has {', '.join(ACTIVATIONS)}")
    for name in ("attention_heads", "ffn_dim"):
        sides = [settings.get(f"{side}_{name}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise refused(path, f"{name} is {shown(sides[0])} and {shown(sides[1])}", "has one for both sides")
    if not settings.get("scale_embedding", False) and settings.get("tie_word_embeddings", True):
        raise refused(path, "scale_embedding is false with tied embeddings", "scales them by the root of the width")


def refused(path: Path, found: str, ours: str) -> SaccadeError:
    """The error for a setting that ours cannot express."""
    return SaccadeError(
        f"{found}, and the Transformer of Saccade {ours}",
        where=str(path),
        do="such a model runs in transformers or CTranslate2, not here",
    )


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, all finite; nothing else is read, pickled files least of all."""
    path = folder / WEIGHTS
    if not path.is_file():
        if (folder / f"{WEIGHTS}.index.json").exists():
            what, do = "its weights are in several files", "save it in one: save_pretrained(…, max_shard_size='100GB')"
        elif any(folder.glob("*.bin")):
            what = "its weights are pickled, and a pickled file can run anything"
            do = f"open it where you trust it and save it again with transformers, which writes {WEIGHTS}"
        else:
            what, do = f"holds no {WEIGHTS}", "name a folder that transformers wrote with save_pretrained"
        raise SaccadeError(what, where=str(folder), do=do)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no mapping
    except (OSError, SafetensorError, ValueError) as error:
        raise damaged(path, str(error)) from None
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.isfinite().all():
            raise damaged(path, f"the tensor {shown(name)} holds values that are infinite or no numbers")
    return tensors


def load_tokenizers(folder: Path) -> Tokenizers:
    """One tokenizer, or that of the target in its subfolder too."""
    source = load_tokenizer(folder)
    return Tokenizers(source, load_tokenizer(folder / TARGET) if (folder / TARGET).is_dir() else source)


def settings_of(
    settings: Mapping[str, Any], tensors: Mapping[str, Tensor], tokenizers: Tokenizers, folder: Path
) -> dict[str, Any]:
    """Our settings for theirs; what is wrong with a value, our own config says."""
    if BIAS in tensors and tensors[BIAS].count_nonzero():
        raise refused(folder / WEIGHTS, f"{BIAS} is not zero", "has no bias in its output layer")
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
        "embeddings": sharing_of(settings, tensors, joint=tokenizers.source is tokenizers.target),
        "tie_output": settings.get("tie_word_embeddings", True),
    }
    return {**values, **ACTIVATIONS[settings["activation_function"]]}


def sharing_of(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], *, joint: bool) -> Any:
    """Our setting for whether both sides have one table: as it was exported, unless training parted the two."""
    sides = [tensors.get(f"model.{side}.embed_tokens.weight") for side in ("encoder", "decoder")]
    if joint and sides[0] is not None and sides[1] is not None and not torch.equal(sides[0], sides[1]):
        return "separate"
    kept = settings.get(OURS)
    if isinstance(kept, dict) and "embeddings" in kept:
        return kept["embeddings"]
    shared = settings["model_type"] == "pegasus" or settings.get("share_encoder_decoder_embeddings", True)
    return "shared" if shared else "separate"


def position_kind(tensors: Mapping[str, Tensor], folder: Path) -> str:
    """What the tables of positions in the file are, if there are any."""
    found = [tensors[name].float() for name in POSITIONS if name in tensors]
    if any(part.dim() != 2 for part in found):
        raise damaged(folder / WEIGHTS, "its positions are no tables")
    if all(is_sinusoidal(part) for part in found):
        return "sinusoidal"
    if len(found) == len(POSITIONS) and not any(part.count_nonzero() for part in found):
        return "none"
    if len(found) < len(POSITIONS) or not any(name.endswith(".encoder.layer_norm.weight") for name in tensors):
        raise refused(folder / WEIGHTS, "its positions are no sinusoids", "has learned ones for both sides or for none")
    return "learned"


def is_sinusoidal(found: Tensor) -> bool:
    """Whether a table (places, D) of theirs holds sinusoids, perhaps in half precision."""
    expected = sinusoids(*found.shape).index_select(1, stream_order(found.size(1)))
    return torch.allclose(found, expected, atol=4e-3)


def build_model(
    choice: Choice, tokenizers: Tokenizers, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path
) -> nn.Module:
    """The model with their weights; every tensor of the file must have its place in it, and its size."""
    config = choice.config
    assert isinstance(config, TransformerConfig)
    joint = tokenizers.source is tokenizers.target
    sizes = VocabularySizes(tokenizers.source.size, tokenizers.target.size, joint)
    pre, shared = config.norm == "pre", shares_tables(config, tokenizers)
    if config.encoder_layers + config.decoder_layers > len(tensors):  # before all of their names are listed
        raise damaged(folder / CONFIG, "speaks of more layers than the file of weights can hold")
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
    order = stream_order(config.width)
    own = {entry.ours: to_ours(entry, tensors, order) for entry in listed}
    if shared:
        own["source_embedding.table"] = own["target_embedding.table"]
    if config.tie_output:
        own["output.table"] = own["target_embedding.table"]
    if not settings.get("scale_embedding", False):  # untied, so the scale can go into the tables
        own |= {name: own[name] / config.width**0.5 for name in ("source_embedding.table", "target_embedding.table")}
    model: nn.Module = choice.make_unfilled(sizes)
    model.load_state_dict(own)
    return model.eval()


def aliased(listed: list[Entry], tensors: Mapping[str, Tensor]) -> list[Entry]:
    """The tables under the names that the file has for them: a tied tensor may stand under any of its names."""
    tied = ("model.shared.weight", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight")
    if len(listed) == 1:
        return [table(listed[0].ours, next((name for name in (*tied, "lm_head.weight") if name in tensors), tied[0]))]
    return [entry for entry in listed if entry.theirs[0] != "model.shared.weight"]


def check_names(listed: list[Entry], tensors: Mapping[str, Tensor], config: TransformerConfig, path: Path) -> None:
    """Refuse a file that lacks a tensor, or has one that belongs nowhere."""
    needed = {name for entry in listed for name in entry.theirs}
    if missing := needed - tensors.keys():
        raise damaged(path, f"the tensor {shown(min(missing))} is missing: config.json speaks of another model")
    tables = {
        "model.shared.weight",
        "lm_head.weight",
        *(f"model.{s}.embed_tokens.weight" for s in ("encoder", "decoder")),
    }
    if strange := tensors.keys() - needed - tables - {BIAS, *POSITIONS}:
        raise damaged(path, f"the tensor {shown(min(strange))} has no place in a model of this config.json")
    if config.norm == "post" and config.positions != "sinusoidal":
        raise refused(path, "its positions are no sinusoids", "takes such ones from a pre-norm model only")


def check_sizes(
    listed: list[Entry], tensors: Mapping[str, Tensor], ours: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Refuse tensors that do not fit: each part of a fused one is as high as the others."""
    for entry in listed:
        rows, *others = ours[entry.ours]
        expected = (rows // len(entry.theirs), *others)
        for name in entry.theirs:
            if tuple(tensors[name].shape) != expected:
                raise damaged(path, f"the tensor {shown(name)} is {shown(tuple(tensors[name].shape))}, not {expected}")


def decoding_of(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Our decoding defaults: those of the model that was exported, or what theirs say of beams and lengths."""
    kept = settings.get(OURS)
    if isinstance(kept, dict) and isinstance(kept.get("decoding"), dict):
        return dict(kept["decoding"])
    if not (folder / GENERATION).is_file():
        return {}
    theirs = read_json(folder / GENERATION)
    found: dict[str, Any] = {}
    if theirs.get("num_beams") is not None:
        found["beam"] = theirs["num_beams"]
    if theirs.get("length_penalty") is not None:
        found |= {"length_penalty": "plain", "length_alpha": theirs["length_penalty"]}
    return found

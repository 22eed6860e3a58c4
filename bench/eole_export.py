"""Convert a Saccade Transformer to an eole model, by renaming its weights.

Only pre-norm models, because eole supports no other. Token ids are unchanged; eole reads tokens instead of text.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import saccade
from bench.models import NoModelError, SaccadeModel, export_path
from saccade.layers.positions import sinusoids
from saccade.symbols import Symbols

MAX_POSITIONS = 5000  # of eole
ATTENTION = {"query": "linear_query", "key": "linear_keys", "value": "linear_values", "output": "final_linear"}
NORMS = {
    "encoder": {"attention_residual": "input_layernorm", "feed_forward_residual": "post_attention_layernorm"},
    "decoder": {
        "attention_residual": "input_layernorm",
        "cross_residual": "precontext_layernorm",
        "feed_forward_residual": "post_attention_layernorm",
    },
}


def eole_model(model: SaccadeModel) -> Path:
    """The folder of the converted model, created if it does not exist."""
    path = export_path(model, "eole")
    if path.is_dir():
        return path
    config = json.loads((model.folder / "config.json").read_text(encoding="utf-8"))["model"]
    if config["family"] != "transformer" or config["norm"] != "pre" or config["positions"] != "sinusoidal":
        raise NoModelError("eole supports only pre-norm Transformers with sinusoidal positions")
    translator = saccade.load(str(model.folder), "cpu", engine="torch")
    weights = {name: tensor.detach() for name, tensor in translator.model.state_dict().items()}
    folder = path.with_suffix(".partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(eole_weights(weights, config["width"]), folder / "model.00.safetensors")
    tokens = list(translator.tokenizers.source.vocabulary)
    names = {
        "unk_token": Symbols.unknown,
        "pad_token": Symbols.pad,
        "bos_token": Symbols.begin,
        "eos_token": Symbols.end,
    }
    specials = {name: tokens[token] for name, token in names.items()}
    vocabulary = {"src": tokens, "tgt": tokens, "decoder_start_token": tokens[Symbols.begin], "specials": specials}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    paths = {"src_vocab": "vocab.json", "tgt_vocab": "vocab.json"}  # required but not read
    settings = {**specials, **paths, "share_vocab": True, "transforms": [], "model": eole_settings(config)}
    (folder / "config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return folder.rename(path)


def eole_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The model settings in eole's format."""
    width = config["width"]
    return {
        "architecture": "transformer",
        "hidden_size": width,
        "layers": config["encoder_layers"],
        "heads": config["heads"],
        "transformer_ff": config["feed_forward"],
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "add_qkvbias": True,
        "add_final_linear_bias": True,
        "add_ffnbias": True,
        "embeddings": {"word_vec_size": width, "position_encoding_type": "SinusoidalInterleaved"},
    }


def eole_weights(weights: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """The weights under eole's names."""
    table, positions = weights["source_embedding.table"], sinusoids(MAX_POSITIONS, width)[:, None]
    named = {
        "src_emb.embeddings.weight": table,
        "src_emb.pe.pe": positions,
        "tgt_emb.pe.pe": positions,
        "generator.bias": torch.zeros(len(table)),
    }
    for side, norms in NORMS.items():
        layers = {int(name.split(".")[1]) for name in weights if name.startswith(f"{side}.")}
        for kind in ("weight", "bias"):
            named[f"{side}.layer_norm.{kind}"] = weights[f"{side}_norm.{kind}"]
            for layer in layers:
                ours, theirs = f"{side}.{layer}", f"{side}.transformer_layers.{layer}"
                for norm, name in norms.items():
                    named[f"{theirs}.{name}.{kind}"] = weights[f"{ours}.{norm}.norm.{kind}"]
                attentions = {"attention": "self_attn", **({"cross": "context_attn"} if side == "decoder" else {})}
                for attention, name in attentions.items():
                    for part, tensor in projections(weights, f"{ours}.{attention}", kind).items():
                        named[f"{theirs}.{name}.{ATTENTION[part]}.{kind}"] = tensor
                named[f"{theirs}.mlp.gate_up_proj.{kind}"] = weights[f"{ours}.feed_forward.expand.{kind}"]
                named[f"{theirs}.mlp.down_proj.{kind}"] = weights[f"{ours}.feed_forward.contract.{kind}"]
    for layer in {int(name.split(".")[1]) for name in weights if name.startswith("decoder.")}:
        named[f"decoder.transformer_layers.{layer}.layer_scalar"] = torch.ones(1)
    return {name: tensor.clone().contiguous() for name, tensor in named.items()}


def projections(weights: dict[str, Tensor], prefix: str, kind: str) -> dict[str, Tensor]:
    """Query, key, value and output projections of an attention layer, split."""
    if f"{prefix}.query_key_value.{kind}" in weights:
        query, key, value = weights[f"{prefix}.query_key_value.{kind}"].chunk(3)
    else:
        query, (key, value) = weights[f"{prefix}.query.{kind}"], weights[f"{prefix}.key_value.{kind}"].chunk(2)
    return {"query": query, "key": key, "value": value, "output": weights[f"{prefix}.output.{kind}"]}

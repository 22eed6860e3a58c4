"""Export of a Transformer as a folder for `AutoModelForSeq2SeqLM` and `AutoTokenizer`, with equal logits.

    config.json               post-norm becomes a MarianMTModel, pre-norm a PegasusForConditionalGeneration
    generation_config.json    decoding defaults, as far as transformers has equivalents
    model.safetensors         weights (names in saccade.interop.transformer_names)
    tokenizer.json …          the tokenizer; with separate vocabularies that of the source, and the target's in target/

The export does not need the transformers package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import write_json
from saccade.interop.huggingface_tokenizer import save_tokenizers
from saccade.interop.transformer_names import Entry, entries, residual_permutation, table, to_theirs
from saccade.layers.positions import sinusoids
from saccade.models.family import ModelConfig
from saccade.models.transformer import TransformerConfig
from saccade.symbols import Symbols

CONFIG, GENERATION, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
SACCADE_KEY = "saccade"  # key in config.json of the settings that only `saccade import` reads
MAX_OUTPUT_LENGTH = 512  # transformers has no output limit relative to the input length

ARCHITECTURES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}


def save_huggingface(
    folder: Path, model: nn.Module, config: ModelConfig, tokenizers: Tokenizers, decoding: Mapping[str, Any]
) -> None:
    """Write the files into an existing folder; `decoding` are all decoding defaults of the model."""
    reason = unsupported_reason(config, tokenizers)
    if reason is not None:
        raise SaccadeError(
            f"Hugging Face has no such model: {reason}",
            hint="export it with --format onnx, or train with other settings (docs/guide/exporting.md)",
        )
    assert isinstance(config, TransformerConfig)
    write_json(folder / CONFIG, config_document(config, tokenizers, decoding))
    write_json(folder / GENERATION, generation_document(config, decoding))
    try:
        save_file(weights(model, config, tokenizers), folder / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:  # also raised if the disk is full
        raise OSError(str(error)) from None
    save_tokenizers(folder, tokenizers, config.max_positions)


def unsupported_reason(config: ModelConfig, tokenizers: Tokenizers) -> str | None:
    """Return the reason why no Hugging Face model has the same outputs; None if there is one."""
    if not isinstance(config, TransformerConfig):
        return "the model is not a Transformer"
    if config.radius is not None:
        return f"radius is {config.radius}, and its self-attention is not restricted (radius null works)"
    if config.cross_radius is not None:
        return f"cross-radius is {config.cross_radius}, and its cross-attention is not restricted (null works)"
    if config.experts:
        return f"experts is {config.experts}, and its feed-forward layers are one network (experts 0 works)"
    if config.position_use == "concatenate":
        return "position-use is concatenate, and its positions are added (position-use add works)"
    if config.norm == "pre" and not shares_tables(config, tokenizers):
        return (
            "norm is pre with separate embedding tables, and its pre-norm model has one table for both sides "
            "(norm post works, and so does data.joint true with embeddings auto)"
        )
    if config.norm == "post" and config.positions != "sinusoidal":
        return (
            f"norm is post with positions {config.positions}, and its post-norm model recomputes sinusoids "
            "whenever it is saved (positions sinusoidal works, and so does norm pre)"
        )
    return None


def shares_tables(config: TransformerConfig, tokenizers: Tokenizers) -> bool:
    """Return whether source and target share one embedding table."""
    return tokenizers.source is tokenizers.target and config.embeddings != "separate"


def model_type(config: TransformerConfig) -> str:
    """Return the model type of Hugging Face: Pegasus is pre-norm, Marian is post-norm."""
    return "pegasus" if config.norm == "pre" else "marian"


def config_document(config: TransformerConfig, tokenizers: Tokenizers, decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json; every setting with a different default in transformers is written."""
    kind, symbols = model_type(config), Symbols()
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", getattr(config, f"{side}_layers")),
            ("attention_heads", config.heads),
            ("ffn_dim", config.feed_forward),
            ("layerdrop", 0.0),
        )
    }
    vocabularies: dict[str, Any] = {"vocab_size": tokenizers.source.size}
    if kind == "marian":
        vocabularies["decoder_vocab_size"] = tokenizers.target.size
        vocabularies["share_encoder_decoder_embeddings"] = shares_tables(config, tokenizers)
    return {
        "model_type": kind,
        "architectures": [ARCHITECTURES[kind]],
        "is_encoder_decoder": True,
        "d_model": config.width,
        **sides,
        **vocabularies,
        "activation_function": "relu",
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "max_position_embeddings": config.max_positions,
        "tie_word_embeddings": config.tie_output,
        "pad_token_id": symbols.pad,
        "bos_token_id": symbols.begin,
        "eos_token_id": symbols.end,
        "decoder_start_token_id": symbols.begin,
        "forced_eos_token_id": None,
        "dtype": "float32",
        SACCADE_KEY: {"embeddings": config.embeddings, "decoding": dict(decoding)},
    }


def generation_document(config: TransformerConfig, decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of generation_config.json: settings with the same meaning in both libraries.

    Their length penalty is length^alpha, which is our `plain`; for `gnmt` it is the nearest equivalent.
    """
    symbols = Symbols()
    suppressed = [symbols.pad, symbols.begin]
    beam = 1 if decoding["sample"] else decoding["beam"]
    document: dict[str, Any] = {
        "pad_token_id": symbols.pad,
        "bos_token_id": symbols.begin,
        "eos_token_id": symbols.end,
        "decoder_start_token_id": symbols.begin,
        "suppress_tokens": suppressed if decoding["allow_unknown"] else [*suppressed, symbols.unknown],
        "max_length": min(
            decoding["max_length"] + 1 if decoding["max_length"] else MAX_OUTPUT_LENGTH, config.max_positions
        ),
        "num_beams": beam,
    }
    if beam > 1:
        document["length_penalty"] = 0.0 if decoding["length_penalty"] == "none" else decoding["length_alpha"]
    if decoding["min_length"]:
        document["min_new_tokens"] = decoding["min_length"]
    return document


def weights(model: nn.Module, config: TransformerConfig, tokenizers: Tokenizers) -> dict[str, Tensor]:
    """Return the tensors of model.safetensors under their Hugging Face names."""
    order = residual_permutation(config.width)
    tensors = {name: tensor.float().cpu() for name, tensor in model.state_dict().items()}
    pre = config.norm == "pre"
    listed = [*entries(config.encoder_layers, config.decoder_layers, final_norms=pre)]
    listed += embedding_entries(config, shared=shares_tables(config, tokenizers))
    if pre:  # Pegasus stores its position tables in the file
        tensors |= {f"{side}.table": position_table(config, tensors, side) for side in ("source", "target")}
        listed += position_entries()
    renamed = {name: tensor for entry in listed for name, tensor in to_theirs(entry, tensors, order).items()}
    return {**renamed, "final_logits_bias": torch.zeros(1, tokenizers.target.size)}


def embedding_entries(config: TransformerConfig, *, shared: bool) -> list[Entry]:
    """List the embedding and output tables; a tied tensor is written once."""
    source, target = "source_embedding.table", "target_embedding.table"
    listed = [table(target, "model.shared.weight")] if shared else []
    if not (shared and config.tie_output):
        listed += [
            table(source, "model.encoder.embed_tokens.weight"),
            table(target, "model.decoder.embed_tokens.weight"),
        ]
    if not config.tie_output:
        listed.append(table("output.table", "lm_head.weight"))
    return listed


def position_entries() -> list[Entry]:
    """List the position tables of a pre-norm model."""
    sides = (("source", "encoder"), ("target", "decoder"))
    return [table(f"{ours}.table", f"model.{theirs}.embed_positions.weight") for ours, theirs in sides]


def position_table(config: TransformerConfig, tensors: Mapping[str, Tensor], side: str) -> Tensor:
    """Return the position table (positions, D) of the source or the target."""
    if config.positions == "learned":
        return tensors[f"{side}_embedding.positions.table"]
    if config.positions == "none":
        return torch.zeros(config.max_positions, config.width)
    return sinusoids(config.max_positions, config.width)

"""Export of a Transformer to CTranslate2.

The specification is filled directly, without a converter: every vocabulary row is kept, and positions are written as a
table in the layout of our model. Sources must end with the end symbol: the runtime does not add it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.errors import SaccadeError
from saccade.interop.exported_tokenizers import save_tokenizers
from saccade.layers.positions import sinusoids
from saccade.models.family import ModelConfig
from saccade.models.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerConfig
from saccade.symbols import Symbols

MAX_POSITIONS = 2048  # size of the position table if the model has no maximum length

MODEL = "model.bin"


def unsupported_reason(config: ModelConfig) -> str | None:
    """Return the reason why CTranslate2 cannot run a model; None if it can."""
    if not isinstance(config, TransformerConfig):
        return "CTranslate2 runs only Transformers"
    if config.radius is not None:
        return "CTranslate2 has no bidirectional self-attention within a radius"
    if config.cross_radius is not None:
        return "CTranslate2 has no cross-attention within a radius"
    if config.experts:
        return "CTranslate2 has no mixture of experts"
    if config.position_use == "concatenate":
        return "CTranslate2 adds positions to embeddings, and this model concatenates them"
    return None


def max_length(config: TransformerConfig) -> int:
    """Return the maximum length of an exported model: its learned positions, or the size of the sinusoid table."""
    return config.max_positions if config.positions == "learned" else MAX_POSITIONS


def save_ctranslate2(
    folder: Path, model: Transformer, config: TransformerConfig, tokenizers: Tokenizers | None = None
) -> None:
    """Write a CTranslate2 model and its tokenizers into an existing folder.

    Tokens are named by their pieces, or without tokenizers by their ids: "0", "1" and so on.
    """
    reason = unsupported_reason(config)
    if reason is not None:
        raise SaccadeError(f"this model cannot be exported to CTranslate2: {reason}", hint="use the torch engine")
    sizes = model.source_embedding.table.size(0), model.target_embedding.table.size(0)
    pair: Sequence[Tokenizer | None] = (None, None) if tokenizers is None else tokenizers
    source, target = (token_names(size, tokenizer) for size, tokenizer in zip(sizes, pair, strict=True))
    spec = transformer_spec(model, config)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.bos_token, spec.config.eos_token = target[Symbols.begin], target[Symbols.end]
    spec.config.unk_token = target[Symbols.unknown]
    spec.config.add_source_bos, spec.config.add_source_eos = False, False
    spec.config.decoder_start_token = target[Symbols.begin]
    spec.validate()
    spec.optimize()  # deduplicates equal tensors
    spec.save(str(folder))
    if tokenizers is not None:
        save_tokenizers(folder, tokenizers, max_length(config))


def token_names(size: int, tokenizer: Tokenizer | None) -> list[str]:
    """Return a distinct name for every token: its piece, or its id if there is no tokenizer."""
    return [str(token) for token in range(size)] if tokenizer is None else list(tokenizer.vocabulary[:size])


def transformer_spec(model: Transformer, config: TransformerConfig) -> Any:
    """Build the specification of a model and fill it with its weights."""
    specs = import_runtime().specs
    spec = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=specs.Activation.RELU,
    )
    spec.encoder.embeddings[0].weight = to_numpy(model.source_embedding.table)
    spec.decoder.embeddings.weight = to_numpy(model.target_embedding.table)
    spec.encoder.scale_embeddings = spec.decoder.scale_embeddings = True
    spec.encoder.position_encodings.encodings = position_table(model.source_embedding.positions, config)
    spec.decoder.position_encodings.encodings = position_table(model.target_embedding.positions, config)
    if config.norm == "pre":
        set_norm(spec.encoder.layer_norm, model.encoder_norm)
        set_norm(spec.decoder.layer_norm, model.decoder_norm)
    for encoder_layer, layer_spec in zip(model.encoder, spec.encoder.layer, strict=True):
        set_encoder_layer(layer_spec, encoder_layer)  # type: ignore[arg-type]
    for decoder_layer, layer_spec in zip(model.decoder, spec.decoder.layer, strict=True):
        set_decoder_layer(layer_spec, decoder_layer)  # type: ignore[arg-type]
    spec.decoder.projection.weight = to_numpy(model.output.table)
    return spec


def set_encoder_layer(spec: Any, layer: EncoderLayer) -> None:
    """Fill an encoder layer: self-attention and feed-forward network, each with its norm."""
    set_linear(spec.self_attention.linear[0], layer.attention.query_key_value)
    set_linear(spec.self_attention.linear[1], layer.attention.output)
    set_norm(spec.self_attention.layer_norm, layer.attention_residual.norm)
    set_feed_forward(spec.ffn, layer)


def set_decoder_layer(spec: Any, layer: DecoderLayer) -> None:
    """Fill a decoder layer: self-attention, cross-attention and feed-forward network, each with its norm."""
    set_linear(spec.self_attention.linear[0], layer.attention.query_key_value)
    set_linear(spec.self_attention.linear[1], layer.attention.output)
    set_norm(spec.self_attention.layer_norm, layer.attention_residual.norm)
    set_linear(spec.attention.linear[0], layer.cross.query)
    set_linear(spec.attention.linear[1], layer.cross.key_value)
    set_linear(spec.attention.linear[2], layer.cross.output)
    set_norm(spec.attention.layer_norm, layer.cross_residual.norm)
    set_feed_forward(spec.ffn, layer)


def set_feed_forward(spec: Any, layer: Any) -> None:
    """Fill a feed-forward network: two linear layers and the norm."""
    set_linear(spec.linear_0, layer.feed_forward.expand)
    set_linear(spec.linear_1, layer.feed_forward.contract)
    set_norm(spec.layer_norm, layer.feed_forward_residual.norm)


def set_linear(spec: Any, linear: nn.Linear) -> None:
    """Fill a linear layer; the weight is (out, in) in both libraries."""
    spec.weight, spec.bias = to_numpy(linear.weight), to_numpy(linear.bias)


def set_norm(spec: Any, norm: Any) -> None:
    """Fill a layer norm."""
    spec.gamma, spec.beta = to_numpy(norm.weight), to_numpy(norm.bias)


def position_table(positions: Any, config: TransformerConfig) -> np.ndarray[Any, Any]:
    """Return the position table (positions, D); zeros if the model has no positions."""
    if config.positions == "learned":
        return to_numpy(positions.table)
    if config.positions == "none":
        return np.zeros((MAX_POSITIONS, config.width), dtype=np.float32)
    return to_numpy(sinusoids(MAX_POSITIONS, config.width))


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Convert a tensor to a float32 array on the CPU."""
    return tensor.detach().float().cpu().contiguous().numpy()


def import_runtime() -> Any:
    """Import ctranslate2, lazily because it is slow to load."""
    try:
        return importlib.import_module("ctranslate2")
    except (ImportError, OSError):
        raise SaccadeError(
            "the package ctranslate2 is not installed", hint="pip install ctranslate2, or use the torch engine"
        ) from None

"""Parity of the Transformer with PyTorch's Transformer layers, with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from contracts.registered_models import SIZES, build_model, make_batch
from saccade.layers.masks import causal_mask
from saccade.models.transformer import DecoderLayer, EncoderLayer


def copy_attention(theirs: nn.MultiheadAttention, packed: nn.Linear, output: nn.Linear) -> None:
    theirs.in_proj_weight.copy_(packed.weight)
    theirs.in_proj_bias.copy_(packed.bias)
    theirs.out_proj.weight.copy_(output.weight)
    theirs.out_proj.bias.copy_(output.bias)


def copy_linear(theirs: nn.Module, ours: nn.Module) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def torch_encoder_layer(ours: EncoderLayer, norm: str) -> nn.TransformerEncoderLayer:
    theirs = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=norm == "pre")
    with torch.no_grad():
        copy_attention(theirs.self_attn, ours.attention.query_key_value, ours.attention.output)
        copy_linear(theirs.linear1, ours.feed_forward.expand)
        copy_linear(theirs.linear2, ours.feed_forward.contract)
        copy_linear(theirs.norm1, ours.attention_residual.norm)
        copy_linear(theirs.norm2, ours.feed_forward_residual.norm)
    return theirs.eval()


def torch_decoder_layer(ours: DecoderLayer, norm: str) -> nn.TransformerDecoderLayer:
    theirs = nn.TransformerDecoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=norm == "pre")
    cross = nn.Linear(16, 48)
    with torch.no_grad():
        cross.weight.copy_(torch.cat([ours.cross.query.weight, ours.cross.key_value.weight]))
        cross.bias.copy_(torch.cat([ours.cross.query.bias, ours.cross.key_value.bias]))
        copy_attention(theirs.self_attn, ours.attention.query_key_value, ours.attention.output)
        copy_attention(theirs.multihead_attn, cross, ours.cross.output)
        copy_linear(theirs.linear1, ours.feed_forward.expand)
        copy_linear(theirs.linear2, ours.feed_forward.contract)
        copy_linear(theirs.norm1, ours.attention_residual.norm)
        copy_linear(theirs.norm2, ours.cross_residual.norm)
        copy_linear(theirs.norm3, ours.feed_forward_residual.norm)
    return theirs.eval()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_stacks_equal_torch_layers(norm):
    model = build_model(("transformer", {"norm": norm}))
    batch = make_batch([7, 4, 2], [6, 3, 5])
    memory = model.encode(batch.source)
    x = model.source_embedding(batch.source.values)
    for layer in model.encoder:
        x = torch_encoder_layer(layer, norm)(x, src_key_padding_mask=~batch.source.mask)
    expected = model.encoder_norm(x)
    assert_close(memory.states[batch.source.mask], expected[batch.source.mask], rtol=1e-4, atol=1e-5)

    y = model.target_embedding(batch.prefix)
    future = ~causal_mask(y.size(1), y.size(1))
    for layer in model.decoder:
        theirs = torch_decoder_layer(layer, norm)
        y = theirs(y, memory.states, tgt_mask=future, memory_key_padding_mask=~batch.source.mask)
    outputs = model.decode(batch.prefix, memory).outputs
    assert_close(outputs[batch.target_mask], model.decoder_norm(y)[batch.target_mask], rtol=1e-4, atol=1e-5)
    assert model.logits(outputs).shape == (3, 6, SIZES.target)

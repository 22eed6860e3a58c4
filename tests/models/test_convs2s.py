"""ConvS2S: the paper's equations computed position by position, its initialization, sizes, and options."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import SEPARATE, SIZES, build_model, make_batch
from saccade.errors import SaccadeError
from saccade.interface import Source, VocabularySizes
from saccade.models.convs2s import MINIATURE, PRESETS, ConvS2S, ConvS2SConfig
from saccade.models.registry import choose


def count(config: ConvS2SConfig, sizes: VocabularySizes) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ConvS2S(config, sizes).parameters())


def expected_count(config: ConvS2SConfig, vocabulary: int) -> int:
    """Number of parameters by the paper's description, with one shared table; each normalized row has a scale g."""
    width, embedding = config.width, config.embedding
    convolution = config.kernel * width * 2 * width + 2 * 2 * width
    to_width, to_embedding = embedding * width + 2 * width, width * embedding + 2 * embedding
    encoder = to_width + config.encoder_layers * convolution + to_embedding
    decoder = to_width + config.decoder_layers * (convolution + to_embedding + to_width) + to_embedding
    tables = vocabulary * embedding * (1 if config.tie_output else 2) + 2 * config.max_positions * embedding
    return encoder + decoder + tables + vocabulary


@pytest.mark.parametrize("preset", PRESETS)
def test_number_of_parameters(preset):
    sizes = VocabularySizes(8_000, 8_000, joint=True)
    assert count(PRESETS[preset], sizes) == expected_count(PRESETS[preset], 8_000)


def test_the_deep_preset_is_the_papers_romanian_model():
    deep = PRESETS["convs2s-deep"]
    assert (deep.encoder_layers, deep.decoder_layers, deep.kernel, deep.width, deep.embedding) == (20, 20, 3, 512, 512)


def gated_convolution(layer, x, position, causal):
    """The gated linear unit of the convolution at one position of one sentence x (S, D)."""
    weight, bias = layer.convolution.projection.weight(), layer.convolution.projection.bias
    shift = 2 if causal else 1
    taps = [x[t] if 0 <= t < len(x) else torch.zeros(x.size(1)) for t in range(position - shift, position - shift + 3)]
    values, gates = (weight @ torch.cat(taps) + bias).chunk(2)
    return values * torch.sigmoid(gates)


def reference(model, source, prefix):
    """Logits and attention weights of one sentence, position by position, as in sections 3.1 to 3.4."""
    half = math.sqrt(0.5)
    e = [
        model.source_embedding.table[token] + model.source_embedding.positions_table[i]
        for i, token in enumerate(source)
    ]
    x = torch.stack([model.source_width(part) for part in e])
    for layer in model.encoder:
        x = torch.stack([(gated_convolution(layer, x, t, causal=False) + x[t]) * half for t in range(len(x))])
    z = [model.memory_width(part) for part in x]
    g = [
        model.target_embedding.table[token] + model.target_embedding.positions_table[i]
        for i, token in enumerate(prefix)
    ]
    x, attention = torch.stack([model.target_width(part) for part in g]), []
    for layer in model.decoder:
        after, weights = [], []
        for t in range(len(x)):
            h = gated_convolution(layer, x, t, causal=True)
            d = (layer.query(h) + g[t]) * half
            a = torch.stack([d @ part for part in z]).softmax(0)
            c = sum(a[j] * (z[j] + e[j]) * half for j in range(len(z))) * len(z) * math.sqrt(1 / len(z))
            after.append(((h + layer.context(c)) * half + x[t]) * half)
            weights.append(a)
        x = torch.stack(after)
        attention.append(torch.stack(weights))
    logits = [model.output_table @ model.output_width(part) + model.output_bias for part in x]
    return torch.stack(logits), attention


@torch.no_grad()
def test_equations_of_the_paper_position_by_position():
    model = build_model(("convs2s", {}), SEPARATE)
    batch = make_batch([6, 3, 1], [5, 5, 4], SEPARATE)
    decoded = model.decode(batch.prefix, model.encode(batch.source), record=True)
    logits = model.logits(decoded.outputs)
    for sentence in range(3):
        size, length = int(batch.source.mask[sentence].sum()), int(batch.target_mask[sentence].sum())
        expected, attention = reference(model, batch.source.values[sentence, :size], batch.prefix[sentence, :length])
        assert_close(logits[sentence, :length], expected, rtol=1e-4, atol=1e-5)
        for record, weights in zip(decoded.attention, attention, strict=True):
            assert_close(record.weights[sentence, 0, :length, :size], weights, rtol=1e-4, atol=1e-5)


def test_variance_does_not_depend_on_depth():
    """The purpose of sections 3.4 and 3.5."""
    torch.manual_seed(0)
    config = PRESETS["convs2s-base"].model_copy(update={"dropout": 0.0, "encoder_layers": 8, "decoder_layers": 8})
    sizes = VocabularySizes(300, 300, True)
    model = ConvS2S(config, sizes).eval()
    batch = make_batch([20] * 8, [20] * 8, sizes)
    embedded = model.source_embedding(batch.source.values)
    assert embedded.var().item() == pytest.approx(0.02, rel=0.1)  # token and position embedding, 0.1 squared each
    memory = model.encode(batch.source)
    outputs = model.decode(batch.prefix, memory).outputs
    for part in (memory.states, memory.extra / math.sqrt(20), outputs):  # values are scaled for a mean of 20 of them
        assert 0.002 < part.var().item() < 0.1


def test_only_the_gradients_of_encoder_layers_are_scaled():
    def gradients(scaled):
        model = build_model(("convs2s", {"scale_encoder_gradient": scaled}), SEPARATE)
        batch = make_batch([6, 3], [5, 5], SEPARATE)
        with torch.no_grad():  # no gradient reaches the embeddings through the encoder layers
            model.source_width.scale.zero_()
        model.logits(model.decode(batch.prefix, model.encode(batch.source)).outputs).square().sum().backward()
        return model

    scaled, plain = gradients(True), gradients(False)
    assert_close(scaled.memory_width.direction.grad * 2 * MINIATURE.decoder_layers, plain.memory_width.direction.grad)
    assert_close(scaled.source_embedding.table.grad, plain.source_embedding.table.grad)
    assert_close(scaled.target_embedding.table.grad, plain.target_embedding.table.grad)
    assert plain.memory_width.direction.grad.abs().max() > 0


def test_decoder_state_has_constant_size():
    model = build_model(("convs2s", {"dilated": True, "decoder_layers": 3}))
    batch = make_batch([4], [6])
    memory = model.encode(batch.source)
    state = model.start(memory)
    for position in range(6):
        state = model.step(batch.prefix[:, position], state, memory).state
        assert [len(cache) for cache in state.caches] == [2, 4, 8]
    assert state.position == 6


def test_longest_is_the_number_of_positions():
    model = build_model(("convs2s", {"max_positions": 5}))
    assert model.max_target_positions == 5
    assert build_model(("convs2s", {"position_embeddings": False})).max_target_positions is None
    with pytest.raises(SaccadeError):
        model.encode(make_batch([6], [2]).source)


def test_embeddings_are_shared_when_the_vocabulary_is():
    joint = ConvS2S(PRESETS["convs2s-tiny"], SIZES)
    assert joint.source_embedding.table is joint.target_embedding.table is joint.output_table
    separate = ConvS2S(MINIATURE, SEPARATE)
    assert separate.source_embedding.table is not separate.target_embedding.table
    assert separate.output_table is not separate.target_embedding.table


def test_dropout_is_random_in_training_only():
    torch.manual_seed(0)
    model = ConvS2S(MINIATURE.model_copy(update={"dropout": 0.5}), SIZES)
    source = Source(torch.arange(4, 10)[None], torch.ones(1, 6, dtype=torch.bool))
    assert not torch.equal(model.train().encode(source).states, model.encode(source).states)
    assert torch.equal(model.eval().encode(source).states, model.encode(source).states)


def test_an_even_kernel_is_refused():
    with pytest.raises(SaccadeError):
        choose({"preset": "convs2s-tiny", "kernel": 4})


def test_encoder_outputs_are_zero_on_padding():
    model = build_model(("convs2s", {}))
    source = make_batch([6, 3, 1], [2, 2, 2]).source
    memory = model.encode(source)
    for tensor in (memory.states, memory.extra):
        assert (tensor[~source.mask] == 0).all()
        assert (tensor[source.mask] != 0).any(-1).all()


@torch.no_grad()
def test_values_are_scaled_without_loss_of_precision_under_autocast():
    lengths = [3, 7, 11]
    model = build_model(("convs2s", {}))
    source = make_batch(lengths, [4] * 3).source
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = model.encode(source)
    values = memory.states + model.source_embedding(source.values)
    roots = torch.tensor(lengths).sqrt()[:, None, None]
    expected = values * math.sqrt(0.5) * roots
    assert_close(memory.extra[source.mask], expected[source.mask])

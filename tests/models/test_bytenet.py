"""ByteNet: one sentence computed position by position, dynamic unfolding, sizes, and options."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import SEPARATE, SIZES, build_model, make_batch
from saccade.errors import SaccadeError
from saccade.interface import VocabularySizes
from saccade.models.bytenet import FAMILY, MINIATURE, PRESETS, ByteNet, ByteNetConfig
from saccade.models.registry import choose


def count(config: ByteNetConfig, sizes: VocabularySizes) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in ByteNet(config, sizes).parameters())


def block_size(inner: int, kernel: int) -> int:
    """Number of parameters of a block with d = inner: three convolutions with biases, and three norms."""
    convolutions = (2 * inner * inner + inner) + (kernel * inner * inner + inner) + (inner * 2 * inner + 2 * inner)
    return convolutions + 2 * (2 * inner + inner + inner)


@pytest.mark.parametrize("preset", PRESETS)
def test_number_of_parameters(preset):
    config, sizes = PRESETS[preset], VocabularySizes(323, 296, joint=False)  # the characters of the paper
    width = config.width
    encoder = config.encoder_layers * block_size(width // 2, config.encoder_kernel) + 2 * width
    decoder = config.decoder_layers * block_size(width // 2, config.decoder_kernel) + 2 * width
    ends = (2 * width * width + width) + (width * width + width) + width  # join, last, filler
    assert count(config, sizes) == encoder + decoder + ends + (323 + 2 * 296) * width


def test_the_papers_sizes():
    paper = PRESETS["bytenet-paper"]
    assert (paper.width, paper.encoder_layers, paper.decoder_layers) == (2 * 800, 30, 30)
    assert (paper.length_ratio, paper.length_constant) == (1.2, 0)
    model = ByteNet(MINIATURE.model_copy(update={"dilation_cycle": 5, "decoder_layers": 7}), SIZES)
    assert [block.convolution.dilation for block in model.decoder] == [1, 2, 4, 8, 16, 1, 2]
    assert all(block.convolution.causal for block in model.decoder)
    assert not any(block.convolution.causal for block in model.encoder)


@pytest.mark.parametrize(
    ("changes", "length", "columns"),
    [
        ({}, 10, 12),
        ({}, 5, 6),
        ({}, 15, 18),
        ({}, 9, 11),  # 10.8: a bound is rounded up
        ({}, 0, 0),
        ({"length_constant": 3}, 10, 15),
        ({"length_ratio": 0.5}, 10, 10),  # at least the length of the source
    ],
)
def test_number_of_columns_of_dynamic_unfolding(changes, length, columns):
    assert MINIATURE.model_copy(update=changes).columns(length) == columns


def reference_block(block, x, length, causal):
    """One block on x (length, D), position by position, with zeros outside of the sequence."""

    def norm(layer, vector):
        centered = vector - vector.mean()
        return centered / (centered.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias

    inner = [norm(block.second_norm, block.narrow(norm(block.first_norm, each).relu())).relu() for each in x]
    layer, outputs = block.convolution, []
    for position in range(length):
        taps = []
        for tap in range(layer.kernel):
            back = layer.kernel - 1 - tap if causal else layer.kernel // 2 - tap
            read = position - back * layer.dilation
            taps.append(inner[read] if 0 <= read < length else torch.zeros_like(inner[0]))
        convolved = layer.projection.direction @ torch.cat(taps) + layer.projection.bias
        outputs.append(x[position] + block.widen(norm(block.third_norm, convolved).relu()))
    return torch.stack(outputs)


def reference_logits(model, source, prefix):
    """Logits of one sentence."""
    scale = math.sqrt(model.config.width)
    columns = math.ceil(1.2 * len(source) - 1e-6)
    x = torch.stack([model.source_embedding.table[token] * scale for token in source])
    x = torch.cat([x, model.filler.expand(columns - len(source), -1)])
    for block in model.encoder:
        x = reference_block(block, x, columns, causal=False)
    read = [model.encoder_norm(x[t]) if t < columns else torch.zeros(model.config.width) for t in range(len(prefix))]
    embedded = [model.target_embedding.table[token] * scale for token in prefix]
    x = torch.stack([model.join(torch.cat([g, column])) for g, column in zip(embedded, read, strict=True)])
    for block in model.decoder:
        x = reference_block(block, x, len(prefix), causal=True)
    return model.last(model.decoder_norm(x).relu()).relu() @ model.output.table.T


@torch.no_grad()
def test_logits_equal_a_reference_computed_position_by_position():
    """The last target has more positions than its source has columns, the first one fewer."""
    model = build_model(("bytenet", {}), SEPARATE)
    batch = make_batch([8, 3, 1], [5, 7, 7], SEPARATE)
    logits = model.logits(model.decode(batch.prefix, model.encode(batch.source)).outputs)
    for row in range(3):
        size, length = int(batch.source.mask[row].sum()), int(batch.target_mask[row].sum())
        expected = reference_logits(model, batch.source.values[row, :size], batch.prefix[row, :length])
        assert_close(logits[row, :length], expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_columns_beyond_those_of_a_sentence_are_zero():
    model = build_model(("bytenet", {}))
    memory = model.encode(make_batch([10, 5], [3, 3]).source)
    assert memory.extra.shape == (2, 12, 16)
    assert memory.states.shape == (2, 10, 16)
    assert (memory.extra[0].abs().sum(-1) > 0).all()
    assert (memory.extra[1].abs().sum(-1) > 0).tolist() == [True] * 6 + [False] * 6


@torch.no_grad()
def test_steps_after_the_last_column_equal_decode():
    model = build_model(("bytenet", {}))
    batch = make_batch([2, 1], [9, 9])
    memory = model.encode(batch.source)
    outputs, state = model.decode(batch.prefix, memory).outputs, model.start(memory)
    for position in range(9):
        output, state, _ = model.step(batch.prefix[:, position], state, memory)
        assert_close(output, outputs[:, position], rtol=1e-4, atol=1e-5)
        assert [len(cache) for cache in state.caches] == [2, 4, 2]
    assert state.position == 9


@torch.no_grad()
def test_the_receptive_field_doubles_with_each_layer():
    """Three blocks of kernel 3 and dilations 1, 2, 4 read exactly 2·7 earlier positions."""
    model = build_model(("bytenet", {"dilation_cycle": 3}))
    batch = make_batch([4], [20])
    memory = model.encode(batch.source)
    other = batch.prefix.clone()
    other[:, 2] = 4 + (other[:, 2] - 3) % 19
    moved = (model.decode(batch.prefix, memory).outputs != model.decode(other, memory).outputs).any(-1)[0]
    assert moved.nonzero().flatten().tolist() == list(range(2, 17))


def test_the_family_uses_characters_and_has_no_attention():
    assert FAMILY.recipe["data"] == {"tokenizer": "char"}
    assert FAMILY.attention == frozenset()


def test_an_empty_source_has_no_columns():
    model = build_model(("bytenet", {}))
    batch = make_batch([1], [3])
    memory = model.encode(type(batch.source)(batch.source.values, torch.zeros_like(batch.source.mask)))
    assert memory.extra.shape == (1, 0, 16)
    assert model.decode(batch.prefix, memory).outputs.isfinite().all()


@pytest.mark.parametrize(("changes", "name"), [({"width": 15}, "width"), ({"encoder_kernel": 4}, "encoder-kernel")])
def test_settings_that_do_not_fit_are_refused(changes, name):
    with pytest.raises(SaccadeError, match=name):
        choose({"preset": "bytenet-tiny", **changes})

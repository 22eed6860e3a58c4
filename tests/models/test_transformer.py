"""The Transformer: the paper's sizes, sharing of embeddings, settings, restricted attention, and experts."""

from __future__ import annotations

import pytest
import torch

from contracts.registered_models import SEPARATE, SIZES, build_model, make_batch
from saccade.errors import SaccadeError
from saccade.interface import VocabularySizes
from saccade.layers.feed_forward import FeedForward
from saccade.layers.local_attention import LocalSelfAttention
from saccade.layers.mixture_of_experts import MixtureOfExperts
from saccade.models.registry import Choice, choose, presets
from saccade.models.transformer import PRESETS, Transformer, TransformerConfig


def count(config: TransformerConfig, sizes: VocabularySizes) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config, sizes).parameters())


def expected_count(config: TransformerConfig, vocabulary: int) -> int:
    """Number of parameters by the paper's description, with one shared table."""
    width, inner = config.width, config.feed_forward
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return config.encoder_layers * encoder + config.decoder_layers * decoder + vocabulary * width


@pytest.mark.parametrize(("preset", "published"), [("transformer-base", 65e6), ("transformer-big", 213e6)])
def test_the_papers_sizes(preset, published):
    """Table 3 of the paper, at a vocabulary of 37,000; the paper rounds, and does not say what it counts."""
    found = count(PRESETS[preset], VocabularySizes(37_000, 37_000, joint=True))
    assert found == expected_count(PRESETS[preset], 37_000)
    assert found == pytest.approx(published, rel=0.03)


def test_the_size_of_transformer_tiny():
    tiny = PRESETS["transformer-tiny"]
    assert (tiny.encoder_layers, tiny.decoder_layers, tiny.width, tiny.feed_forward, tiny.heads) == (4, 4, 128, 256, 4)


def test_embeddings_are_shared_when_the_vocabulary_is():
    config = PRESETS["transformer-tiny"]
    joint = Transformer(config, SIZES)
    assert joint.source_embedding.table is joint.target_embedding.table is joint.output.table
    separate = Transformer(config, SEPARATE)
    assert separate.source_embedding.table is not separate.target_embedding.table
    assert separate.target_embedding.table is separate.output.table
    untied = Transformer(config.model_copy(update={"tie_output": False}), SIZES)
    assert untied.output.table is not untied.target_embedding.table


def test_a_shared_table_needs_a_joint_vocabulary():
    with pytest.raises(SaccadeError):
        Choice("transformer", TransformerConfig(embeddings="shared")).build(SEPARATE)


def test_choose_by_preset_with_a_change():
    choice = choose({"preset": "transformer-tiny", "dropout": "0.3"})
    assert choice.config.dropout == 0.3
    assert choice.config.width == 128
    assert choose(choice.dump()) == choice


@pytest.mark.parametrize(
    ("values", "name"),  # the error has the name of the setting, or the nearest valid name
    [
        ({"preset": "transformer-tny"}, "'transformer-tiny'"),
        ({"family": "transfomer"}, "'transformer'"),
        ({}, "--preset"),
        ({"preset": "transformer-tiny", "heds": 2}, "'heads'"),
        ({"preset": "transformer-tiny", "heads": 3}, "heads"),
        ({"preset": "transformer-tiny", "family": "bahdanau"}, "'bahdanau'"),
        ({"preset": "transformer-tiny", "dropout": 1.5}, "dropout"),
        ({"preset": "transformer-tiny", "radius": 0}, "radius"),
        ({"preset": "transformer-tiny", "experts": 1}, "expert"),
        ({"preset": "transformer-tiny", "experts": 2, "experts_per_token": 3}, "experts"),
        ({"preset": "transformer-tiny", "experts": 4, "experts_every": 5}, "experts-every"),
        ({"preset": "transformer-tiny", "experts": 4, "capacity_factor": 0}, "capacity-factor"),
        ({"preset": "transformer-tiny", "position_use": "concatenate", "positions": "none"}, "positions"),
        ({"preset": "transformer-tiny", "position_use": "concatenate", "position_width": 128}, "width"),
    ],
)
def test_a_wrong_choice_is_refused(values, name):
    with pytest.raises(SaccadeError, match=name):
        choose(values)


def test_every_preset_is_named_after_its_family():
    for name, choice in presets().items():
        assert name.startswith(choice.family)


def test_a_radius_restricts_self_attention_but_not_cross_attention():
    model = build_model(("transformer", {"radius": 2}))
    assert all(isinstance(layer.attention, LocalSelfAttention) for layer in (*model.encoder, *model.decoder))
    batch = make_batch([9], [9])
    memory = model.encode(batch.source, record=True)
    records = memory.attention + model.decode(batch.prefix, memory, record=True).attention
    far = (torch.arange(9)[:, None] - torch.arange(9)).abs() > 2
    for record in records:
        assert (record.weights[..., far] == 0).all() == (record.kind != "cross")


def test_a_radius_changes_no_parameter():
    sizes = VocabularySizes(100, 100, joint=True)
    assert count(PRESETS["transformer-local-tiny"], sizes) == count(PRESETS["transformer-tiny"], sizes)


def test_a_wide_radius_is_full_attention():
    full, local = build_model(("transformer", {})), build_model(("transformer", {"radius": 50}))
    batch = make_batch([9, 4], [7, 8])
    outputs = [model.decode(batch.prefix, model.encode(batch.source)).outputs for model in (full, local)]
    real = batch.target_mask
    torch.testing.assert_close(outputs[0][real], outputs[1][real], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("grad_mode")
def test_the_cache_of_a_restricted_decoder_stays_small():
    model = build_model(("transformer", {"radius": 2}))
    batch = make_batch([5, 3], [9, 9])
    memory = model.encode(batch.source)
    state = model.start(memory)
    for position in range(9):
        state = model.step(batch.prefix[:, position], state, memory).state
    assert all((layer.cache.cached, layer.cache.position) == (3, 9) for layer in state)


@pytest.mark.parametrize(("every", "expected"), [(1, [0, 1, 2, 3]), (2, [1, 3]), (3, [2]), (4, [3])])
def test_which_layers_have_experts(every, expected):
    config = PRESETS["transformer-moe-tiny"].model_copy(update={"experts_every": every})
    model = Transformer(config, SIZES)
    for stack in (model.encoder, model.decoder):
        found = [number for number, layer in enumerate(stack) if isinstance(layer.feed_forward, MixtureOfExperts)]
        assert found == expected
        assert all(isinstance(stack[number].feed_forward, FeedForward) for number in {0, 1, 2, 3} - set(expected))


def test_number_of_parameters_of_experts():
    sizes = VocabularySizes(100, 100, joint=True)
    plain, mixed = PRESETS["transformer-tiny"], PRESETS["transformer-moe-tiny"]
    network = 2 * 128 * 256 + 128 + 256
    layers = 4  # every second of eight
    assert count(mixed, sizes) == count(plain, sizes) + layers * ((mixed.experts - 1) * network + mixed.experts * 128)
    assert (plain.auxiliary, mixed.auxiliary) == ((), ("balance", "dropped", "routed"))


def test_experts_have_a_balance_loss_in_training_only():
    model = build_model(("transformer", {"experts": 4}))
    batch = make_batch([5, 3, 2], [6, 2, 3])
    for training in (True, False):
        model.train(training)
        memory = model.encode(batch.source)
        decoded = model.decode(batch.prefix, memory)
        assert (memory.auxiliary is not None) == (decoded.auxiliary is not None) == training
    plain = build_model(("transformer", {})).train()
    assert plain.encode(batch.source).auxiliary is None


def test_padding_is_not_routed_to_experts():
    model = build_model(("transformer", {"experts": 4})).train()
    batch = make_batch([7, 1, 2], [6, 2, 3])
    memory = model.encode(batch.source)
    assert memory.auxiliary.sums["routed"] == 10
    assert model.decode(batch.prefix, memory).auxiliary.sums["routed"] == 11


def test_concatenated_positions_share_the_width():
    changes = {"position_use": "concatenate", "position_width": 32}
    tied = Transformer(PRESETS["transformer-tiny"].model_copy(update=changes), SIZES)
    assert tied.source_embedding.table.shape == (SIZES.target, 96)
    assert tied.source_embedding.table is tied.target_embedding.table is tied.output.table
    assert tied.output.projection.weight.shape == (96, 128)
    tokens = torch.tensor([[4, 5, 4]])
    embedded = tied.eval().source_embedding(tokens)
    assert embedded.shape == (1, 3, 128)
    assert torch.equal(embedded[0, 0, :96], embedded[0, 2, :96])  # the same token, at any position
    assert not torch.equal(embedded[0, 0, 96:], embedded[0, 2, 96:])
    hidden = torch.randn(2, 128)
    torch.testing.assert_close(tied.logits(hidden), hidden @ tied.output.projection.weight.T @ tied.output.table.T)
    untied = Transformer(PRESETS["transformer-tiny"].model_copy(update={**changes, "tie_output": False}), SIZES)
    assert untied.output.table.shape == (SIZES.target, 128)
    assert isinstance(untied.output.projection, torch.nn.Identity)

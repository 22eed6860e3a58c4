from __future__ import annotations

import math

import pytest
import torch

from laws.subjects import SEPARATE, SIZES
from saccade.errors import SaccadeError
from saccade.interface import VocabularySizes
from saccade.models.registry import Choice, choose, presets
from saccade.models.transformer import PRESETS, Transformer, TransformerConfig


def count(config: TransformerConfig, sizes: VocabularySizes) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config, sizes).parameters())


def by_formula(config: TransformerConfig, vocabulary: int) -> int:
    """Weights and biases counted from the paper's description, one shared table."""
    width, inner = config.width, config.feed_forward
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * inner + inner + width
    norm = 2 * width
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return config.encoder_layers * encoder + config.decoder_layers * decoder + vocabulary * width


@pytest.mark.parametrize(("preset", "published"), [("transformer-base", 65e6), ("transformer-big", 213e6)])
def test_the_papers_sizes(preset, published):
    """Table 3 of the paper, at a vocabulary of 37,000; the paper rounds and does not say what it counts."""
    found = count(PRESETS[preset], VocabularySizes(37_000, 37_000, joint=True))
    assert found == by_formula(PRESETS[preset], 37_000)
    assert found == pytest.approx(published, rel=0.03)


def test_tiny_is_the_size_it_says():
    tiny = PRESETS["transformer-tiny"]
    assert (tiny.encoder_layers, tiny.decoder_layers, tiny.width, tiny.feed_forward, tiny.heads) == (4, 4, 128, 256, 4)


def test_embeddings_are_shared_when_the_vocabulary_is():
    config = PRESETS["transformer-tiny"]
    joint = Transformer(config, SIZES)
    assert joint.source_embedding.table is joint.target_embedding.table is joint.output_table
    separate = Transformer(config, SEPARATE)
    assert separate.source_embedding.table is not separate.target_embedding.table
    assert separate.target_embedding.table is separate.output_table
    untied = Transformer(config.model_copy(update={"tie_output": False}), SIZES)
    assert untied.output_table is not untied.target_embedding.table


def test_a_shared_table_needs_a_joint_vocabulary():
    with pytest.raises(SaccadeError, match="joint vocabulary"):
        Choice("transformer", TransformerConfig(embeddings="shared")).build(SEPARATE)


def test_fresh_logits_are_near_uniform():
    torch.manual_seed(0)
    model = Transformer(PRESETS["transformer-tiny"], VocabularySizes(500, 500, True)).eval()
    from laws.subjects import make_batch

    batch = make_batch([9] * 8, [9] * 8, VocabularySizes(500, 500, True))
    logits = model.logits(model.decode(batch.prefix, model.encode(batch.source)).outputs)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.target.flatten())
    assert loss.item() == pytest.approx(math.log(500), rel=0.15)


def test_choose_by_preset_with_a_change():
    choice = choose({"preset": "transformer-tiny", "dropout": "0.3"})
    assert choice.config.dropout == 0.3
    assert choice.config.width == 128
    assert choose(choice.dump()) == choice


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "transformer-tny"}, "did you mean 'transformer-tiny'"),
        ({"family": "transfomer"}, "did you mean 'transformer'"),
        ({}, "no model is named"),
        ({"preset": "transformer-tiny", "heds": 2}, "did you mean 'heads'"),
        ({"preset": "transformer-tiny", "heads": 3}, "cannot be shared evenly"),
        ({"preset": "transformer-tiny", "family": "bahdanau"}, "give one of the two"),
        ({"preset": "transformer-tiny", "dropout": 1.5}, "dropout"),
    ],
)
def test_a_wrong_choice_is_refused_with_advice(values, message):
    with pytest.raises(SaccadeError, match=message):
        choose(values)


def test_every_preset_is_named_after_its_family():
    for name, choice in presets().items():
        assert name.startswith(choice.family)

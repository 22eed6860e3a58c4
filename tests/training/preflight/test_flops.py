"""FLOP counts equal hand-computed products, also inside fused layers."""

from __future__ import annotations

import pytest
import torch

from saccade.interface import Source, VocabularySizes
from saccade.models.registry import choose
from saccade.symbols import Symbols
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.objective import Loss
from saccade.training.preflight.batch_trial import BatchShape, random_batch
from saccade.training.preflight.flops import flops_of_batch


class Sum:
    """Objective that runs only one layer."""

    metrics = ()

    def loss(self, model, batch):
        return Loss(model(batch.source.values)[0].sum(), 1)


@pytest.mark.parametrize(("layer", "gates"), [(torch.nn.LSTM, 4), (torch.nn.GRU, 3)])
def test_flops_of_a_recurrent_layer(layer, gates):
    rows, positions, inputs, width = 3, 5, 8, 16
    values = torch.randn(rows, positions, inputs, requires_grad=True)
    batch = random_batch(BatchShape(rows, positions, 1), Symbols(), VocabularySizes(9, 9, True))
    batch = type(batch)(Source(values, batch.source.mask), batch.prefix, batch.target, batch.target_mask, ())
    counted = flops_of_batch(layer(inputs, width, batch_first=True), Sum(), batch)
    expected = 6 * rows * positions * gates * width * (inputs + width)
    # The product of the first position with the zero state may lack its gradient.
    assert expected * (1 - 1 / positions) <= counted <= expected


@pytest.mark.parametrize("preset", ["seq2seq-tiny", "bahdanau-tiny"])
def test_recurrent_model_costs_six_flops_per_weight_and_token(preset):
    sizes = VocabularySizes(500, 500, True)
    model = choose({"preset": preset}).build(sizes)
    batch = random_batch(BatchShape(4, 10, 10), Symbols(), sizes)
    counted = flops_of_batch(model, Likelihood(), batch)
    inside = sum(parameter.numel() for name, parameter in model.named_parameters() if "table" not in name)
    outputs = 6 * 40 * 500 * 256
    # A weight meets the 40 tokens of one side; the table of the output layer those of the target.
    assert 0.8 * (6 * 40 * inside + outputs) < counted < 1.3 * (6 * 40 * inside + outputs)

"""RNNsearch: the paper's equations computed position by position, its sizes, and its options."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from contracts.registered_models import SIZES, build_model, make_batch
from saccade.interface import VocabularySizes
from saccade.models.bahdanau import FAMILY
from saccade.models.registry import Choice
from saccade.ops.recurrent_cells import gru_state


def test_the_first_steps_follow_the_equations():
    model = build_model(("bahdanau", {}))
    batch = make_batch([4], [3])
    memory = model.encode(batch.source)
    annotations, attention = memory.states[0], model.attention  # (S, 2n)
    decoded = model.decode(batch.prefix, memory, record=True)
    state = torch.tanh(model.first_state.weight @ memory.extra[0] + model.first_state.bias)
    for position, token in enumerate(batch.prefix[0]):
        energies = [
            attention.vector
            @ torch.tanh(attention.query.weight @ state + attention.key.weight @ h + attention.key.bias)
            for h in annotations
        ]
        weights = torch.stack(energies).softmax(0)
        context = sum(weight * h for weight, h in zip(weights, annotations, strict=True))
        embedded = model.target_embedding.table[token] * 4.0
        inputs = model.decoder.input(embedded) + model.decoder.step_input(context)
        state = gru_state(inputs[None], model.decoder.hidden(state)[None], state[None]).hidden[0]
        pairs = model.readout(torch.cat([state, embedded, context]))
        output = torch.stack([pairs[unit : unit + 2].max() for unit in range(0, len(pairs), 2)])
        assert_close(decoded.attention[0].weights[0, 0, position], weights, rtol=1e-4, atol=1e-6)
        assert_close(decoded.outputs[0, position], output, rtol=1e-4, atol=1e-6)


def test_an_annotation_depends_on_both_ends_of_the_sentence():
    model = build_model(("bahdanau", {}))
    batch = make_batch([6], [3])
    before = model.encode(batch.source).states
    for changed in (0, 5):
        batch.source.values[0, changed] = (batch.source.values[0, changed] - 3) % 19 + 4
        after = model.encode(batch.source).states
        assert all(not torch.equal(after[0, position], before[0, position]) for position in range(6))
        before = after


def test_the_summary_is_the_backward_state_at_the_first_position():
    model = build_model(("bahdanau", {}))
    batch = make_batch([5, 3], [2, 2])
    memory = model.encode(batch.source)
    assert_close(memory.extra, memory.states[:, 0, 16:])


def test_the_papers_size():
    sizes = VocabularySizes(30_000, 30_000, False)
    model = Choice("bahdanau", FAMILY.presets["bahdanau-base"]).outline(sizes)
    tables = 2 * 30_000 * 620 + 30_000 * 500
    encoder = 2 * (3 * 1000 * (620 + 1000) + 6 * 1000)
    alignment = 1000 * 1000 + 2000 * 1000 + 1000 + 1000
    decoder = 3 * 1000 * (620 + 2000 + 1000) + 6 * 1000
    readout = 1000 * (1000 + 620 + 2000) + 1000
    first = 1000 * 1000 + 1000
    assert sum(p.numel() for p in model.parameters()) == tables + encoder + alignment + decoder + readout + first


def test_a_joint_vocabulary_has_one_table():
    model = build_model(("bahdanau", {"tie_output": True}), SIZES)
    assert model.source_embedding.table is model.target_embedding.table is model.output.table

"""The encoder-decoder: its bottleneck, sizes, and options."""

from __future__ import annotations

import dataclasses

import torch
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from saccade.interface import VocabularySizes
from saccade.models.registry import Choice
from saccade.models.seq2seq import FAMILY


def test_the_decoder_reads_only_the_last_states_of_the_encoder():
    model = build_model(("seq2seq", {}))
    batch = make_batch([6, 4], [5, 5])
    memory = model.encode(batch.source)
    blank = dataclasses.replace(memory, states=torch.full_like(memory.states, torch.nan))
    assert torch.equal(model.decode(batch.prefix, blank).outputs, model.decode(batch.prefix, memory).outputs)


def test_reverse_source_equals_reversed_input():
    backward = build_model(("seq2seq", {}))
    forward = build_model(("seq2seq", {"reverse_source": False}))
    forward.load_state_dict(backward.state_dict())
    batch = make_batch([6], [5])
    mirrored = dataclasses.replace(batch.source, values=batch.source.values.flip(1))
    one, other = backward.encode(batch.source).extra, forward.encode(mirrored).extra
    assert_close(one[-1].hidden, other[-1].hidden)
    assert_close(one[-1].cell, other[-1].cell)


def test_the_context_is_fed_at_every_step():
    model = build_model(("seq2seq", {"cell": "gru", "context": True, "layers": 1}))
    batch = make_batch([6], [5])
    memory = model.encode(batch.source)
    state = model.start(memory)
    assert torch.equal(state.context, memory.extra[-1].hidden)
    other = state._replace(context=torch.zeros_like(state.context))
    token = batch.prefix[:, 0]
    assert not torch.allclose(model.step(token, state, memory).output, model.step(token, other, memory).output)


def test_the_papers_size():
    """Sutskever et al., section 3.4: 384M parameters, 64M of them recurrent (32M each in encoder and decoder)."""
    sizes = VocabularySizes(160_000, 80_000, False)
    model = Choice("seq2seq", FAMILY.presets["seq2seq-base"]).outline(sizes)
    recurrent = sum(p.numel() for name, p in model.named_parameters() if ".layer.weight" in name)
    assert recurrent == 64_000_000
    bridge = sum(p.numel() for name, p in model.named_parameters() if name.startswith("bridge"))
    total = sum(p.numel() for p in model.parameters()) - bridge  # the paper has no bridge
    assert abs(total - 384e6) < 0.1e6

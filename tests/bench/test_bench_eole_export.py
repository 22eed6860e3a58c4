"""Conversion of weights to eole."""

from __future__ import annotations

import torch
from bench.eole_export import eole_weights, projections

from contracts.registered_models import build_model
from saccade.interface import VocabularySizes


def test_every_weight_is_exported_once():
    model = build_model(("transformer", {"norm": "pre", "width": 16}), VocabularySizes(30, 30, joint=True))
    for number, parameter in enumerate(model.parameters()):
        parameter.data.normal_(generator=torch.Generator().manual_seed(number))
    named = eole_weights(model.state_dict(), 16)
    added = ("pe.pe", "layer_scalar", "generator.bias")
    theirs = torch.cat([tensor.flatten() for name, tensor in named.items() if not name.endswith(added)])
    ours = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.equal(theirs.sort().values, ours.sort().values)


def test_fused_projections_are_split():
    weights = {
        "a.query_key_value.bias": torch.arange(6.0),
        "b.query.bias": torch.arange(2.0),
        "b.key_value.bias": torch.arange(2.0, 6.0),
        "a.output.bias": torch.zeros(2),
        "b.output.bias": torch.zeros(2),
    }
    for prefix in "ab":
        found = {name: tensor.tolist() for name, tensor in projections(weights, prefix, "bias").items()}
        assert found == {"query": [0, 1], "key": [2, 3], "value": [4, 5], "output": [0, 0]}

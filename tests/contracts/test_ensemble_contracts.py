"""Contract tests of the interface for ensembles."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from contracts import test_model_contracts as contracts
from contracts.registered_models import SEPARATE, SIZES, build_model, make_batch
from saccade.decoding.config import DecodingConfig
from saccade.decoding.ensemble import Ensemble
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Source, VocabularySizes
from saccade.symbols import Symbols

SHALLOW = ("transformer", {})
DEEP = ("transformer", {"norm": "pre", "decoder_layers": 3, "encoder_layers": 1, "width": 24, "heads": 3})
LEARNED = ("transformer", {"positions": "learned", "max_positions": 64, "width": 8, "tie_output": False})


pytestmark = pytest.mark.usefixtures("one_thread")


def ensemble_of(*subjects: Any, sizes: VocabularySizes = SIZES, **settings: Any) -> Ensemble:
    members = [build_model(subject, sizes, seed) for seed, subject in enumerate(subjects)]
    return Ensemble(members, make_batch([2], [2], sizes).source, **settings)


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
@pytest.mark.parametrize("members", [(SHALLOW, DEEP), (DEEP, SHALLOW, LEARNED)], ids=["two", "three"])
@pytest.mark.parametrize("contract", contracts.INTERFACE_CONTRACTS, ids=lambda contract: contract.__name__)
def test_interface_contracts(contract, members, mean):
    arguments = [ensemble_of(*members, mean=mean), make_batch([7, 4, 1, 5], [6, 3, 5, 1])]
    contract(*arguments[: contract.__code__.co_argcount])


def test_steps_equal_decode_with_a_source_for_each_member():
    wide = VocabularySizes(source=40, target=SEPARATE.target, joint=False)
    members = [build_model(SHALLOW, SEPARATE), build_model(DEEP, wide, seed=1)]
    batch, other = make_batch([7, 4, 1, 5], [6, 3, 5, 1], SEPARATE), make_batch([2, 9, 6, 3], [6, 3, 5, 1], wide)
    source = Source((batch.source, other.source), batch.source.mask)
    ensemble = Ensemble(members, source)
    memory = ensemble.encode(source)
    full = ensemble.logits(ensemble.decode(batch.prefix, memory).outputs)
    state = ensemble.start(memory)
    for position in range(batch.prefix.size(1)):
        output, state, _ = ensemble.step(batch.prefix[:, position], state, memory)
        real = batch.target_mask[:, position]
        assert_close(ensemble.logits(output)[real], full[real, position], **contracts.CLOSE)


@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig(beam=1, max_length=12),
        DecodingConfig(beam=4, nbest=4, max_length=12),
        DecodingConfig(beam=4, nbest=4, max_length=12, coverage_beta=0.2),
        DecodingConfig(sample=True, nbest=4, max_length=12, seed=3),
    ],
    ids=["greedy", "beam", "coverage", "sampling"],
)
def test_an_ensemble_of_a_model_with_itself_equals_the_model(config):
    model, batch = build_model(DEEP), make_batch([7, 4, 1, 5], [6, 3, 5, 1])
    ensemble = Ensemble([model, model], batch.source)
    found = search(ensemble, SearchRequest(ensemble.encode(batch.source), config, Symbols()))
    expected = search(model, SearchRequest(model.encode(batch.source), config, Symbols()))
    assert [[each.tokens for each in row] for row in found] == [[each.tokens for each in row] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-4)


def test_training_mode_and_parameters_are_those_of_all_members():
    members: list[nn.Module] = [build_model(SHALLOW), build_model(LEARNED)]
    ensemble = Ensemble(members, make_batch([2], [2]).source)
    assert ensemble.max_target_positions == 64
    ensemble.train()
    assert all(member.training for member in members)
    ensemble.eval()
    assert not any(member.training for member in members)
    counted = sum(parameter.numel() for parameter in ensemble.parameters())
    assert counted == sum(parameter.numel() for member in members for parameter in member.parameters())


def test_the_logits_of_one_member_are_freed_before_those_of_the_next(monkeypatch):
    ensemble = ensemble_of(SHALLOW, DEEP, LEARNED)
    created: list[weakref.ref[torch.Tensor]] = []

    def watched(own):
        def logits(part):
            assert all(earlier() is None for earlier in created)
            result = own(part)
            created.append(weakref.ref(result))
            return result

        return logits

    for member in ensemble.members:
        monkeypatch.setattr(member, "logits", watched(member.logits))
    with torch.inference_mode():
        ensemble.logits(torch.randn(5, sum(ensemble.widths)))
    assert len(created) == 3

"""Ensembles of different architectures over one vocabulary: a Transformer with each other registered family."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.testing import assert_close

from contracts import test_model_contracts as contracts
from contracts.registered_models import build_model, make_batch
from saccade.data.sampling.batches import Batch
from saccade.decoding.config import DecodingConfig
from saccade.decoding.ensemble import Ensemble
from saccade.decoding.scoring import score
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Attention, select
from saccade.models.registry import FAMILIES, load_family
from saccade.symbols import Symbols

OTHERS = [name for name in FAMILIES if name != "transformer"]
TRANSFORMER_FIRST = [("transformer", name) for name in OTHERS]
TRANSFORMER_LAST = [(name, "transformer") for name in OTHERS]  # the mask of the ensemble is that of the other family
MEMBER_CONTRACTS = [  # the other contracts concern one member at a time: tests/contracts/test_model_contracts.py
    contracts.test_model_satisfies_the_protocols,
    contracts.test_recorded_steps_equal_recorded_decode,
    contracts.test_padding_does_not_change_outputs,
    contracts.test_hypotheses_of_a_sentence_share_its_memory,
    contracts.test_attention_weights_sum_to_one_and_are_zero_where_masked,
]
SEARCHES = {
    "greedy": DecodingConfig(beam=1, max_length=8),
    "beam": DecodingConfig(
        beam=3, nbest=3, max_length=8, coverage_beta=0.2
    ),  # a coverage penalty reads cross-attention
    "sampling": DecodingConfig(sample=True, nbest=2, max_length=8, seed=3),
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def batch() -> Batch:
    return make_batch([7, 4, 1, 5], [6, 3, 5, 1])


def ensemble_of(*names: str) -> Ensemble:
    members = [build_model((name, {}), seed=seed) for seed, name in enumerate(names)]
    return Ensemble(members, make_batch([2], [2]).source)


def heads(attention: tuple[Attention, ...]) -> dict[str, int]:
    """The number of heads of each kind of attention, summed over layers."""
    found: dict[str, int] = {}
    for record in attention:
        found[record.kind] = found.get(record.kind, 0) + record.weights.size(1)
    return found


@pytest.mark.parametrize("pair", TRANSFORMER_LAST, ids="+".join)
@pytest.mark.parametrize("contract", MEMBER_CONTRACTS, ids=lambda contract: contract.__name__)
def test_interface_contracts(contract, pair, batch):
    assert contract in contracts.INTERFACE_CONTRACTS
    arguments = [ensemble_of(*pair), batch]
    contract(*arguments[: contract.__code__.co_argcount])


@torch.inference_mode()
@pytest.mark.parametrize("pair", TRANSFORMER_LAST, ids="+".join)
def test_attention_has_the_heads_of_all_members(pair, batch):
    ensemble = ensemble_of(*pair)
    memory = ensemble.encode(batch.source, record=True)
    found = heads(memory.attention + ensemble.decode(batch.prefix, memory, record=True).attention)
    expected: dict[str, int] = {}
    for member, name in zip(ensemble.members, pair, strict=True):
        own = member.encode(batch.source, record=True)
        records = heads(own.attention + member.decode(batch.prefix, own, record=True).attention)
        assert records.keys() == load_family(name).attention
        for kind, count in records.items():
            expected[kind] = expected.get(kind, 0) + count
    assert found == expected


@pytest.mark.parametrize("pair", TRANSFORMER_FIRST, ids="+".join)
@pytest.mark.parametrize("name", SEARCHES)
def test_log_probabilities_of_pairs_are_those_of_the_mean(name, pair, batch):
    assert_scored_by_the_mean(ensemble_of(*pair), batch, SEARCHES[name])


@pytest.mark.parametrize("name", SEARCHES)
def test_log_probabilities_of_all_families_are_those_of_the_mean(name, batch):
    assert_scored_by_the_mean(ensemble_of(*FAMILIES), batch, SEARCHES[name])


@torch.inference_mode()
def assert_scored_by_the_mean(ensemble: Ensemble, batch: Batch, config: DecodingConfig) -> None:
    """Check the log-probabilities of a search: by the mean of the members' probabilities."""
    symbols = Symbols()
    found = search(ensemble, SearchRequest(ensemble.encode(batch.source), config, symbols))
    assert [len(row) for row in found] == [config.nbest] * len(batch.indices)
    hypotheses = [hypothesis for row in found for hypothesis in row]
    written = [torch.tensor([*each.tokens, symbols.end] if each.finished else each.tokens) for each in hypotheses]
    targets = pad_sequence(written, batch_first=True, padding_value=symbols.pad)
    rows = torch.arange(len(found)).repeat_interleave(config.nbest)
    probabilities = [
        score(member, select(member.encode(batch.source), rows), targets, symbols).token_log_probabilities.exp()
        for member in ensemble.members
    ]
    expected = torch.stack(probabilities).mean(0).log().sum(1)
    assert_close(torch.tensor([each.log_probability for each in hypotheses]), expected, rtol=0, atol=1e-3)


def test_members_without_attention_are_among_the_pairs():
    kinds = {name: load_family(name).attention for name in FAMILIES}
    assert any(not kind for kind in kinds.values())
    assert any("decoder-self" not in kind and kind for kind in kinds.values())


@torch.inference_mode()
def test_outputs_of_members_are_concatenated(batch):
    ensemble = ensemble_of(*FAMILIES)
    outputs = ensemble.decode(batch.prefix, ensemble.encode(batch.source)).outputs
    for member, part in zip(ensemble.members, torch.split(outputs, ensemble.widths, -1), strict=True):
        assert_close(part, member.decode(batch.prefix, member.encode(batch.source)).outputs, **contracts.CLOSE)

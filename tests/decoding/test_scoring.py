from __future__ import annotations

import pytest
import torch

from fake_model import SYMBOLS, FakeModel, fake_memory
from saccade.decoding import scoring
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.scoring import score
from saccade.decoding.search import SearchRequest, search
from saccade.interface import select

SOURCES = [[4, 5, 6], [9], [7, 8, 9, 10, 11], [12, 13]]


def targets_of(hypotheses: list[Hypothesis]) -> torch.Tensor:
    rows = [[*each.tokens, *[SYMBOLS.end] * each.finished] for each in hypotheses]
    longest = max(map(len, rows))
    return torch.tensor([row + [SYMBOLS.pad] * (longest - len(row)) for row in rows])


@pytest.mark.parametrize(
    "config",
    [
        DecodingConfig(beam=1, max_length=12),
        DecodingConfig(beam=4, nbest=4, max_length=12),
        DecodingConfig(beam=4, nbest=4, max_length=12, coverage_beta=0.2),
        DecodingConfig(sample=True, nbest=5, max_length=12, temperature=1.5),
    ],
    ids=["greedy", "beam", "coverage", "sampling"],
)
@pytest.mark.parametrize("prefixes", [None, [[4], [], [10, 9, 8], [3]]], ids=["free", "prefixed"])
def test_the_scorer_agrees_with_the_search(config, prefixes):
    model = FakeModel(vocabulary=12, seed=1)
    memory = fake_memory(model, SOURCES)
    results = search(model, SearchRequest(memory, config, SYMBOLS, prefixes=prefixes))
    flat = [(row, each) for row, found in enumerate(results) for each in found]
    rows = torch.tensor([row for row, _ in flat])
    scores = score(model, select(memory, rows), targets_of([each for _, each in flat]), SYMBOLS)
    for number, (_, each) in enumerate(flat):
        scored = scores.token_log_probabilities[number][scores.mask[number]].tolist()
        assert each.token_log_probabilities == pytest.approx(scored, abs=1e-5)
        assert each.log_probability == pytest.approx(scores.log_probability[number].item(), abs=1e-4)


def test_padding_scores_0_and_chunks_do_not_change_scores(monkeypatch):
    model = FakeModel(vocabulary=12)
    memory = fake_memory(model, SOURCES)
    targets = torch.tensor([[4, 5, 2, 0], [6, 2, 0, 0], [2, 0, 0, 0], [4, 4, 4, 2]])
    scored = score(model, memory, targets, SYMBOLS)
    assert torch.equal(scored.mask, targets != SYMBOLS.pad)
    assert (scored.token_log_probabilities[~scored.mask] == 0).all()
    monkeypatch.setattr(scoring, "OUTPUT_ROWS", 3)
    assert torch.allclose(
        score(model, memory, targets, SYMBOLS).token_log_probabilities, scored.token_log_probabilities
    )

from __future__ import annotations

import pytest
import torch

from fake_model import SYMBOLS, FakeModel, fake_memory
from saccade.decoding.config import DecodingConfig
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Memory

SOURCES = [[4, 5, 6], [9], [7, 8, 9, 10, 11], [12, 13], [20, 21, 22]]


def argmax_rollout(
    model: FakeModel, memory: Memory, limit: int, prefix: tuple[int, ...] = ()
) -> tuple[list[int], bool]:
    """Reference greedy search of one sentence: all positions are decoded again for every token."""
    tokens: list[int] = []
    while len(tokens) < limit:
        outputs = model.decode(torch.tensor([[SYMBOLS.begin, *tokens]]), memory).outputs
        logits = model.logits(outputs[0, -1])
        logits[[SYMBOLS.pad, SYMBOLS.begin, SYMBOLS.unknown]] = -torch.inf
        token = prefix[len(tokens)] if len(tokens) < len(prefix) else int(logits.argmax())
        if token == SYMBOLS.end:
            return tokens, True
        tokens.append(token)
    return tokens, False


@pytest.mark.parametrize("seed", range(8))
def test_greedy_search_equals_the_reference(seed):
    model = FakeModel(vocabulary=11, seed=seed, sharpness=2.0, end_bias=1.0)
    config = DecodingConfig(beam=1, max_length_factor=1.0, max_length_offset=4)
    for source, [best] in zip(
        SOURCES, search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS)), strict=True
    ):
        tokens, finished = argmax_rollout(model, fake_memory(model, [source]), limit=len(source) + 4)
        assert (list(best.tokens), best.finished) == (tokens, finished)


@pytest.mark.parametrize("penalty", ["gnmt", "plain", "none"])
def test_a_beam_of_one_is_greedy_under_every_length_penalty(penalty):
    model = FakeModel(vocabulary=11, seed=3, sharpness=2.0, end_bias=2.0)
    memory = fake_memory(model, SOURCES)
    config = DecodingConfig(beam=1, length_penalty=penalty, length_alpha=2.0, max_length=12)
    for source, [best] in zip(SOURCES, search(model, SearchRequest(memory, config, SYMBOLS)), strict=True):
        tokens, _ = argmax_rollout(model, fake_memory(model, [source]), limit=12)
        assert list(best.tokens) == tokens
        symbols = len(tokens) + best.finished
        divisor = {"gnmt": ((5 + symbols) / 6) ** 2, "plain": symbols**2, "none": 1}[penalty]
        assert best.score == pytest.approx(sum(best.token_log_probabilities) / divisor, rel=1e-5)


def test_forced_prefixes_of_different_lengths():
    model = FakeModel(vocabulary=11, seed=1, sharpness=2.0, end_bias=1.0)
    prefixes = [(4, 5, 6), (), (10,), (SYMBOLS.unknown, 4), (5, 5, 5, 5, 5)]
    config = DecodingConfig(beam=1, max_length=10)
    results = search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS, prefixes=prefixes))
    for source, prefix, [best] in zip(SOURCES, prefixes, results, strict=True):
        tokens, _ = argmax_rollout(model, fake_memory(model, [source]), limit=10, prefix=prefix)
        assert list(best.tokens) == tokens
        assert best.tokens[: len(prefix)] == prefix


def test_rows_leave_the_batch_when_they_end():
    model = FakeModel(vocabulary=11, seed=1, sharpness=2.0, end_bias=1.0)
    config = DecodingConfig(beam=1, max_length=20)
    results = search(model, SearchRequest(fake_memory(model, SOURCES), config, SYMBOLS))
    lengths = [len(best.token_log_probabilities) for [best] in results]
    assert len(set(lengths)) > 2, "this test needs rows that end at different steps"
    assert model.steps == [sum(length > position for length in lengths) for position in range(max(lengths))]


def test_a_row_without_a_possible_token_leaves_the_batch():
    model = FakeModel(vocabulary=11)
    model.output_bias[9] = -torch.inf
    config = DecodingConfig(beam=1, max_length=4, min_length=4)
    search(model, SearchRequest(fake_memory(model, SOURCES[:2]), config, SYMBOLS, prefixes=[[4, 9], [4, 4]]))
    assert model.steps == [2, 2, 1, 1]

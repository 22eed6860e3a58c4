from __future__ import annotations

import math

import pytest
import torch

from fake_model import SYMBOLS, FakeModel, empty_memory, fake_memory
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import FREE, constrain_, constraints_of, length_limits
from saccade.errors import SaccadeError

VOCABULARY = 7


def log_probabilities(rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, VOCABULARY, generator=generator).log_softmax(dim=1)


def possible_tokens(allowed: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().squeeze(1).tolist() for row in allowed]


def free(rows: int) -> torch.Tensor:
    return torch.empty(rows, 0, dtype=torch.long)


def test_pad_begin_and_unknown_are_suppressed():
    allowed = constrain_(log_probabilities(2), 0, free(2), DecodingConfig(), SYMBOLS)
    assert possible_tokens(allowed) == [[2, 4, 5, 6]] * 2
    allowed = constrain_(log_probabilities(2), 0, free(2), DecodingConfig(allow_unknown=True), SYMBOLS)
    assert possible_tokens(allowed) == [[2, 3, 4, 5, 6]] * 2


def test_no_end_before_the_minimum_length():
    config = DecodingConfig(min_length=2)
    ends = [
        SYMBOLS.end in possible_tokens(constrain_(log_probabilities(1), position, free(1), config, SYMBOLS))[0]
        for position in range(4)
    ]
    assert ends == [False, False, True, True]


def test_allowed_tokens_keep_their_log_probability():
    before = log_probabilities(3)
    prefixes = torch.tensor([[4], [FREE], [SYMBOLS.unknown]])
    after = constrain_(before.clone(), 0, prefixes, DecodingConfig(), SYMBOLS)
    assert possible_tokens(after) == [[4], [2, 4, 5, 6], [SYMBOLS.unknown]]
    assert torch.equal(after[after.isfinite()], before[after.isfinite()])


def test_length_limits_depend_on_the_source_length_without_padding():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    config = DecodingConfig(max_length_factor=1.5, max_length_offset=2)
    assert length_limits(mask, config).tolist() == [6, 3]
    assert length_limits(mask, DecodingConfig(max_length=4)).tolist() == [4, 4]
    config = DecodingConfig(max_length_factor=1.5, max_length_offset=2, min_length=5)
    assert length_limits(mask, config).tolist() == [6, 6], "the minimum length and the end symbol"


def test_a_language_model_needs_a_maximum_length():
    with pytest.raises(SaccadeError) as error:
        length_limits(empty_memory(2).mask, DecodingConfig())
    assert "decoding.max-length" in str(error.value.hint)
    assert length_limits(empty_memory(2).mask, DecodingConfig(max_length=9)).tolist() == [9, 9]


def test_ragged_prefixes_are_padded_with_free():
    memory = fake_memory(FakeModel(), [[4], [5], [6]])
    constraints = constraints_of(memory.mask, DecodingConfig(), SYMBOLS, [[4, 5], [], [6]])
    assert constraints.prefixes.tolist() == [[4, 5], [FREE, FREE], [6, FREE]]
    assert constraints_of(memory.mask, DecodingConfig(), SYMBOLS, [[], [], []]).prefixes.shape == (3, 0)
    assert constraints_of(memory.mask, DecodingConfig(), SYMBOLS, None).prefixes.shape == (3, 0)


def test_invalid_prefixes_are_refused():
    memory = fake_memory(FakeModel(), [[4], [5]])
    with pytest.raises(SaccadeError, match="input 2"):
        constraints_of(memory.mask, DecodingConfig(max_length=3), SYMBOLS, [[], [4, 5, 4, 5]])
    with pytest.raises(ValueError, match="input 1"):
        constraints_of(memory.mask, DecodingConfig(), SYMBOLS, [[4, SYMBOLS.end], []])
    with pytest.raises(ValueError, match=r"\b1\b.*\b2\b"):
        constraints_of(memory.mask, DecodingConfig(), SYMBOLS, [[]])


def test_rows_without_a_possible_token_are_minus_infinity_and_not_nan():
    impossible = torch.full((1, VOCABULARY), -math.inf)
    for prefixes in (free(1), torch.tensor([[4]])):
        assert constrain_(impossible.clone(), 0, prefixes, DecodingConfig(), SYMBOLS).isneginf().all()

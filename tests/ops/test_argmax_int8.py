"""The token that the int8 screen finds is the argmax of all float32 logits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from saccade.ops.argmax_int8 import argmax_int8
from saccade.ops.int8_linear import QuantizedMatrix, int8_linear

SIZES = [(1, 3, 2), (32, 1, 1), (33, 5, 3), (40, 16, 64), (37, 1000, 33), (200, 8000, 128), (50, 333, 1030)]


pytestmark = pytest.mark.usefixtures("kernel_level", "int8_required", "seeded")


def check(rows: Tensor, table: Tensor, bias: Tensor | None = None, suppressed: Sequence[int] = ()) -> Tensor:
    """The tokens found, after a comparison with all logits in double precision."""
    values, tokens = argmax_int8(rows, QuantizedMatrix(table, bias), suppressed)
    logits = rows.double() @ table.double().T + (0.0 if bias is None else bias.double())
    logits[:, list(suppressed)] = -torch.inf
    largest = rows.norm(dim=1).max() * table.norm(dim=1).max() + (0 if bias is None else bias.abs().max())
    rounding = 1e-6 * float(largest)
    assert_close(values.double(), logits.amax(1), rtol=0, atol=rounding)
    assert_close(logits.gather(1, tokens[:, None]).squeeze(1), logits.amax(1), rtol=0, atol=rounding)
    return tokens


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "vocabulary", "width"), SIZES)
def test_the_largest_logit(rows, vocabulary, width, biased):
    bias = torch.randn(vocabulary) if biased else None
    check(torch.randn(rows, width), torch.randn(vocabulary, width), bias)


def test_suppressed_tokens():
    rows, table = torch.randn(40, 32), torch.randn(100, 32)
    best = check(rows, table)
    suppressed = best.unique()[:50].tolist()
    assert not set(check(rows, table, suppressed=suppressed).tolist()) & set(suppressed)


@pytest.mark.parametrize("close", [10, 63, 64, 65, 500])
def test_logits_that_int8_cannot_separate(close):
    """A few, and more than the kernel keeps as candidates."""
    rows, table = torch.randn(40, 64), torch.randn(1000, 64)
    table[:close] = 5 * torch.randn(64) + 1e-4 * torch.randn(close, 64)
    rows = 10 * rows + table[0]
    assert check(rows, table).unique().numel() > 1
    assert int(check(rows, table).max()) < close


@pytest.mark.parametrize("equal", [2, 200])
def test_ties_go_to_the_lowest_id(equal):
    rows, table = torch.randn(40, 64), torch.randn(300, 64)
    table[50 : 50 + equal] = 5 * torch.randn(64)
    rows = rows + table[50]
    tokens = argmax_int8(rows, QuantizedMatrix(table))[1]
    assert tokens.unique().tolist() == [50]


def test_rows_and_tokens_of_very_different_sizes():
    rows = torch.randn(60, 48) * torch.logspace(-20, 6, 60)[:, None]
    table = torch.randn(700, 48) * torch.logspace(-12, 3, 700)[torch.randperm(700), None]
    for row in range(60):
        check(rows[row].expand(32, -1), table)


def test_nan_and_infinity_stay_in_their_row():
    rows, table = torch.randn(40, 32), torch.randn(100, 32)
    table = QuantizedMatrix(table)
    values, tokens = argmax_int8(rows, table)
    wrong = rows.clone()
    wrong[3, 5], wrong[7, 0] = torch.nan, torch.inf
    found, others = argmax_int8(wrong, table)
    right = torch.tensor([row for row in range(40) if row not in (3, 7)])
    assert not found[3].isfinite()
    assert not found[7].isfinite()
    assert found[right].equal(values[right])
    assert others[right].equal(tokens[right])


def test_zeros():
    values, tokens = argmax_int8(torch.zeros(40, 8), QuantizedMatrix(torch.zeros(9, 8)), (0, 1))
    assert values.unique().tolist() == [0.0]
    assert tokens.unique().tolist() == [2]


def by_threads(rows: Tensor, table: Tensor, *, exact: bool) -> Tensor:
    """Tokens that are equal with one, two and three threads."""
    weight, before, found = QuantizedMatrix(table), torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.append(argmax_int8(rows, weight, exact=exact))
        finally:
            torch.set_num_threads(before)
    for values, tokens in found[1:]:
        assert torch.equal(values, found[0][0])
        assert torch.equal(tokens, found[0][1])
    return found[0][1]


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("close", [0, 40, 100])  # 40: few enough for the candidates of one thread, too many for all
@pytest.mark.parametrize("count", [1, 41])
def test_any_number_of_threads(count, close, exact):
    rows, table = torch.randn(count, 1400), torch.randn(777, 1400)
    if close:
        alike = 5 * torch.randn(1400)
        for first in (10, 600):
            table[first : first + close] = alike + 1e-4 * torch.randn(close, 1400)
        rows = 10 * rows + alike
    tokens = by_threads(rows, table, exact=exact)
    if exact:
        assert torch.equal(tokens, check(rows.repeat(32, 1), table)[:count])
        if close and count > 1:
            assert {token < 600 for token in tokens.tolist()} == {
                True,
                False,
            }  # in parts of both threads


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("first", [0, 300, 677])
def test_many_ties_below_the_largest_logit(first, exact):
    """They exceed the candidates of one part of the vocabulary; the largest logit is in another part."""
    rows, table = torch.randn(1, 1400), torch.randn(777, 1400)
    table[first : first + 100] = rows * 2
    for best in (150, 676):
        table[best] = rows * 3
        assert by_threads(rows, table, exact=exact).tolist() == [best]
        table[best] = 0.0


@pytest.mark.parametrize("lane", range(20))
def test_nan_in_the_weight_of_a_token_leaves_no_argmax(lane):
    rows, table = torch.randn(40, 32), torch.randn(100, 32)
    table[30 + lane, 3] = torch.nan
    for exact in (True, False):
        values = argmax_int8(rows, QuantizedMatrix(table), exact=exact)[0]
        assert values.unique().tolist() == [-torch.inf]


def test_the_argmax_of_int8_logits():
    rows, table = torch.randn(600, 24), torch.randn(4000, 24)
    weight = QuantizedMatrix(table)
    logits = int8_linear(rows, weight)
    logits[:, [3, 5]] = -torch.inf
    expected = logits.argmax(1)
    assert torch.equal(argmax_int8(rows, weight, (3, 5), exact=False)[1], expected)
    assert not torch.equal(argmax_int8(rows, weight, (3, 5))[1], expected)  # int8 rounding changes some

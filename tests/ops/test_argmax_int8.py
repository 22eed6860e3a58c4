"""The most probable token by way of bytes is the one that all logits give."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from saccade.csrc import library as kernels
from saccade.decoding.screening import LEAST_ROWS as MANY
from saccade.decoding.screening import Screen, screen_of
from saccade.interface import Product
from saccade.ops.int8_linear import int8_linear, quantize
from saccade.plans.quantization import quantize_model

SIZES = [(MANY, 1, 1), (33, 5, 3), (40, 16, 64), (37, 1000, 33), (200, 8000, 128), (50, 333, 1030)]


@pytest.fixture(autouse=True)
def by_bytes(level: str) -> None:
    if level == "v1":
        pytest.skip("this level has no products of bytes")


def screen(rows: Tensor, table: Tensor, bias: Tensor | None = None) -> Screen:
    found = screen_of(Product(rows, table, bias))
    assert found is not None
    return found


def check(rows: Tensor, table: Tensor, bias: Tensor | None = None, never: Sequence[int] = ()) -> Tensor:
    """Compare with all logits in double precision; the tokens that were found."""
    values, tokens = screen(rows, table, bias).best(rows, never)
    logits = rows.double() @ table.double().T + (0.0 if bias is None else bias.double())
    logits[:, list(never)] = -torch.inf
    largest = rows.norm(dim=1).max() * table.norm(dim=1).max() + (0 if bias is None else bias.abs().max())
    rounding = 1e-6 * float(largest)
    assert_close(values.double(), logits.amax(1), rtol=0, atol=rounding)
    assert_close(logits.gather(1, tokens[:, None]).squeeze(1), logits.amax(1), rtol=0, atol=rounding)
    return tokens


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("rows", "vocabulary", "width"), SIZES)
def test_the_token_with_the_largest_logit(rows, vocabulary, width, biased):
    bias = torch.randn(vocabulary) if biased else None
    check(torch.randn(rows, width), torch.randn(vocabulary, width), bias)


def test_tokens_that_are_never_written():
    rows, table = torch.randn(40, 32), torch.randn(100, 32)
    best = check(rows, table)
    never = best.unique()[:50].tolist()
    assert not set(check(rows, table, never=never).tolist()) & set(never)


@pytest.mark.parametrize("close", [10, 63, 64, 65, 500])
def test_tokens_that_bytes_cannot_tell_apart(close):
    """Some, and more than are kept for a second look."""
    rows, table = torch.randn(40, 64), torch.randn(1000, 64)
    table[:close] = 5 * torch.randn(64) + 1e-4 * torch.randn(close, 64)
    rows = 10 * rows + table[0]
    assert check(rows, table).unique().numel() > 1
    assert int(check(rows, table).max()) < close


@pytest.mark.parametrize("equal", [2, 200])
def test_of_equal_ones_the_first(equal):
    rows, table = torch.randn(40, 64), torch.randn(300, 64)
    table[50 : 50 + equal] = 5 * torch.randn(64)
    rows = rows + table[50]
    tokens = screen(rows, table).best(rows, ())[1]
    assert tokens.unique().tolist() == [50]


def test_rows_and_tokens_of_very_different_sizes():
    rows = torch.randn(60, 48) * torch.logspace(-20, 6, 60)[:, None]
    table = torch.randn(700, 48) * torch.logspace(-12, 3, 700)[torch.randperm(700), None]
    for row in range(60):
        check(rows[row].expand(MANY, -1), table)


def test_what_is_no_number_makes_a_row_impossible_and_leaves_the_others():
    rows, table = torch.randn(40, 32), torch.randn(100, 32)
    values, tokens = screen(rows, table).best(rows, ())
    wrong = rows.clone()
    wrong[3, 5], wrong[7, 0] = torch.nan, torch.inf
    found, others = screen(wrong, table).best(wrong, ())
    right = torch.tensor([row for row in range(40) if row not in (3, 7)])
    assert not found[3].isfinite()
    assert not found[7].isfinite()
    assert found[right].equal(values[right])
    assert others[right].equal(tokens[right])


def test_zeros():
    values, tokens = screen(torch.zeros(40, 8), torch.zeros(9, 8)).best(torch.zeros(40, 8), (0, 1))
    assert values.unique().tolist() == [0.0]
    assert tokens.unique().tolist() == [2]


def by_threads(rows: Tensor, table: Tensor, *, exact: bool) -> Tensor:
    """Tokens that are the same with one, two and three threads."""
    bytes_of_table, before, found = quantize(table), torch.get_num_threads(), []
    assert bytes_of_table is not None
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            found.append(Screen(bytes_of_table, exact=exact).best(rows, ()))
        finally:
            torch.set_num_threads(before)
    for values, tokens in found[1:]:
        assert torch.equal(values, found[0][0])
        assert torch.equal(tokens, found[0][1])
    return found[0][1]


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("close", [0, 40, 100])  # 40: kept by each of several threads, and too many together
@pytest.mark.parametrize("count", [1, 41])
def test_any_number_of_threads(count, close, exactly):
    rows, table = torch.randn(count, 1400), torch.randn(777, 1400)
    if close:
        alike = 5 * torch.randn(1400)
        for first in (10, 600):
            table[first : first + close] = alike + 1e-4 * torch.randn(close, 1400)
        rows = 10 * rows + alike
    tokens = by_threads(rows, table, exact=exactly)
    if exactly:
        assert torch.equal(tokens, check(rows.repeat(MANY, 1), table)[:count])
        if close and count > 1:
            assert {token < 600 for token in tokens.tolist()} == {True, False}  # of the parts of both threads


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("first", [0, 300, 677])
def test_many_equal_ones_that_are_not_the_largest(first, exactly):
    """They are many in one part and do not matter in another, in which the largest is."""
    rows, table = torch.randn(1, 1400), torch.randn(777, 1400)
    table[first : first + 100] = rows * 2
    for best in (150, 676):
        table[best] = rows * 3
        assert by_threads(rows, table, exact=exactly).tolist() == [best]
        table[best] = 0.0


@pytest.mark.parametrize("lane", range(20))
def test_a_token_that_is_no_number_makes_every_row_impossible(lane):
    rows, table = torch.randn(40, 32), torch.randn(100, 32)
    table[30 + lane, 3] = torch.nan
    for exactly in (True, False):
        bytes_of_table = quantize(table)
        assert bytes_of_table is not None
        values = Screen(bytes_of_table, exact=exactly).best(rows, ())[0]
        assert values.unique().tolist() == [-torch.inf]


def test_none_for_few_rows_and_without_kernels():
    rows, table = torch.randn(MANY, 8), torch.randn(10, 8)
    assert screen_of(Product(rows[: MANY - 1], table, None)) is None
    assert screen_of(Product(rows.double(), table.double(), None)) is None
    assert screen_of(None) is None
    with kernels.without_kernels():
        assert screen_of(Product(rows, table, None)) is None


def test_the_token_of_the_bytes_alone():
    rows, table = torch.randn(600, 24), torch.randn(4000, 24)
    found = quantize(table)
    assert found is not None
    logits = int8_linear(rows, found)
    logits[:, [3, 5]] = -torch.inf
    expected = logits.argmax(1)
    assert torch.equal(Screen(found, exact=False).best(rows, (3, 5))[1], expected)
    assert not torch.equal(Screen(found).best(rows, (3, 5))[1], expected)  # bytes err now and then
    weight = nn.Parameter(table)
    assert screen_of(Product(rows, weight.detach(), None)).exact
    holder = nn.ParameterList([weight])
    quantize_model(holder)
    assert not screen_of(Product(rows, holder[0], None)).exact

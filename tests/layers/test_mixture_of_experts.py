from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from layers.padded import run_padded
from saccade.layers import mixture_of_experts
from saccade.layers.masks import padding_mask
from saccade.layers.mixture_of_experts import MixtureOfExperts, Routing, auxiliary_loss, balance, capacity

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def make(experts: int = 5, per_token: int = 2, factor: float = 100.0, **options: bool) -> MixtureOfExperts:
    torch.manual_seed(0)
    layer = MixtureOfExperts(6, 9, experts, per_token, factor, **options)
    for bias in (layer.expand_bias, layer.contract_bias):
        torch.nn.init.normal_(bias)
    return layer


def expert(layer: MixtureOfExperts, index: int, x: torch.Tensor) -> torch.Tensor:
    inner = (x @ layer.expand[index] + layer.expand_bias[index]).relu()
    return inner @ layer.contract[index] + layer.contract_bias[index]


def slow(layer: MixtureOfExperts, x: torch.Tensor) -> torch.Tensor:
    """Position by position, expert by expert."""
    output = torch.zeros_like(x)
    for row in range(x.size(0)):
        for position in range(x.size(1)):
            scores = layer.router @ x[row, position]
            best = scores.argsort(descending=True)[: layer.per_token]
            total = scores[best].exp().sum() if layer.per_token > 1 else scores.exp().sum()
            for index in best.tolist():
                output[row, position] += scores[index].exp() / total * expert(layer, index, x[row, position])
    return output


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("per_token", [1, 2, 3])
def test_the_output_is_the_gated_sum_of_the_chosen_experts(training, per_token):
    layer = make(per_token=per_token).train(training)
    x = torch.randn(3, 7, 6, requires_grad=True)
    found, expected = run_padded(layer, x).values, slow(layer, x)
    assert_close(found, expected, **CLOSE)
    gradient = torch.randn_like(x)
    leaves = [x, *layer.parameters()]
    found_gradients, expected_gradients = (torch.autograd.grad(each, leaves, gradient) for each in (found, expected))
    assert_close(found_gradients, expected_gradients, **CLOSE)


def test_every_expert_of_a_small_batch_learns():
    layer = make(experts=4, factor=1.25).train()
    mixed = run_padded(layer, torch.randn(4, 9, 6))
    (mixed.values.pow(2).sum() + mixed.routing.balance).backward()
    for weight in (layer.router, layer.expand, layer.expand_bias, layer.contract, layer.contract_bias):
        assert all(part.abs().max() > 0 for part in weight.grad)


def test_an_expert_without_tokens_gets_no_gradient():
    layer = make(experts=4, per_token=1).train()
    with torch.no_grad():
        layer.router.zero_()[2] = 5.0
    run_padded(layer, torch.rand(2, 3, 6)).values.sum().backward()  # positive inputs: all go to expert 2
    assert [bool(part.abs().max() > 0) for part in layer.expand.grad] == [False, False, True, False]


@pytest.mark.parametrize("per_token", [1, 2, 3])
def test_in_evaluation_no_bit_of_an_output_depends_on_later_positions(per_token):
    layer = make(per_token=per_token).eval()
    x = torch.randn(4, 50, 6)
    before = run_padded(layer, x).values
    for position in range(1, 50, 4):
        changed = x.clone()
        changed[:, position:] = torch.randn(4, 50 - position, 6)
        assert torch.equal(run_padded(layer, changed).values[:, :position], before[:, :position])


def test_in_evaluation_the_batch_changes_nothing():
    layer = make(factor=0.1).eval()
    x = torch.randn(4, 50, 6)
    together = run_padded(layer, x)
    assert together.routing is None
    for row in range(4):
        assert_close(run_padded(layer, x[row : row + 1]).values, together.values[row : row + 1], **CLOSE)
    for position in (0, 17, 49):  # a decoding step has no layout
        assert_close(layer(x[:, position]).values, together.values[:, position], **CLOSE)


@pytest.mark.parametrize("training", [True, False])
def test_padding_is_not_routed(training):
    layer = make(factor=1.25).train(training)
    mask = padding_mask(torch.tensor([9, 2, 5]))
    x = torch.randn(3, 9, 6)
    other = torch.where(mask[:, :, None], x, torch.randn_like(x))
    found, again = run_padded(layer, x, mask), run_padded(layer, other, mask)
    assert torch.equal(found.values, again.values)
    if training:
        assert found.routing.routed == 16
        assert torch.equal(found.routing.balance, again.routing.balance)
        assert found.routing.dropped == again.routing.dropped


def test_a_batch_of_padding_only():
    mixed = run_padded(make().train(), torch.randn(2, 3, 6), torch.zeros(2, 3, dtype=torch.bool))
    assert mixed.routing.balance == 0
    assert (mixed.routing.dropped, mixed.routing.routed) == (0, 0)


def test_tokens_above_the_capacity_are_dropped_and_counted():
    """All 8 tokens choose expert 1, which has room for ceil(1.25 · 1 · 8 / 4) = 3."""
    layer = make(experts=4, per_token=1, factor=1.25).train()
    with torch.no_grad():
        layer.router.zero_()[1] = 5.0
    x = torch.rand(2, 4, 6)
    mixed = run_padded(layer, x)
    assert mixed.routing.dropped == 5
    assert mixed.routing.routed == 8
    kept = mixed.values.abs().amax(-1) > 0
    assert kept.tolist() == [[True, True, False, False], [True, False, False, False]]  # earlier positions come first
    assert_close(mixed.values[kept], slow(layer, x)[kept], **CLOSE)
    assert_close(run_padded(layer.eval(), x).values, slow(layer, x), **CLOSE)


def test_dropped_tokens_are_counted_in_tokens_not_in_choices():
    layer = make(experts=2, per_token=2, factor=0.5).train()  # every token chooses both: 20 choices, room for 5 + 5
    routing = run_padded(layer, torch.randn(2, 5, 6)).routing
    assert (routing.dropped, routing.routed) == (5, 10)
    assert routing.balance.item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("factor", "per_token", "tokens", "experts", "expected"),
    [(1.25, 1, 8, 4, 3), (1.0, 2, 10, 4, 5), (1e308, 4, 10, 4, 10), (0.01, 1, 10, 4, 1), (1.25, 2, 0, 4, 0)],
)
def test_capacity(factor, per_token, tokens, experts, expected):
    assert capacity(factor, per_token, tokens, experts) == expected


def test_balance_by_hand():
    """Two experts, probabilities (3/4, 1/4) for three tokens and (1/4, 3/4) for one."""
    three, one = [math.log(3.0), 0.0], [0.0, math.log(3.0)]
    found = balance(torch.tensor([three, three, three, one]), torch.tensor([3, 1]))
    # f = (3/4, 1/4), P = (10/16, 6/16)
    assert found.item() == pytest.approx(2 * (3 / 4 * 10 / 16 + 1 / 4 * 6 / 16))


def test_balance_is_1_if_even_and_the_number_of_experts_at_worst():
    assert balance(torch.zeros(8, 4), torch.tensor([2, 2, 2, 2])).item() == pytest.approx(1.0)
    alone = torch.tensor([100.0, 0.0, 0.0, 0.0]).expand(8, 4)
    assert balance(alone, torch.tensor([8, 0, 0, 0])).item() == pytest.approx(4.0)


def test_the_balance_loss_evens_out_a_router():
    torch.manual_seed(0)
    layer = MixtureOfExperts(6, 9, 4, 1, 100.0).train()
    x = torch.randn(8, 32, 6) + 1.0
    with torch.no_grad():
        layer.router[0] += 1.0
    optimizer = torch.optim.Adam([layer.router], 1e-2)
    first = run_padded(layer, x).routing.balance.item()
    for _ in range(100):
        optimizer.zero_grad()
        run_padded(layer, x).routing.balance.backward()
        optimizer.step()
    last = run_padded(layer, x).routing.balance.item()
    assert first > 2.0
    assert last < 1.2


def test_noise_acts_only_in_training_and_its_size_is_learned():
    layer = make(noise=True).train()
    x = torch.randn(4, 9, 6)
    torch.manual_seed(1)
    first = run_padded(layer, x).values
    assert not torch.equal(first, run_padded(layer, x).values)
    torch.manual_seed(1)
    assert torch.equal(first, run_padded(layer, x).values)
    first.sum().backward()
    assert layer.noise.grad.abs().max() > 0
    # Scores are x W_g + z · softplus(x W_noise) (eq. 4); W_noise begins as zeros, softplus(0) = ln 2.
    flat = torch.randn(50, 6)
    torch.manual_seed(2)
    scores = layer.scores(flat)
    torch.manual_seed(2)
    assert_close(scores, flat @ layer.router.T + math.log(2.0) * torch.randn(50, 5))
    layer.eval()
    assert_close(run_padded(layer, x).values, slow(layer, x), **CLOSE)


def test_experts_run_in_half_precision_and_route_in_full_precision():
    layer = make().train()
    x = torch.randn(2, 9, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = run_padded(layer, x)
        assert layer.scores(x.flatten(0, 1)).dtype == torch.float32
    mixed.values.float().sum().backward()
    assert_close(mixed.values.float(), slow(layer, x), rtol=0.1, atol=0.1)


def test_an_expert_computes_its_own_tokens_only(monkeypatch):
    """A token costs k experts, not all of them."""
    rows: list[int] = []
    own = mixture_of_experts.expert_forward
    monkeypatch.setattr(
        mixture_of_experts, "expert_forward", lambda x, *weights: (rows.append(len(x)), own(x, *weights))[1]
    )
    run_padded(make(experts=5, per_token=2).train(), torch.randn(4, 25, 6))
    assert sum(rows) == 4 * 25 * 2


def test_the_auxiliary_loss_of_a_stack():
    one = Routing(torch.tensor(1.5), torch.tensor(4.0), torch.tensor(20.0))
    other = Routing(torch.tensor(1.1), torch.tensor(0.0), torch.tensor(20.0))
    found = auxiliary_loss([None, one, None, other], 0.01)
    assert found.loss.item() == pytest.approx(0.01 * 2.6)
    assert {name: value.item() for name, value in found.sums.items()} == pytest.approx(
        {"balance": 1.3 * 20, "dropped": 2.0, "routed": 20.0}
    )
    assert auxiliary_loss([None, None], 0.01) is None

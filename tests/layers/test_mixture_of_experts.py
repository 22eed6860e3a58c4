from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from saccade.layers import mixture_of_experts
from saccade.layers.masks import padding_mask
from saccade.layers.mixture_of_experts import MixtureOfExperts, Routing, auxiliary_of, balance, capacity

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
    """One place after the other, one expert after the other."""
    output = torch.zeros_like(x)
    for row in range(x.size(0)):
        for place in range(x.size(1)):
            scores = layer.router @ x[row, place]
            best = scores.argsort(descending=True)[: layer.per_token]
            total = scores[best].exp().sum() if layer.per_token > 1 else scores.exp().sum()
            for index in best.tolist():
                output[row, place] += scores[index].exp() / total * expert(layer, index, x[row, place])
    return output


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("per_token", [1, 2, 3])
def test_it_is_the_gated_sum_of_the_chosen_experts(training, per_token):
    layer = make(per_token=per_token).train(training)
    x = torch.randn(3, 7, 6, requires_grad=True)
    found, expected = layer(x).output, slow(layer, x)
    assert_close(found, expected, **CLOSE)
    slope = torch.randn_like(x)
    leaves = [x, *layer.parameters()]
    assert_close(torch.autograd.grad(found, leaves, slope), torch.autograd.grad(expected, leaves, slope), **CLOSE)


def test_every_expert_of_a_small_batch_learns():
    layer = make(experts=4, factor=1.25).train()
    mixed = layer(torch.randn(4, 9, 6))
    (mixed.output.pow(2).sum() + mixed.routing.balance).backward()
    for weight in (layer.router, layer.expand, layer.expand_bias, layer.contract, layer.contract_bias):
        assert all(part.abs().max() > 0 for part in weight.grad)


def test_an_expert_that_nobody_chose_gets_no_gradient():
    layer = make(experts=4, per_token=1).train()
    with torch.no_grad():
        layer.router.zero_()[2] = 5.0
    layer(torch.rand(2, 3, 6)).output.sum().backward()  # positive inputs: all go to expert 2
    assert [bool(part.abs().max() > 0) for part in layer.expand.grad] == [False, False, True, False]


@pytest.mark.parametrize("per_token", [1, 2, 3])
def test_in_evaluation_no_bit_of_a_place_depends_on_later_ones(per_token):
    layer = make(per_token=per_token).eval()
    x = torch.randn(4, 50, 6)
    before = layer(x).output
    for place in range(1, 50, 4):
        changed = x.clone()
        changed[:, place:] = torch.randn(4, 50 - place, 6)
        assert torch.equal(layer(changed).output[:, :place], before[:, :place])


def test_in_evaluation_the_batch_changes_nothing():
    layer = make(factor=0.1).eval()
    x = torch.randn(4, 50, 6)
    together = layer(x)
    assert together.routing is None
    for row in range(4):
        assert_close(layer(x[row : row + 1]).output, together.output[row : row + 1], **CLOSE)
    for place in (0, 17, 49):
        step = layer(x[:, place : place + 1]).output
        assert_close(step, together.output[:, place : place + 1], **CLOSE)


@pytest.mark.parametrize("training", [True, False])
def test_padding_is_not_routed(training):
    layer = make(factor=1.25).train(training)
    mask = padding_mask(torch.tensor([9, 2, 5]))
    x = torch.randn(3, 9, 6)
    other = torch.where(mask[:, :, None], x, torch.randn_like(x))
    found, again = layer(x, mask), layer(other, mask)
    assert torch.equal(found.output, again.output)
    assert (found.output[~mask] == 0).all()
    if training:
        assert found.routing.routed == 16
        assert torch.equal(found.routing.balance, again.routing.balance)
        assert found.routing.dropped == again.routing.dropped


def test_nothing_but_padding():
    mixed = make().train()(torch.randn(2, 3, 6), torch.zeros(2, 3, dtype=torch.bool))
    assert (mixed.output == 0).all()
    assert mixed.routing.balance == 0


def test_what_exceeds_the_capacity_is_dropped_and_counted():
    """All 8 places want expert 1, which has room for ceil(1.25 · 1 · 8 / 4) = 3."""
    layer = make(experts=4, per_token=1, factor=1.25).train()
    with torch.no_grad():
        layer.router.zero_()[1] = 5.0
    x = torch.rand(2, 4, 6)
    mixed = layer(x)
    assert mixed.routing.dropped == 5
    assert mixed.routing.routed == 8
    kept = mixed.output.abs().amax(-1) > 0
    assert kept.tolist() == [[True, True, False, False], [True, False, False, False]]  # the earlier places come first
    assert_close(mixed.output[kept], slow(layer, x)[kept], **CLOSE)
    assert_close(layer.eval()(x).output, slow(layer, x), **CLOSE)


def test_dropped_places_are_counted_in_places_not_in_choices():
    layer = make(experts=2, per_token=2, factor=0.5).train()  # every place wants both: 20 choices, room for 5 + 5
    routing = layer(torch.randn(2, 5, 6)).routing
    assert (routing.dropped, routing.routed) == (5, 10)
    assert routing.balance.item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("factor", "per_token", "tokens", "experts", "expected"),
    [(1.25, 1, 8, 4, 3), (1.0, 2, 10, 4, 5), (1e308, 4, 10, 4, 10), (0.01, 1, 10, 4, 1), (1.25, 2, 0, 4, 0)],
)
def test_capacity(factor, per_token, tokens, experts, expected):
    assert capacity(factor, per_token, tokens, experts) == expected


def test_balance_by_hand():
    """Two experts, probabilities (3/4, 1/4) for three places and (1/4, 3/4) for one."""
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
    first = layer(x).routing.balance.item()
    for _ in range(100):
        optimizer.zero_grad()
        layer(x).routing.balance.backward()
        optimizer.step()
    last = layer(x).routing.balance.item()
    assert first > 2.0
    assert last < 1.2


def test_noise_acts_only_in_training_and_its_size_is_learned():
    layer = make(noise=True).train()
    x = torch.randn(4, 9, 6)
    torch.manual_seed(1)
    first = layer(x).output
    assert not torch.equal(first, layer(x).output)
    torch.manual_seed(1)
    assert torch.equal(first, layer(x).output)
    first.sum().backward()
    assert layer.noise.grad.abs().max() > 0
    # Scores are x W_g + z · softplus(x W_noise) (eq. 4); W_noise begins as zeros, softplus(0) = ln 2.
    flat = torch.randn(50, 6)
    torch.manual_seed(2)
    scores = layer.scores(flat)
    torch.manual_seed(2)
    assert_close(scores, flat @ layer.router.T + math.log(2.0) * torch.randn(50, 5))
    layer.eval()
    assert_close(layer(x).output, slow(layer, x), **CLOSE)


def test_it_runs_in_half_precision_and_routes_in_full():
    layer = make().train()
    x = torch.randn(2, 9, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = layer(x)
        assert layer.scores(x.flatten(0, 1)).dtype == torch.float32
    mixed.output.float().sum().backward()
    assert_close(mixed.output.float(), slow(layer, x), rtol=0.1, atol=0.1)


def test_no_expert_works_on_more_than_its_own_places(monkeypatch):
    """The work is that of k experts a place, not of all."""
    rows: list[int] = []
    own = mixture_of_experts.feed
    monkeypatch.setattr(mixture_of_experts, "feed", lambda x, *weights: (rows.append(len(x)), own(x, *weights))[1])
    make(experts=5, per_token=2).train()(torch.randn(4, 25, 6))
    assert sum(rows) == 4 * 25 * 2


def test_what_a_stack_asks_for():
    one = Routing(torch.tensor(1.5), torch.tensor(4.0), torch.tensor(20.0))
    other = Routing(torch.tensor(1.1), torch.tensor(0.0), torch.tensor(20.0))
    found = auxiliary_of([None, one, None, other], 0.01)
    assert found.loss.item() == pytest.approx(0.01 * 2.6)
    assert {name: value.item() for name, value in found.sums.items()} == pytest.approx(
        {"balance": 1.3 * 20, "dropped": 2.0, "routed": 20.0}
    )
    assert auxiliary_of([None, None], 0.01) is None

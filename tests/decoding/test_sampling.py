from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from fake_model import SYMBOLS, FakeModel, fake_memory
from saccade.decoding.config import DecodingConfig
from saccade.decoding.sampling import Distribution, distribution, draw, nucleus, uniform_numbers
from saccade.decoding.search import SearchRequest, search

SOURCE = [4, 5, 6]
DRAWS = 4000


def first_tokens(model: FakeModel, config: DecodingConfig) -> Counter[int]:
    [samples] = search(model, SearchRequest(fake_memory(model, [SOURCE]), config, SYMBOLS))
    return Counter(each.tokens[0] if each.tokens else SYMBOLS.end for each in samples)


def next_logits(model: FakeModel, tokens: tuple[int, ...]) -> torch.Tensor:
    """The model's logits (V,) after some tokens."""
    outputs = model.decode(torch.tensor([[SYMBOLS.begin, *tokens]]), fake_memory(model, [SOURCE])).outputs
    return model.logits(outputs[0, -1])


def next_probabilities(model: FakeModel, tokens: tuple[int, ...], temperature: float = 1.0) -> torch.Tensor:
    """The distribution (V,) of the next token over all tokens that are not suppressed."""
    logits = next_logits(model, tokens)
    logits[[SYMBOLS.pad, SYMBOLS.begin, SYMBOLS.unknown]] = -torch.inf
    return (logits / temperature).softmax(dim=0)


def by_token(probabilities: torch.Tensor) -> dict[int, float]:
    return {token: p for token, p in enumerate(probabilities.tolist()) if p > 0}


def chi_square(counts: Counter[Any], probabilities: dict[Any, float]) -> float:
    assert set(counts) <= set(probabilities)
    expected = {outcome: p * DRAWS for outcome, p in probabilities.items()}
    return sum((counts[outcome] - mean) ** 2 / mean for outcome, mean in expected.items())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_follow_the_distribution(temperature):
    model = FakeModel(vocabulary=12, seed=4, sharpness=0.5)
    config = DecodingConfig(sample=True, nbest=DRAWS, max_length=1, temperature=temperature)
    expected = by_token(next_probabilities(model, (), temperature))
    assert chi_square(first_tokens(model, config), expected) < 26.1, "0.1 % point, 8 degrees of freedom"


def test_frequencies_of_sequences_follow_the_model():
    model = FakeModel(seed=4, sharpness=0.5)
    memory = fake_memory(model, [SOURCE])
    first = next_probabilities(model, ())
    expected = {(): first[SYMBOLS.end].item()}
    for one in (4, 5, 6):
        second = next_probabilities(model, (one,))
        expected[(one,)] = (first[one] * second[SYMBOLS.end]).item()
        expected |= {(one, two): (first[one] * second[two]).item() for two in (4, 5, 6)}
    assert sum(expected.values()) == pytest.approx(1)

    [samples] = search(model, SearchRequest(memory, DecodingConfig(sample=True, nbest=DRAWS, max_length=2), SYMBOLS))
    assert chi_square(Counter(each.tokens for each in samples), expected) < 32.9, "0.1 % point, 12 degrees of freedom"


def test_top_k_and_top_p_restrict_the_support():
    model = FakeModel(vocabulary=12, seed=4, sharpness=0.5)
    probabilities = next_probabilities(model, ())
    order = probabilities.argsort(descending=True).tolist()
    top_three = DecodingConfig(sample=True, nbest=500, max_length=1, top_k=3)
    assert set(first_tokens(model, top_three)) == set(order[:3])

    mass = (probabilities[order[:3]].sum() + probabilities[order[:4]].sum()) / 2  # reached by the fourth
    nucleus_of_four = DecodingConfig(sample=True, nbest=1000, max_length=1, top_p=mass.item())
    assert set(first_tokens(model, nucleus_of_four)) == set(order[:4])

    both = DecodingConfig(sample=True, nbest=500, max_length=1, top_k=2, top_p=0.99)
    assert set(first_tokens(model, both)) <= set(order[:2])
    everything = DecodingConfig(sample=True, nbest=50, max_length=1, top_k=1000)
    assert set(first_tokens(model, everything)) <= set(order)


@pytest.mark.parametrize("setting", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_sampling_from_one_token_is_greedy_search(setting):
    model = FakeModel(vocabulary=12, seed=4, sharpness=0.5)
    memory = fake_memory(model, [SOURCE, [9], [7, 8, 9]])
    sampled = search(model, SearchRequest(memory, DecodingConfig(sample=True, max_length=8, **setting), SYMBOLS))
    assert sampled == search(model, SearchRequest(memory, DecodingConfig(beam=1, max_length=8), SYMBOLS))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_truncated_frequencies_follow_the_renormalized_distribution(temperature):
    model = FakeModel(vocabulary=12, seed=4, sharpness=0.5)
    probabilities = next_probabilities(model, (), temperature)
    kept = probabilities.topk(4)
    truncated = torch.zeros_like(probabilities).scatter(0, kept.indices, kept.values / kept.values.sum())
    config = DecodingConfig(sample=True, nbest=DRAWS, max_length=1, top_k=4, temperature=temperature)
    assert chi_square(first_tokens(model, config), by_token(truncated)) < 16.3, "0.1 % point, 3 degrees of freedom"


def test_the_nucleus_is_the_smallest_set_with_the_mass():
    weights = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    assert nucleus(weights, 0.5).tolist() == [[0.5, 0, 0, 0]]
    assert nucleus(weights, 0.51).tolist() == [[0.5, 0.25, 0, 0]]
    assert nucleus(weights, 1e-9).tolist() == [[0.5, 0, 0, 0]]
    assert nucleus(weights, 1.0).tolist() == weights.tolist()


def test_a_weight_of_zero_is_never_drawn():
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    largest = 1 - 2**-24
    uniform = torch.tensor([0.0, 0.2999, 0.3001, largest])
    drawn = draw(Distribution(weights.expand(4, -1), tokens=None), uniform)
    assert drawn.tolist() == [1, 1, 3, 3]


def test_the_largest_uniform_number_times_a_total_is_below_the_total():
    totals = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) * 4 + 1e-3
    assert (totals * (1 - 2**-24) < totals).all()


def test_a_row_without_a_possible_token_draws_a_valid_index():
    impossible = torch.full((1, 5), -torch.inf)
    for config in (DecodingConfig(sample=True), DecodingConfig(sample=True, top_k=2, top_p=0.5)):
        drawn = draw(distribution(impossible, config), torch.tensor([0.5]))
        assert 0 <= drawn.item() < 5


def test_samples_depend_on_the_seed():
    model = FakeModel(vocabulary=12, sharpness=0.5)
    memory = fake_memory(model, [SOURCE, [9]])

    def run(seed: int) -> list[list[tuple[int, ...]]]:
        config = DecodingConfig(sample=True, nbest=4, max_length=10, seed=seed)
        return [[each.tokens for each in samples] for samples in search(model, SearchRequest(memory, config, SYMBOLS))]

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_random_numbers_depend_on_seed_index_sample_and_position_alone():
    numbers = uniform_numbers(3, [5, 0, 9], samples=2, positions=11).view(3, 2, 11)
    assert torch.equal(uniform_numbers(3, [9], samples=1, positions=6)[0], numbers[2, 0, :6])
    assert torch.equal(uniform_numbers(3, [9], samples=2, positions=6)[1], numbers[2, 1, :6])
    assert len(numbers.unique()) == numbers.numel()
    assert not torch.equal(uniform_numbers(4, [9], samples=1, positions=6)[0], numbers[2, 0, :6])
    assert ((numbers >= 0) & (numbers < 1)).all()


def test_a_sample_keeps_the_log_probability_of_the_model():
    model = FakeModel(vocabulary=12, sharpness=0.5)
    config = DecodingConfig(sample=True, nbest=3, max_length=6, temperature=3.0, top_k=5)
    [samples] = search(model, SearchRequest(fake_memory(model, [SOURCE]), config, SYMBOLS))
    log_probabilities = next_logits(model, ()).log_softmax(dim=0)
    for each in samples:
        first = each.tokens[0] if each.tokens else SYMBOLS.end
        assert each.token_log_probabilities[0] == pytest.approx(log_probabilities[first].item(), abs=1e-5)

from __future__ import annotations

import math

import pytest
import torch

from saccade.decoding.penalties import coverage_penalty, length_penalty


def test_length_penalties_by_formula():
    lengths = torch.tensor([1, 7, 13])
    assert length_penalty(lengths, "gnmt", 1.0).tolist() == pytest.approx([1, 2, 3])
    assert length_penalty(lengths, "gnmt", 2.0).tolist() == pytest.approx([1, 4, 9])
    assert length_penalty(lengths, "plain", 1.0).tolist() == pytest.approx([1, 7, 13])
    assert length_penalty(lengths, "plain", 0.5).tolist() == pytest.approx([1, math.sqrt(7), math.sqrt(13)])
    assert length_penalty(lengths, "none", 1.0).tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["gnmt", "plain", "none"])
def test_alpha_zero_is_no_length_penalty(kind):
    assert length_penalty(torch.tensor([1, 5, 50]), kind, 0.0).tolist() == [1, 1, 1]


def test_coverage_penalty_by_formula():
    coverage = torch.tensor([[0.5, 1.0, 0.25], [2.0, 1.5, 0.1]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    penalty = coverage_penalty(coverage, mask, beta=0.2)
    assert penalty.tolist() == pytest.approx([0.2 * (math.log(0.5) + math.log(0.25)), 0.0])


def test_the_coverage_penalty_is_finite_without_any_attention():
    penalty = coverage_penalty(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), beta=1.0)
    assert -200 < penalty.item() < -100


@pytest.mark.parametrize("kind", ["gnmt", "plain"])
def test_a_probability_of_zero_stays_zero_with_a_large_alpha(kind):
    penalty = length_penalty(torch.tensor([1, 40]), kind, 1e6)
    assert penalty.isfinite().all()
    assert (torch.tensor([-torch.inf, -torch.inf]) / penalty == -torch.inf).all()

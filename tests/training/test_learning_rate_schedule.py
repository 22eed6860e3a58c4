from __future__ import annotations

from itertools import pairwise

import pytest

from saccade.training.learning_rate_schedule import learning_rate, noam_peak


@pytest.mark.parametrize("step", [1, 100, 3999, 4000, 4001, 100_000])
def test_inverse_sqrt_is_equation_3_of_the_paper(step):
    width, warmup = 512, 4000
    expected = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    peak = noam_peak(width, warmup)
    found = learning_rate(step, schedule="inverse-sqrt", peak=peak, warmup=warmup, total=None)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decays_fall_from_the_peak_towards_zero(schedule):
    rates = [learning_rate(step, schedule=schedule, peak=2.0, warmup=10, total=110) for step in range(1, 111)]
    assert rates[9] == 2.0
    assert 0.0 < rates[-1] < 0.02
    assert rates[59] == pytest.approx(1.0, rel=0.02)
    assert all(after < before for before, after in pairwise(rates[9:]))
    assert rates[:9] == pytest.approx([0.2 * step for step in range(1, 10)])


def test_constant_schedule_is_constant():
    assert learning_rate(5000, schedule="constant", peak=0.1, warmup=3, total=None) == 0.1
    assert learning_rate(1, schedule="constant", peak=0.1, warmup=0, total=None) == 0.1


def test_no_step_after_the_end_has_a_negative_rate():
    assert learning_rate(200, schedule="linear", peak=1.0, warmup=0, total=100) == 0.0

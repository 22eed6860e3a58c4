from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.sampling.mixture import find_quotas, make_mixture
from saccade.errors import SaccadeError

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=5)


class TestQuotas:
    @settings(deadline=None, max_examples=200)
    @given(sizes=SIZES, data=st.data())
    def test_quotas_sum_to_the_total_size(self, sizes: list[int], data: st.DataObject) -> None:
        weights = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=len(sizes), max_size=len(sizes)))
        quotas = find_quotas(sizes, weights)
        assert sum(quotas) == sum(sizes)
        assert min(quotas) >= 1
        shares = [sum(sizes) * weight / sum(weights) for weight in weights]
        if min(shares) >= 1:
            assert all(abs(quota - share) < 1 for quota, share in zip(quotas, shares, strict=True))

    def test_temperature_one_is_concatenation(self) -> None:
        assert find_quotas((7, 900, 20)) == (7, 900, 20)

    def test_known_shares(self) -> None:
        assert find_quotas((100, 300), (3, 1)) == (300, 100)
        assert find_quotas((100, 10_000), temperature=2) == (918, 9182)  # 10 to 100
        assert find_quotas((100, 10_000), temperature=1e9) == (5050, 5050)
        assert find_quotas((1, 1, 1), (1, 1, 1)) == (1, 1, 1)
        assert find_quotas((10, 10, 10), (1, 1e-9, 1e-9)) == (28, 1, 1)

    def test_empty_corpus_has_quota_zero(self) -> None:
        assert find_quotas((10, 0), (1, 5)) == (10, 0)
        assert find_quotas((10, 0, 20), temperature=3)[1] == 0

    def test_wrong_number_of_weights_is_an_error(self) -> None:
        with pytest.raises(SaccadeError, match=r"2 weights .* 3 corpora"):
            find_quotas((1, 2, 3), (1, 1))


class TestExamples:
    @settings(deadline=None, max_examples=100)
    @given(sizes=SIZES, seed=st.integers(0, 2**40), temperature=st.sampled_from([0.5, 1.0, 2.0, 5.0]))
    def test_every_example_is_used_before_any_repeats(self, sizes: list[int], seed: int, temperature: float) -> None:
        mixture = make_mixture(sizes, seed=seed, temperature=temperature)
        starts = np.cumsum([0, *sizes])
        times = np.zeros(sum(sizes), dtype=int)
        for epoch in range(5):
            examples = mixture.examples(np.arange(len(mixture)), epoch)
            corpus_of_example = np.searchsorted(starts, examples, side="right") - 1
            assert np.bincount(corpus_of_example, minlength=len(sizes)).tolist() == list(mixture.quotas)
            np.add.at(times, examples, 1)
            for corpus in range(len(sizes)):
                seen = times[starts[corpus] : starts[corpus + 1]]
                assert seen.max() - seen.min() <= 1

    def test_subset_of_draws_gives_the_same_examples(self) -> None:
        mixture = make_mixture((50, 7, 300), seed=3, weights=(1, 2, 3))
        whole = mixture.examples(np.arange(len(mixture)), 4)
        some = np.array([300, 0, 356, 17, 17])
        assert np.array_equal(mixture.examples(some, 4), whole[some])

    def test_single_corpus_keeps_its_order(self) -> None:
        assert make_mixture((5,), seed=1).examples(np.array([3, 1]), 9).tolist() == [3, 1]

    def test_every_pass_is_shuffled_differently(self) -> None:
        mixture = make_mixture(
            (100, 100), seed=1, weights=(3, 1)
        )  # the first corpus is used one and a half times per epoch
        first, second = (mixture.examples(np.arange(200), epoch)[:150] for epoch in (0, 1))
        passes = np.concatenate([first, second]).reshape(3, 100)
        assert all(sorted(one.tolist()) == list(range(100)) for one in passes)
        assert np.count_nonzero(passes[0] == passes[1]) < 20

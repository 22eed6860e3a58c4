from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.sampling.mixture import find_quotas, mix
from saccade.errors import SaccadeError

SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=5)


class TestQuotas:
    @settings(deadline=None, max_examples=200)
    @given(sizes=SIZES, data=st.data())
    def test_they_are_shares_of_the_whole(self, sizes: list[int], data: st.DataObject) -> None:
        weights = data.draw(st.lists(st.floats(1e-6, 1e6), min_size=len(sizes), max_size=len(sizes)))
        quotas = find_quotas(sizes, weights)
        assert sum(quotas) == sum(sizes)
        assert min(quotas) >= 1
        shares = [sum(sizes) * weight / sum(weights) for weight in weights]
        if min(shares) >= 1:
            assert all(abs(quota - share) < 1 for quota, share in zip(quotas, shares, strict=True))

    def test_a_temperature_of_one_is_concatenation(self) -> None:
        assert find_quotas((7, 900, 20)) == (7, 900, 20)

    def test_known_shares(self) -> None:
        assert find_quotas((100, 300), (3, 1)) == (300, 100)
        assert find_quotas((100, 10_000), temperature=2) == (918, 9182)  # 10 to 100
        assert find_quotas((100, 10_000), temperature=1e9) == (5050, 5050)
        assert find_quotas((1, 1, 1), (1, 1, 1)) == (1, 1, 1)
        assert find_quotas((10, 10, 10), (1, 1e-9, 1e-9)) == (28, 1, 1)

    def test_an_empty_corpus_gives_nothing(self) -> None:
        assert find_quotas((10, 0), (1, 5)) == (10, 0)
        assert find_quotas((10, 0, 20), temperature=3)[1] == 0

    def test_weights_of_other_corpora_are_refused(self) -> None:
        with pytest.raises(SaccadeError, match=r"2 weights are given for 3 corpora"):
            find_quotas((1, 2, 3), (1, 1))


class TestRows:
    @settings(deadline=None, max_examples=100)
    @given(sizes=SIZES, seed=st.integers(0, 2**40), temperature=st.sampled_from([0.5, 1.0, 2.0, 5.0]))
    def test_no_pair_comes_again_before_all_have_come(self, sizes: list[int], seed: int, temperature: float) -> None:
        mixture = mix(sizes, seed=seed, temperature=temperature)
        starts = np.cumsum([0, *sizes])
        times = np.zeros(sum(sizes), dtype=int)
        for epoch in range(5):
            rows = mixture.rows(np.arange(len(mixture)), epoch)
            owners = np.searchsorted(starts, rows, side="right") - 1
            assert np.bincount(owners, minlength=len(sizes)).tolist() == list(mixture.quotas)
            np.add.at(times, rows, 1)
            for corpus in range(len(sizes)):
                seen = times[starts[corpus] : starts[corpus + 1]]
                assert seen.max() - seen.min() <= 1

    def test_any_draw_can_be_asked_for_alone(self) -> None:
        mixture = mix((50, 7, 300), seed=3, weights=(1, 2, 3))
        whole = mixture.rows(np.arange(len(mixture)), 4)
        some = np.array([300, 0, 356, 17, 17])
        assert np.array_equal(mixture.rows(some, 4), whole[some])

    def test_one_corpus_is_gone_through_as_it_lies(self) -> None:
        assert mix((5,), seed=1).rows(np.array([3, 1]), 9).tolist() == [3, 1]

    def test_passes_are_shuffled_anew(self) -> None:
        mixture = mix((100, 100), seed=1, weights=(3, 1))  # the first corpus is gone through one and a half times
        first, second = (mixture.rows(np.arange(200), epoch)[:150] for epoch in (0, 1))
        passes = np.concatenate([first, second]).reshape(3, 100)
        assert all(sorted(one.tolist()) == list(range(100)) for one in passes)
        assert np.count_nonzero(passes[0] == passes[1]) < 20

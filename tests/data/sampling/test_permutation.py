from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data.sampling.permutation import permute

SIZES = (1, 2, 3, 4, 5, 7, 16, 17, 99, 100, 101, 1000, 4095, 4096, 4097, 2**16 + 1, 999_983)

KNOWN = (
    [2, 5, 6, 9, 7, 8, 0, 4, 1, 3],
    [4127321, 847902, 4781471, 1285049, 1943798],
    [540867820403, 835578151559, 443276020675, 426771442959, 1036509490762],
)


@pytest.mark.parametrize("size", SIZES)
def test_permutation_is_a_bijection(size: int) -> None:
    images = permute(np.arange(size), size, (7, 1))
    assert images.dtype == np.int64
    assert np.array_equal(np.sort(images), np.arange(size))


@settings(deadline=None, max_examples=200)
@given(size=st.integers(1, 500), key=st.integers(0, 2**70), variant=st.integers(0, 2**40))
def test_any_size_and_key_gives_a_bijection(size: int, key: int, variant: int) -> None:
    images = permute(np.arange(size), size, key, variants=variant)
    assert sorted(images.tolist()) == list(range(size))


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 2**50), data=st.data())
def test_subset_of_positions_gives_the_same_values(size: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    together = permute(positions, size, (3, 4))
    assert ((together >= 0) & (together < size)).all()
    alone = [int(permute(positions[index : index + 1], size, (3, 4))[0]) for index in range(len(positions))]
    assert together.tolist() == alone
    assert len(set(together.tolist())) == len(set(positions.tolist()))


def test_keys_and_variants_differ() -> None:
    positions = np.arange(1000)
    shuffles = [permute(positions, 1000, key, variants=variant) for key in (0, 1, (1, 2), (2, 1)) for variant in (0, 1)]
    for first in range(len(shuffles)):
        for second in range(first):
            assert np.count_nonzero(shuffles[first] == shuffles[second]) < 20


def test_each_position_may_have_its_own_variant() -> None:
    positions, variants = np.arange(100), np.arange(100) % 3
    mixed = permute(positions, 100, 5, variants=variants)
    for variant in range(3):
        whole = permute(positions, 100, 5, variants=variant)
        assert np.array_equal(mixed[variants == variant], whole[variants == variant])


def test_values_are_spread_evenly() -> None:
    size = 200_000
    for key in range(5):
        images = permute(np.arange(size), size, key).astype(np.float64) / size
        # 64 x 64 cells of neighboring values: chi-square with 4095 degrees of freedom stays within five deviations.
        cells = np.bincount(((images[:-1] * 64).astype(int) * 64 + (images[1:] * 64).astype(int)), minlength=4096)
        expected = (size - 1) / 4096
        assert abs(((cells - expected) ** 2).sum() / expected - 4095) < 5 * np.sqrt(2 * 4095)
        for lag in (1, 2, 447, 448, 1000):  # a bad network has correlations at the square root of the size
            assert abs(np.corrcoef(images[:-lag], images[lag:])[0, 1]) < 5 / np.sqrt(size)
        assert abs(np.corrcoef(np.arange(size), images)[0, 1]) < 5 / np.sqrt(size)


def test_all_permutations_of_three_are_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for key in range(6000):
        order = tuple(permute(np.arange(3), 3, key).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 25  # five degrees of freedom


def test_known_values_do_not_change() -> None:
    """A run resumed with a later version must see the same data order."""
    assert permute(np.arange(10), 10, (1, 0, 0)).tolist() == KNOWN[0]
    assert permute(np.arange(5), 5_000_000, (1, 0, 3)).tolist() == KNOWN[1]
    assert permute(np.arange(5), 2**40, 12345, variants=6).tolist() == KNOWN[2]


def test_empty_input() -> None:
    assert permute(np.arange(0), 0, 1).tolist() == permute(np.arange(0), 10, 1).tolist() == []

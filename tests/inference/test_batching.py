from hypothesis import given
from hypothesis import strategies as st

from saccade.inference.batching import even_batches, length_batches

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def tokens(batch, lengths):
    return len(batch) * max(lengths[row] for row in batch)


@given(lengths=LENGTHS, most=st.integers(1, 100))
def test_length_batches_keep_every_row_once_and_fit(lengths, most):
    batches = list(length_batches(lengths, most))
    assert sorted(row for batch in batches for row in batch) == [row for row, length in enumerate(lengths) if length]
    assert all(len(batch) == 1 or tokens(batch, lengths) <= most for batch in batches)


@given(lengths=LENGTHS, most=st.integers(1, 100), workers=st.integers(1, 4))
def test_even_batches_are_no_larger_and_no_more_than_a_multiple_of_the_workers(lengths, most, workers):
    plain, even = list(length_batches(lengths, most)), even_batches(lengths, most, workers)
    assert [row for batch in even for row in batch] == [row for batch in plain for row in batch]
    assert all(len(batch) == 1 or tokens(batch, lengths) <= most for batch in even)
    assert len(plain) <= len(even) <= -(-len(plain) // workers) * workers


@given(lengths=LENGTHS, most=st.integers(1, 100), workers=st.integers(1, 4))
def test_no_other_cut_into_as_many_batches_has_a_smaller_largest_one(lengths, most, workers):
    def real(batches):
        return max((sum(lengths[row] + 1 for row in batch) for batch in batches), default=0)

    even = even_batches(lengths, most, workers)
    order = [row for batch in even for row in batch]
    for limit in range(real(even)):  # greedily, so that no cut needs fewer
        batches = []
        for row in order:
            batch = [*batches[-1], row] if batches else [row]
            if batches and tokens(batch, lengths) <= most and sum(lengths[row] + 1 for row in batch) <= limit:
                batches[-1] = batch
            else:
                batches.append([row])
        assert len(batches) > -(-len(list(length_batches(lengths, most))) // workers) * workers or real(batches) > limit


def test_work_that_fills_three_batches_is_shared_evenly_by_two():
    lengths = [10] * 100  # 3.3 batches of 300 tokens: four of 250, where full ones would leave one of 100
    assert [tokens(batch, lengths) for batch in even_batches(lengths, 300, 2)] == [250] * 4

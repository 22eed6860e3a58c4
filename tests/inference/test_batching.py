from hypothesis import given
from hypothesis import strategies as st

from saccade.inference.batching import even_batches, length_batches

LENGTHS = st.lists(st.integers(0, 40), max_size=60)


def padded_tokens(batch, lengths):
    return len(batch) * max(lengths[index] for index in batch)


@given(lengths=LENGTHS, batch_tokens=st.integers(1, 100))
def test_length_batches_hold_every_index_once_and_fit(lengths, batch_tokens):
    batches = list(length_batches(lengths, batch_tokens))
    assert sorted(index for batch in batches for index in batch) == [
        index for index, length in enumerate(lengths) if length
    ]
    assert all(len(batch) == 1 or padded_tokens(batch, lengths) <= batch_tokens for batch in batches)


@given(lengths=LENGTHS, batch_tokens=st.integers(1, 100), workers=st.integers(1, 4))
def test_the_number_of_even_batches_is_the_smallest_multiple_of_the_workers(lengths, batch_tokens, workers):
    plain, even = list(length_batches(lengths, batch_tokens)), even_batches(lengths, batch_tokens, workers)
    assert [index for batch in even for index in batch] == [index for batch in plain for index in batch]
    assert all(len(batch) == 1 or padded_tokens(batch, lengths) <= batch_tokens for batch in even)
    assert len(plain) <= len(even) <= -(-len(plain) // workers) * workers


@given(lengths=LENGTHS, batch_tokens=st.integers(1, 100), workers=st.integers(1, 4))
def test_no_other_cut_has_a_smaller_largest_batch(lengths, batch_tokens, workers):
    def largest(batches):
        return max((sum(lengths[index] + 1 for index in batch) for batch in batches), default=0)

    even = even_batches(lengths, batch_tokens, workers)
    order = [index for batch in even for index in batch]
    for limit in range(largest(even)):  # a greedy cut needs the fewest batches
        batches = []
        for index in order:
            batch = [*batches[-1], index] if batches else [index]
            if (
                batches
                and padded_tokens(batch, lengths) <= batch_tokens
                and sum(lengths[index] + 1 for index in batch) <= limit
            ):
                batches[-1] = batch
            else:
                batches.append([index])
        assert (
            len(batches) > -(-len(list(length_batches(lengths, batch_tokens))) // workers) * workers
            or largest(batches) > limit
        )


def test_two_workers_share_three_full_batches_evenly():
    lengths = [10] * 100  # 3.3 batches of 300 tokens: four of 250, where full ones would leave one of 100
    assert [padded_tokens(batch, lengths) for batch in even_batches(lengths, 300, 2)] == [250] * 4

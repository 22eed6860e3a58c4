from __future__ import annotations

from saccade.evaluation.length_buckets import Bucket, length_buckets, long_sentences


def sentences(*lengths: int) -> list[str]:
    return [" ".join(["word"] * length) for length in lengths]


def indices_by_name(buckets: list[Bucket]) -> dict[str, tuple[int, ...]]:
    return {str(bucket): bucket.indices for bucket in buckets}


def test_an_edge_belongs_to_the_bucket_of_shorter_sentences() -> None:
    found = length_buckets(sentences(1, 10, 11, 15, 16, 20, 21, 25, 26, 30, 31, 61), minimum=1)
    assert indices_by_name(found) == {
        "1–10": (0, 1),
        "11–15": (2, 3),
        "16–20": (4, 5),
        "21–25": (6, 7),
        "26–30": (8, 9),
        "31–40": (10,),
        "41+": (11,),
    }


def test_neighbors_are_merged_until_each_has_the_minimum() -> None:
    # 1-10: one, merged with 11-15; 16-20: two. 21-25: two; 26-30: one, merged with 31-40.
    found = length_buckets(sentences(12, 3, 18, 14, 22, 23, 40, 16, 27), minimum=2)
    assert indices_by_name(found) == {"1–15": (0, 1, 3), "16–20": (2, 7), "21–25": (4, 5), "26+": (6, 8)}


def test_a_remainder_is_merged_into_the_last_bucket() -> None:
    found = length_buckets(sentences(*[5] * 3, *[12] * 3, 17), minimum=3)
    assert indices_by_name(found) == {"1–10": (0, 1, 2), "11–20": (3, 4, 5, 6)}


def test_long_and_short_sentences_are_not_merged() -> None:
    found = length_buckets(sentences(20, 21))
    assert indices_by_name(found) == {"1–20": (0,), "21+": (1,)}


def test_every_sentence_is_in_one_bucket_and_empty_lines_are_short() -> None:
    lengths = [*range(80)] * 3
    found = length_buckets(sentences(*lengths))
    assert sorted(index for bucket in found for index in bucket.indices) == list(range(len(lengths)))
    assert all(len(bucket.indices) >= 30 for bucket in found)
    assert 0 in found[0].indices
    assert any(bucket.low == 21 for bucket in found)


def test_long_sentences_have_more_than_twenty_words() -> None:
    assert long_sentences(sentences(20, 21, 3, 50)) == [1, 3]
    assert length_buckets([]) == []

from __future__ import annotations

from saccade.evaluation.length_buckets import Bucket, length_buckets, long_rows


def sentences(*lengths: int) -> list[str]:
    return [" ".join(["word"] * length) for length in lengths]


def described(buckets: list[Bucket]) -> dict[str, tuple[int, ...]]:
    return {str(bucket): bucket.rows for bucket in buckets}


def test_sentences_fall_on_the_right_side_of_every_edge() -> None:
    found = length_buckets(sentences(1, 10, 11, 15, 16, 20, 21, 25, 26, 30, 31, 61), minimum=1)
    assert described(found) == {
        "1–10": (0, 1),
        "11–15": (2, 3),
        "16–20": (4, 5),
        "21–25": (6, 7),
        "26–30": (8, 9),
        "31–40": (10,),
        "41+": (11,),
    }


def test_neighbors_are_merged_until_each_has_enough() -> None:
    # 1-10: one, so 11-15 joins it; 16-20: two. 21-25: two; 26-30: one, so 31-40 joins it.
    found = length_buckets(sentences(12, 3, 18, 14, 22, 23, 40, 16, 27), minimum=2)
    assert described(found) == {"1–15": (0, 1, 3), "16–20": (2, 7), "21–25": (4, 5), "26+": (6, 8)}


def test_what_is_left_over_joins_the_last_bucket() -> None:
    found = length_buckets(sentences(*[5] * 3, *[12] * 3, 17), minimum=3)
    assert described(found) == {"1–10": (0, 1, 2), "11–20": (3, 4, 5, 6)}


def test_long_and_short_sentences_are_not_merged() -> None:
    found = length_buckets(sentences(20, 21))
    assert described(found) == {"1–20": (0,), "21+": (1,)}


def test_every_sentence_is_in_one_bucket_and_empty_lines_are_short() -> None:
    lengths = [*range(80)] * 3
    found = length_buckets(sentences(*lengths))
    assert sorted(row for bucket in found for row in bucket.rows) == list(range(len(lengths)))
    assert all(len(bucket.rows) >= 30 for bucket in found)
    assert 0 in found[0].rows
    assert any(bucket.low == 21 for bucket in found)


def test_long_sentences_have_more_than_twenty_words() -> None:
    assert long_rows(sentences(20, 21, 3, 50)) == [1, 3]
    assert length_buckets([]) == []

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generated_corpus import corpus_of, sentence_lengths
from saccade.data.cache.corpus import Corpus
from saccade.data.cache.corpus_files import ARRAYS, META, CorpusWriter, open_corpus
from saccade.data.cache.length_filters import DroppedPairs
from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import collate
from saccade.errors import SaccadeError

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=60)


def stored(folder: Path, corpus: Corpus, *, chunks: int = 3, vocabulary: int = 2000) -> Corpus:
    """Write a corpus in chunks and memory-map it."""
    folder.mkdir(parents=True, exist_ok=True)
    with CorpusWriter(folder, source_vocabulary=vocabulary, target_vocabulary=vocabulary) as writer:
        for examples in np.array_split(np.arange(len(corpus)), chunks):
            writer.append(
                np.concatenate([np.empty(0, np.int32), *(corpus.source(index) for index in examples)]),
                corpus.source_lengths(examples),
                np.concatenate([np.empty(0, np.int32), *(corpus.target(index) for index in examples)]),
                corpus.target_lengths(examples),
            )
        writer.finish(corpus.parts, DroppedPairs(max_length=9, seen=7, empty=2))
    return open_corpus(folder)


@settings(deadline=None, max_examples=50)
@given(lengths=LENGTHS, chunks=st.integers(1, 4), data=st.data())
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int]], chunks: int, data: st.DataObject
) -> None:
    corpus = corpus_of(lengths)
    mapped = stored(tmp_path_factory.mktemp("store"), corpus, chunks=chunks)
    assert (len(mapped), mapped.parts, mapped.statistics) == (len(corpus), corpus.parts, corpus.statistics)
    assert mapped.dropped == DroppedPairs(max_length=9, seen=7, empty=2)
    for index in range(len(corpus)):
        assert mapped.source(index).tolist() == corpus.source(index).tolist()
        assert mapped.target(index).tolist() == corpus.target(index).tolist()
    if lengths:
        examples = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=500)))
        assert mapped.longer_lengths(examples).tolist() == corpus.longer_lengths(examples).tolist()
        first, second = collate(mapped, examples), collate(corpus, examples)
        assert first.target.tolist() == second.target.tolist()
        assert first.prefix.tolist() == second.prefix.tolist()
        assert first.source_tokens == second.source_tokens


@pytest.mark.parametrize(("vocabulary", "kind"), [(8000, "<u2"), (65_536, "<u2"), (65_537, "<i4")])
def test_id_dtype_depends_on_the_vocabulary_size(tmp_path: Path, vocabulary: int, kind: str) -> None:
    mapped = stored(tmp_path, corpus_of([(3, 4)]), vocabulary=vocabulary)
    assert mapped.source_ids.dtype == mapped.target_ids.dtype == np.dtype(kind)
    assert not mapped.source_ids.flags.writeable


def test_batches_equal_those_of_the_corpus_in_memory(tmp_path: Path) -> None:
    corpus = corpus_of(sentence_lengths(3000))
    samplers = [BatchSampler(given, batch_tokens=512, seed=1) for given in (corpus, stored(tmp_path, corpus))]
    first, second = (
        [planned.indices.tolist() for planned in sampler.rest_of_epoch(EpochPosition(2))] for sampler in samplers
    )
    assert first == second
    assert samplers[0].padding == samplers[1].padding


@pytest.mark.parametrize("name", ARRAYS)
def test_truncated_array_is_an_error(tmp_path: Path, name: str) -> None:
    stored(tmp_path, corpus_of(sentence_lengths(100)))
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-8])
    with pytest.raises(SaccadeError, match=f"{name}: .* bytes"):
        open_corpus(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99"),
        ({"parts": [99]}, "another number of pairs"),
        ({"statistics": {"pears": 1}}, "invalid content"),
        ({"arrays": {}}, "invalid content"),
    ],
)
def test_invalid_description_is_an_error(tmp_path: Path, change: dict[str, object], message: str) -> None:
    stored(tmp_path, corpus_of(sentence_lengths(100)))
    (tmp_path / META).write_text(json.dumps(json.loads((tmp_path / META).read_text()) | change))
    with pytest.raises(SaccadeError, match=message):
        open_corpus(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/smaps")
def test_reading_batches_leaves_no_resident_pages(tmp_path: Path) -> None:
    """The arrays take 92 MB; reading random examples leaves none of their pages resident."""
    pairs = 1_000_000
    lengths = np.full(pairs // 10, 19)
    ids = np.full(lengths.sum(), 5, dtype=np.uint16)
    with CorpusWriter(tmp_path, source_vocabulary=100, target_vocabulary=100) as writer:
        for _ in range(10):
            writer.append(ids, lengths, ids, lengths)
        writer.finish((pairs,), DroppedPairs())
    corpus = open_corpus(tmp_path)
    sampler = BatchSampler(corpus, batch_tokens=16384, seed=1)
    for planned in itertools.islice(sampler.rest_of_epoch(EpochPosition()), 20):
        assert collate(corpus, planned.indices).target_tokens == 19 * len(planned.indices)
    assert resident(tmp_path) == 0
    assert corpus.source_ids.sum() == 19 * 5 * pairs
    assert resident(tmp_path) == pytest.approx(38_000, rel=0.1)
    corpus.release()
    assert resident(tmp_path) == 0
    assert corpus.source(pairs - 1).tolist() == [5] * 19


def resident(folder: Path) -> int:
    """Return the resident kilobytes of the mapped files of a folder in this process."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0]:
            ours = line.endswith(tuple(str(folder / array) for array in ARRAYS))
        elif name == "Rss" and ours:
            total += int(value.split()[0])
    return total

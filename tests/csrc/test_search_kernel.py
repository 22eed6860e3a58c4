"""The search of many sentences in one call at every level of instructions, against that in Python without kernels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from contracts.registered_models import build_model
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import IMPOSSIBLE
from saccade.decoding.native import WIDEST
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Source, VocabularySizes
from saccade.ops.dispatch import without_kernels
from saccade.plans.quantization import quantize_model
from saccade.symbols import Symbols

SYMBOLS = Symbols()
SIZES = VocabularySizes(150, 150, joint=True)
SHAPES = [
    {"width": 64, "feed_forward": 128, "heads": 1},
    {"width": 64, "feed_forward": 128, "heads": 4},
    {"width": 96, "feed_forward": 70, "heads": 3},
    {"width": 20, "feed_forward": 43, "heads": 4},
]


def source_of(count):
    values = torch.randint(4, 150, (count, 7), generator=torch.Generator().manual_seed(0))
    lengths = torch.arange(count) % 7 + 1
    return Source(values, torch.arange(7) < lengths[:, None])


def memory_of(model, count):
    return model.encode(source_of(count))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("beam", "min_length", "max_length"), [(1, 0, 9), (4, 0, 9), (1, 33, 40), (3, 33, 36)])
@pytest.mark.parametrize("given", ["memory", "source"])
@torch.no_grad()
def test_what_it_finds(given, beam, min_length, max_length, shape, threads):
    model = build_model(("transformer", {**shape, "norm": "pre"}), SIZES).eval()
    model.output.table.mul_(4.0)
    config = DecodingConfig(beam=beam, nbest=beam, min_length=min_length, max_length=max_length)
    count, before = 2 if threads == 3 else 40, torch.get_num_threads()
    source = source_of(count)
    with without_kernels():
        memory = model.encode(source)
    torch.set_num_threads(threads)
    try:
        if given == "memory":
            found = search(model, SearchRequest(memory, config, SYMBOLS))
        else:
            assert model.native(source) is not None
            found = search(model, SearchRequest(source, config, SYMBOLS))
    finally:
        torch.set_num_threads(before)
    with without_kernels():
        expected = search(model, SearchRequest(memory, config, SYMBOLS))
    assert [[each.tokens for each in some] for some in found] == [[each.tokens for each in some] for some in expected]
    scores = [[each.score for some in of for each in some] for of in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.parametrize("precision", ["floats", "bytes"])
@pytest.mark.parametrize("beam", [1, 5, 13])  # 13: by weights that are turned round
@torch.no_grad()
def test_products_that_threads_share_have_the_same_bits(beam, precision, level):
    """A sentence alone has no neighbours for the other threads."""
    wide = {"width": 512, "feed_forward": 520, "heads": 4, "norm": "pre"}
    model = build_model(("transformer", wide), VocabularySizes(1100, 1100, joint=True)).eval()
    if precision == "bytes" and (level == "v1" or not quantize_model(model)):
        pytest.skip("this level has no products of bytes")
    model.settle()  # with its output layer in bytes for greedy search
    config, source = DecodingConfig(beam=beam, nbest=beam, max_length=8), source_of(1)
    assert model.native(source) is not None
    assert beam <= WIDEST
    found, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            scored = search(model, SearchRequest(source, config, SYMBOLS))
            quickly = search(model, SearchRequest(source, config, SYMBOLS, scores=False))
        finally:
            torch.set_num_threads(before)
        found.append((scored, [each.tokens for each in quickly[0]]))
    assert len(found[0][0][0]) == beam
    assert found[1] == found[0]
    assert found[2] == found[0]


@torch.no_grad()
def test_several_searches_at_once():
    wide = {"width": 512, "feed_forward": 520, "heads": 4, "norm": "pre"}
    model, before = build_model(("transformer", wide), SIZES).eval(), torch.get_num_threads()
    config, sources = DecodingConfig(beam=3, max_length=8), [source_of(count) for count in (1, 1, 2, 1, 9, 1, 1)]

    @torch.no_grad()
    def searched(source):
        torch.set_num_threads(2)
        return search(model, SearchRequest(source, config, SYMBOLS))

    try:
        expected = [searched(source) for source in sources]
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(searched, sources)) == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_what_is_no_number_ends_its_own_sentence(beam):
    model = build_model(("transformer", {**SHAPES[1], "norm": "pre"}), SIZES).eval()
    memory, config = memory_of(model, 40), DecodingConfig(beam=beam, max_length=6)
    expected = search(model, SearchRequest(memory, config, SYMBOLS))
    memory.states[5] = torch.nan
    with without_kernels():
        assert search(model, SearchRequest(memory, config, SYMBOLS))[5] == [IMPOSSIBLE]
    for scores in (True, False):
        found = search(model, SearchRequest(memory, config, SYMBOLS, scores=scores))
        assert found[5] == [IMPOSSIBLE]
        assert [some[0].tokens for some in found[:5]] == [some[0].tokens for some in expected[:5]]
        assert [some[0].tokens for some in found[6:]] == [some[0].tokens for some in expected[6:]]


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_a_token_that_is_no_number_ends_its_own_sentence(beam):
    model = build_model(("transformer", {**SHAPES[1], "norm": "pre", "embeddings": "separate"}), SIZES).eval()
    source, config = source_of(40), DecodingConfig(beam=beam, max_length=6)
    source.values[source.values == 149] = 148
    expected = search(model, SearchRequest(source, config, SYMBOLS))
    source.values[5, 0] = 149
    model.source_embedding.table[149] = torch.nan
    for scores in (True, False):
        found = search(model, SearchRequest(source, config, SYMBOLS, scores=scores))
        assert found[5] == [IMPOSSIBLE]
        assert [some[0].tokens for some in found[:5]] == [some[0].tokens for some in expected[:5]]
        assert [some[0].tokens for some in found[6:]] == [some[0].tokens for some in expected[6:]]

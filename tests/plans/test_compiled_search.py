from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.registered_models import build_model
from saccade.csrc.library import library
from saccade.decoding import native
from saccade.decoding.config import DecodingConfig
from saccade.decoding.constraints import constraints_of
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.native import native_decoder_for
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Memory, Source, VocabularySizes
from saccade.models.transformer import Transformer
from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import int8_available
from saccade.plans.quantization import quantize_model
from saccade.symbols import Symbols

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler has built the kernels")

SYMBOLS = Symbols()
SIZES = VocabularySizes(23, 23, joint=True)
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"norm": "pre", "positions": "learned", "max_positions": 12},
    {"positions": "none", "tie_output": False},
    {"norm": "pre", "width": 24, "heads": 3, "feed_forward": 10},
]


def sharp_model(changes: dict[str, Any], seed: int = 0) -> Transformer:
    """An untrained model that has opinions."""
    model = build_model(("transformer", changes), SIZES, seed).eval()
    with torch.no_grad():
        model.output.table.mul_(6.0)
    return model


def source_of(rows: list[list[int]]) -> Source:
    longest = max(map(len, rows))
    values = torch.tensor([[*row, *[SYMBOLS.pad] * (longest - len(row))] for row in rows])
    return Source(values, values != SYMBOLS.pad)


def memory_of(model: Transformer, rows: list[list[int]]) -> Memory:
    with torch.inference_mode():
        return model.encode(source_of(rows))


def both(model: Transformer, memory: Memory, config: DecodingConfig) -> tuple[list[list[Hypothesis]], ...]:
    """By the search in C, and by that in Python."""
    with pytest.MonkeyPatch.context() as patch:
        found = search(model, SearchRequest(memory, config, SYMBOLS))
        patch.setattr(native, "WIDEST", 0)
        with without_kernels():  # its steps share none of the code either
            return found, search(model, SearchRequest(memory, config, SYMBOLS))


def tokens_of(found: list[list[Hypothesis]]) -> list[list[tuple[int, ...]]]:
    return [[each.tokens for each in some] for some in found]


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for some, others in zip(found, expected, strict=True):
        assert [(each.tokens, each.finished) for each in some] == [(each.tokens, each.finished) for each in others]
        for one, other in zip(some, others, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-4)
            assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, abs=1e-4)


@given(
    changes=st.sampled_from(VARIANTS),
    seed=st.integers(0, 5),
    beam=st.integers(1, 8),
    nbest=st.integers(1, 8),
    max_length=st.integers(1, 12),
    min_length=st.integers(0, 6),
    allow_unknown=st.booleans(),
    penalty=st.sampled_from(["plain", "gnmt", "none"]),
)
@settings(max_examples=150, deadline=None)
def test_the_search_in_c_is_that_in_python(changes, seed, beam, nbest, max_length, min_length, allow_unknown, penalty):
    config = DecodingConfig(
        beam=beam,
        nbest=min(nbest, beam),
        max_length=max(max_length, min_length + 1),
        min_length=min_length,
        allow_unknown=allow_unknown,
        length_penalty=penalty,
    )
    model = sharp_model(changes, seed)
    assert_same(*both(model, memory_of(model, [[4, 9, 5, 2], [7, 2], [20, 21, 22, 8, 4, 2]]), config))


def test_limits_are_those_of_each_sentence():
    model = sharp_model({"norm": "pre"})
    config = DecodingConfig(beam=4, nbest=4, max_length_factor=1.5, max_length_offset=1)
    found, expected = both(model, memory_of(model, [[4, 9, 5, 2], [7, 2], [20, 21, 22, 8, 4, 9, 9, 2]]), config)
    assert_same(found, expected)
    assert len({max(len(each.token_log_probabilities) for each in some) for some in found}) > 1


def test_an_impossible_output_is_said_to_be_one():
    model = sharp_model({"norm": "pre"})
    with torch.no_grad():
        model.output.table.zero_()
        model.output.table[SYMBOLS.pad] = torch.inf
    for beam in (1, 3):
        found, expected = both(model, memory_of(model, [[4, 2]]), DecodingConfig(beam=beam, max_length=3))
        assert [[each.tokens for each in some] for some in found] == [
            [each.tokens for each in some] for some in expected
        ]


def sentences(count: int, seed: int = 0) -> list[list[int]]:
    """Sources of 1 to 9 tokens in any order."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 9, (count,), generator=generator).tolist()
    return [[*torch.randint(4, 23, (length,), generator=generator).tolist(), SYMBOLS.end] for length in lengths]


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("changes", VARIANTS[1:3], ids=str)
@pytest.mark.parametrize(("beam", "min_length"), [(1, 0), (1, 3), (5, 0), (16, 3)])
def test_the_next_sentence_takes_the_place_of_one_that_ends(beam, min_length, changes):
    config = DecodingConfig(
        beam=beam, nbest=min(2, beam), max_length_factor=1.0, max_length_offset=3, min_length=min_length
    )
    model = sharp_model(changes, seed=4)
    found, expected = both(model, memory_of(model, sentences(300)), config)  # more than are searched together
    assert_same(found, expected)
    assert len({len(some[0].tokens) for some in found}) > 2


def test_many_sentences_find_what_each_finds_alone():
    model = sharp_model({"norm": "pre", "width": 24, "heads": 3, "feed_forward": 10})
    config, sources = DecodingConfig(beam=4, nbest=4, max_length=12), sentences(70)
    together = search(model, SearchRequest(memory_of(model, sources), config, SYMBOLS))
    assert_same(
        together, [search(model, SearchRequest(memory_of(model, [one]), config, SYMBOLS))[0] for one in sources]
    )


@pytest.mark.parametrize("count", [5, 300])  # 5: too few to make a table in bytes for
def test_without_scores_the_tokens_are_the_same(count):
    model = sharp_model({"norm": "pre"})
    memory = memory_of(model, sentences(count))
    for config in (DecodingConfig(beam=1, max_length=9), DecodingConfig(beam=1, max_length=9, min_length=4)):
        found = search(model, SearchRequest(memory, config, SYMBOLS, scores=False))
        assert tokens_of(found) == tokens_of(search(model, SearchRequest(memory, config, SYMBOLS)))
        assert [some[0].finished for some in found] == [len(some[0].tokens) < 9 for some in found]
        assert {math.isnan(some[0].score) for some in found} == {count == 300}


@pytest.mark.skipif(not int8_available(), reason="no products of bytes on this processor")
@pytest.mark.parametrize(("beam", "scores"), [(1, False), (1, True), (3, True)])
def test_by_bytes_neighbours_change_nothing(beam, scores):
    model = sharp_model({"norm": "pre"})
    assert quantize_model(model)
    config, sources = DecodingConfig(beam=beam, max_length=9), sentences(200)
    together = search(model, SearchRequest(memory_of(model, sources), config, SYMBOLS, scores=scores))
    alone = [
        search(model, SearchRequest(memory_of(model, [one]), config, SYMBOLS, scores=scores))[0] for one in sources
    ]
    assert tokens_of(together) == tokens_of(alone)
    if scores:
        assert together == alone


@pytest.mark.usefixtures("threads")
def test_threads_change_nothing():
    model = build_model(
        ("transformer", {"norm": "pre", "width": 64, "heads": 2}), VocabularySizes(9000, 9000, joint=True)
    )
    assert_same(*both(model.eval(), memory_of(model, [[4, 9, 5, 2]]), DecodingConfig(beam=5, nbest=5, max_length=6)))


@pytest.fixture
def only_in_c(monkeypatch):
    """Whatever is not searched from its source in one call is an error."""
    monkeypatch.setattr(Transformer, "encode", None)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize(("beam", "count"), [(1, 1), (1, 3), (1, 300), (4, 1), (4, 40)])
def test_sources_are_encoded_by_the_search(beam, count, changes, only_in_c, request):
    config = DecodingConfig(beam=beam, nbest=min(2, beam), max_length_factor=1.0, max_length_offset=3)
    model, rows = sharp_model(changes, seed=4), sentences(count, seed=count)
    found = search(model, SearchRequest(source_of(rows), config, SYMBOLS))
    request.getfixturevalue("monkeypatch").undo()
    with without_kernels():
        assert_same(found, search(model, SearchRequest(memory_of(model, rows), config, SYMBOLS)))


@pytest.mark.skipif(not int8_available(), reason="no products of bytes on this processor")
@pytest.mark.usefixtures("only_in_c", "threads")
@pytest.mark.parametrize(("beam", "scores"), [(1, False), (1, True), (3, True)])
def test_by_bytes_neighbours_change_nothing_from_the_source_on(beam, scores):
    model = sharp_model({"norm": "pre"})
    assert quantize_model(model)
    config, rows = DecodingConfig(beam=beam, max_length=9), sentences(200)
    together = search(model, SearchRequest(source_of(rows), config, SYMBOLS, scores=scores))
    alone = [search(model, SearchRequest(source_of([one]), config, SYMBOLS, scores=scores))[0] for one in rows]
    assert tokens_of(together) == tokens_of(alone)
    if scores:
        assert together == alone


def test_sources_with_holes_and_without_anything():
    model, config = sharp_model({"norm": "pre"}), DecodingConfig(beam=2, max_length=6)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    source = Source(torch.randint(4, 9, (3, 6), generator=torch.Generator().manual_seed(1)), mask)
    found = search(model, SearchRequest(source, config, SYMBOLS))
    with torch.inference_mode():
        assert model.native(source) is not None
        assert_same(found, search(model, SearchRequest(model.encode(source), config, SYMBOLS)))
    assert search(model, SearchRequest(Source(source.values[:0], mask[:0]), config, SYMBOLS)) == []


def test_ids_of_32_bits_are_read_as_they_are():
    model, config, source = sharp_model({"norm": "pre"}), DecodingConfig(beam=2, max_length=6), source_of(sentences(9))
    narrow = Source(source.values.int(), source.mask)
    assert search(model, SearchRequest(narrow, config, SYMBOLS)) == search(
        model, SearchRequest(source, config, SYMBOLS)
    )


@torch.inference_mode()
def test_embeddings_that_drop_units_are_left_to_the_layers():
    model, source = sharp_model({"dropout": 0.5}), source_of(sentences(9))
    assert model.native(source) is not None
    model.source_embedding.train()
    assert model.native(source) is None


@pytest.mark.parametrize("token", [-1, 23])
def test_a_token_that_there_is_not_is_refused(token):
    source = Source(torch.tensor([[4, token, 2]]), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(IndexError, match="23"):
        search(sharp_model({}), SearchRequest(source, DecodingConfig(max_length=4), SYMBOLS))


@torch.no_grad()
def test_what_it_cannot_do_is_left_to_python():
    model = sharp_model({})
    memory = memory_of(model, [[4, 2]] * 5)

    def used(model: Transformer, rows: int = 1, **changes: Any) -> bool:
        own = Memory(memory.states[:rows], memory.mask[:rows])
        config = DecodingConfig(**{"beam": 3, "max_length": 4, **changes})
        prefixes = [[5]] * rows if changes.get("min_length") == 1 else None
        return native_decoder_for(model, own, constraints_of(own.mask, config, SYMBOLS, prefixes), config) is not None

    assert used(model)
    assert used(model, 5)
    assert not used(model, beam=17)
    assert not used(model, coverage_beta=0.2)
    assert not used(model, sample=True, beam=1)
    assert not used(model, min_length=1)  # with prefixes
    assert not used(sharp_model({"position_use": "concatenate", "position_width": 4}))
    with without_kernels():
        assert not used(model)
    with torch.enable_grad():
        assert not used(model)
    assert not used(model.train())

"""Searches in one kernel call, compared with the Python searches on PyTorch references."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plans.transformers import (
    SIZES,
    assert_equal_hypotheses,
    compiled_search,
    python_search,
    request_of,
    sentences,
    sharp_model,
    source_of,
    tokens_of,
)
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import IMPOSSIBLE
from saccade.decoding.search import search
from saccade.interface import Memory, Source, VocabularySizes
from saccade.models.transformer import Transformer
from saccade.ops.dispatch import without_kernels
from saccade.ops.int8_linear import int8_available
from saccade.plans.compiled_search import MAX_BEAM, MAX_OUTPUT_LENGTH
from saccade.plans.transformer_plan import TransformerPlan

pytestmark = pytest.mark.usefixtures("one_thread", "kernel_level", "inference")

VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre"},
    {"norm": "pre", "positions": "learned", "max_positions": 12},
    {"positions": "none", "tie_output": False},
    {"norm": "pre", "width": 24, "heads": 3, "feed_forward": 10},
]
SHAPES = [
    {"width": 64, "feed_forward": 128, "heads": 1},
    {"width": 64, "feed_forward": 128, "heads": 4},
    {"width": 96, "feed_forward": 70, "heads": 3},
    {"width": 20, "feed_forward": 43, "heads": 4},
]
WIDE = {"width": 512, "feed_forward": 520, "heads": 4, "norm": "pre"}
SOURCES = [[4, 9, 5, 2], [7, 2], [20, 21, 22, 8, 4, 2]]


@pytest.fixture
def inference():
    """Plans compile under inference mode too, where weights have no version."""
    with torch.no_grad():
        yield


def memory_of(model: Transformer, source: Source) -> Memory:
    with without_kernels():
        return model.encode(source)


@given(
    changes=st.sampled_from(VARIANTS),
    seed=st.integers(0, 5),
    beam=st.integers(1, 8),
    nbest=st.integers(1, 8),
    max_length=st.integers(1, 12),
    min_length=st.integers(0, 6),
    allow_unknown=st.booleans(),
    penalty=st.sampled_from(["plain", "gnmt", "none"]),
    encoded=st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_compiled_search_equals_the_python_search(
    changes, seed, beam, nbest, max_length, min_length, allow_unknown, penalty, encoded
):
    config = DecodingConfig(
        beam=beam,
        nbest=min(nbest, beam),
        max_length=max(max_length, min_length + 1),
        min_length=min_length,
        allow_unknown=allow_unknown,
        length_penalty=penalty,
    )
    model, source = sharp_model(changes, seed), source_of(SOURCES)
    given = memory_of(model, source) if encoded else source
    found = compiled_search(TransformerPlan(model), request_of(given, config))
    assert_equal_hypotheses(found, python_search(model, source, config))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("beam", "min_length", "max_length"), [(1, 0, 9), (4, 0, 9), (1, 33, 40), (3, 33, 36)])
@pytest.mark.parametrize("encoded", [True, False])
def test_model_shapes_and_thread_counts(encoded, beam, min_length, max_length, shape):
    model = sharp_model({**shape, "norm": "pre"}, sizes=VocabularySizes(150, 150, joint=True))
    config = DecodingConfig(beam=beam, nbest=beam, min_length=min_length, max_length=max_length)
    source = source_of(sentences(2 if torch.get_num_threads() == 3 else 20))
    given = memory_of(model, source) if encoded else source
    found = compiled_search(TransformerPlan(model), request_of(given, config))
    assert_equal_hypotheses(found, python_search(model, source, config))


def test_search_uses_the_plan(monkeypatch):
    model, source = sharp_model({"norm": "pre"}), source_of(SOURCES)
    expected = {beam: python_search(model, source, DecodingConfig(beam=beam, max_length=6)) for beam in (1, 3)}
    plan = TransformerPlan(model)
    for method in ("encode", "start", "step", "logits"):
        monkeypatch.setattr(Transformer, method, None)
        monkeypatch.setattr(TransformerPlan, method, None)
    for beam in (1, 3):
        assert_equal_hypotheses(
            search(plan, request_of(source, DecodingConfig(beam=beam, max_length=6))), expected[beam]
        )


def test_each_sentence_has_its_own_length_limit():
    model, source = sharp_model({"norm": "pre"}), source_of([*SOURCES[:2], [20, 21, 22, 8, 4, 9, 9, 2]])
    config = DecodingConfig(beam=4, nbest=4, max_length_factor=1.5, max_length_offset=1)
    found = compiled_search(TransformerPlan(model), request_of(source, config))
    assert_equal_hypotheses(found, python_search(model, source, config))
    assert len({max(len(each.token_log_probabilities) for each in hypotheses) for hypotheses in found}) > 1


@pytest.mark.parametrize("beam", [1, 3])
def test_an_impossible_output(beam):
    model, source = sharp_model({"norm": "pre", "tie_output": False}), source_of([[4, 2]])
    model.output.table.zero_()
    model.output.table[0] = torch.inf  # the logit of padding is infinite or NaN, and no token has a probability
    config = DecodingConfig(beam=beam, max_length=3)
    assert compiled_search(TransformerPlan(model), request_of(source, config)) == [[IMPOSSIBLE]]
    assert python_search(model, source, config) == [[IMPOSSIBLE]]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("changes", VARIANTS[1:3], ids=str)
@pytest.mark.parametrize(("beam", "min_length"), [(1, 0), (1, 3), (5, 0), (MAX_BEAM, 3)])
def test_the_next_sentence_takes_the_slot_of_one_that_ends(beam, min_length, changes):
    config = DecodingConfig(
        beam=beam, nbest=min(2, beam), max_length_factor=1.0, max_length_offset=3, min_length=min_length
    )
    model, source = sharp_model(changes, seed=4), source_of(sentences(200))  # more sentences than slots
    found = compiled_search(TransformerPlan(model), request_of(memory_of(model, source), config))
    assert_equal_hypotheses(found, python_search(model, source, config))
    assert len({len(hypotheses[0].tokens) for hypotheses in found}) > 2


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize(("beam", "count"), [(1, 1), (1, 3), (1, 200), (4, 1), (4, 40)])
def test_the_search_encodes_sources(beam, count, changes):
    config = DecodingConfig(beam=beam, nbest=min(2, beam), max_length_factor=1.0, max_length_offset=3)
    model, source = sharp_model(changes, seed=4), source_of(sentences(count, seed=count))
    found = compiled_search(TransformerPlan(model), request_of(source, config))
    assert_equal_hypotheses(found, python_search(model, source, config))


def test_batched_search_equals_searching_each_sentence_alone():
    plan = TransformerPlan(sharp_model({"norm": "pre", "width": 24, "heads": 3, "feed_forward": 10}))
    config, sources = DecodingConfig(beam=4, nbest=4, max_length=12), sentences(70)
    together = compiled_search(plan, request_of(source_of(sources), config))
    alone = [compiled_search(plan, request_of(source_of([one]), config))[0] for one in sources]
    assert_equal_hypotheses(together, alone)


@pytest.mark.parametrize("count", [5, 200])
def test_greedy_search_without_scores_finds_the_same_tokens(count):
    plan, source = TransformerPlan(sharp_model({"norm": "pre"})), source_of(sentences(count))
    for config in (DecodingConfig(beam=1, max_length=9), DecodingConfig(beam=1, max_length=9, min_length=4)):
        found = compiled_search(plan, request_of(source, config, scores=False))
        assert tokens_of(found) == tokens_of(compiled_search(plan, request_of(source, config)))
        assert [hypotheses[0].finished for hypotheses in found] == [
            len(hypotheses[0].tokens) < 9 for hypotheses in found
        ]
        assert {math.isnan(hypotheses[0].score) for hypotheses in found} == {int8_available()}


@pytest.mark.usefixtures("int8_required", "threads")
@pytest.mark.parametrize("encoded", [True, False])
@pytest.mark.parametrize(("beam", "scores"), [(1, False), (1, True), (3, True)])
def test_int8_outputs_do_not_depend_on_other_sentences(beam, scores, encoded):
    plan = TransformerPlan(sharp_model({"norm": "pre"}), quantize=True)
    config, sources = DecodingConfig(beam=beam, max_length=9), sentences(100)

    def found_for(rows):
        given = plan.encode(source_of(rows)) if encoded else source_of(rows)
        return compiled_search(plan, request_of(given, config, scores=scores))

    together, alone = found_for(sources), [found_for([one])[0] for one in sources]
    assert tokens_of(together) == tokens_of(alone)
    if scores:
        assert together == alone


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("beam", [1, 4])
def test_a_compiled_int8_search_equals_the_python_search_with_int8_steps(beam):
    plan = TransformerPlan(sharp_model({"norm": "pre"}, seed=3), quantize=True)
    config, source = DecodingConfig(beam=beam, nbest=beam, max_length=9), source_of(sentences(30))
    found = compiled_search(plan, request_of(source, config))
    expected = search(plan.compiled.model, request_of(source, config))
    equal = [one[0].tokens == other[0].tokens for one, other in zip(found, expected, strict=True)]
    assert sum(equal) >= 28  # rounding to int8 may change a token where two are nearly equal
    for same, one, other in zip(equal, found, expected, strict=True):
        assert not same or one[0].score == pytest.approx(other[0].score, abs=0.05)


@pytest.mark.usefixtures("threads")
def test_a_large_vocabulary():
    model = sharp_model({"norm": "pre", "width": 64, "heads": 2}, sizes=VocabularySizes(9000, 9000, joint=True))
    source, config = source_of(SOURCES[:1]), DecodingConfig(beam=5, nbest=5, max_length=6)
    found = compiled_search(TransformerPlan(model), request_of(source, config))
    assert_equal_hypotheses(found, python_search(model, source, config))


@pytest.mark.parametrize("quantize", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("beam", [1, 5, 13])  # 13: with block-transposed weights
def test_any_number_of_threads_gives_the_same_bits(beam, quantize, request):
    """For a sentence alone, the threads share the outputs of each product."""
    if quantize:
        request.getfixturevalue("int8_required")
    plan = TransformerPlan(sharp_model(WIDE, sizes=VocabularySizes(1100, 1100, joint=True)), quantize=quantize)
    config, source, found = DecodingConfig(beam=beam, nbest=beam, max_length=8), source_of(SOURCES[:1]), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        scored = compiled_search(plan, request_of(source, config))
        unscored = compiled_search(plan, request_of(source, config, scores=False))
        found.append((scored, tokens_of(unscored)))
    assert len(found[0][0][0]) == beam
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_concurrent_searches():
    plan = TransformerPlan(sharp_model(WIDE))
    config = DecodingConfig(beam=3, max_length=3)
    sources = [source_of(sentences(count, seed=count)) for count in (1, 1, 2, 1, 9, 1, 1)]

    def found_for(source):
        torch.set_num_threads(2)
        return compiled_search(plan, request_of(source, config))

    expected = [found_for(source) for source in sources]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(found_for, sources)) == expected


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("where", ["memory", "embedding"])
def test_nan_ends_only_its_own_sentence(where, beam):
    model = sharp_model({**SHAPES[1], "norm": "pre", "embeddings": "separate"})
    rows, config = sentences(40), DecodingConfig(beam=beam, max_length=6)
    rows = [[21 if token == 22 else token for token in row] for row in rows]
    before = compiled_search(TransformerPlan(model), request_of(source_of(rows), config))
    source = source_of(rows)
    if where == "embedding":
        source.values[5, 0] = 22
        model.source_embedding.table[22] = torch.nan
    given = memory_of(model, source) if where == "memory" else source
    if where == "memory":
        given.states[5] = torch.nan
    with without_kernels():
        assert search(model, request_of(given, config))[5] == [IMPOSSIBLE]
    plan = TransformerPlan(model)
    for scores in (True, False):
        found = compiled_search(plan, request_of(given, config, scores=scores))
        assert found[5] == [IMPOSSIBLE]
        assert [hypotheses[0].tokens for hypotheses in found[:5]] == [hypotheses[0].tokens for hypotheses in before[:5]]
        assert [hypotheses[0].tokens for hypotheses in found[6:]] == [hypotheses[0].tokens for hypotheses in before[6:]]


def test_source_masks_with_gaps_and_empty_sources():
    model, config = sharp_model({"norm": "pre"}), DecodingConfig(beam=2, max_length=6)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    source = Source(torch.randint(4, 9, (3, 6), generator=torch.Generator().manual_seed(1)), mask)
    plan = TransformerPlan(model)
    found = compiled_search(plan, request_of(source, config))
    memory = model.encode(source)
    assert_equal_hypotheses(found, compiled_search(plan, request_of(memory, config)))
    expected = python_search(model, Source(source.values[[0, 2]], mask[[0, 2]]), config)
    assert_equal_hypotheses([found[0], found[2]], expected)
    assert search(plan, request_of(Source(source.values[:0], mask[:0]), config)) == []


def test_token_ids_of_32_bits():
    plan, source = TransformerPlan(sharp_model({})), source_of(sentences(9))
    config = DecodingConfig(beam=2, max_length=6)
    narrow = compiled_search(plan, request_of(Source(source.values.int(), source.mask), config))
    assert narrow is not None
    assert narrow == compiled_search(plan, request_of(source, config))


@pytest.mark.parametrize("token", [-1, SIZES.source])
def test_a_token_outside_of_the_vocabulary_is_refused(token):
    source = Source(torch.tensor([[4, token, 2]]), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(IndexError):
        search(TransformerPlan(sharp_model({})), request_of(source, DecodingConfig(max_length=4)))


def test_a_compiled_search_does_not_support_dropout():
    model, source = sharp_model({"dropout": 0.5}), source_of(sentences(9))
    plan, request = TransformerPlan(model), request_of(source, DecodingConfig(max_length=4))
    assert compiled_search(plan, request) is not None
    model.source_embedding.train()
    assert compiled_search(plan, request) is None


def test_unsupported_requests_fall_back_to_the_python_searches():
    def used(changes: dict[str, Any] | None = None, prefixes: list[list[int]] | None = None, **config: Any) -> bool:
        plan, source = TransformerPlan(sharp_model(changes or {})), source_of([[4, 2]] * 5)
        request = request_of(source, DecodingConfig(**{"beam": 3, "max_length": 4, **config}), prefixes=prefixes)
        found = compiled_search(plan, request)
        if found is None and request.config.max_length < 9:
            assert len(search(plan, request)) == 5  # by the Python searches
        return found is not None

    assert used()
    assert used(beam=MAX_BEAM)
    assert not used(beam=MAX_BEAM + 1)
    assert used(max_length=MAX_OUTPUT_LENGTH, beam=1)
    assert not used(max_length=MAX_OUTPUT_LENGTH + 1, beam=1)
    assert not used(coverage_beta=0.2)
    assert not used(sample=True, beam=1)
    assert not used(prefixes=[[5]] * 5)
    for changes in (
        {"position_use": "concatenate", "position_width": 4},
        {"radius": 2},
        {"cross_radius": 2},
        {"experts": 4, "experts_per_token": 2},
    ):
        assert not used(changes)
    with without_kernels():
        assert not used()
    plan, request = TransformerPlan(sharp_model({})), request_of(source_of([[4, 2]]), DecodingConfig(max_length=4))
    assert compiled_search(plan, request) is not None
    plan.model.train()
    assert compiled_search(plan, request) is None

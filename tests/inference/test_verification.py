"""All checks pass for a correct model, and each check finds the bug that it is made for."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from contracts.registered_models import build_model, choice_of
from saccade import model_folder as module
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.decoding import scoring
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.inference import verification
from saccade.inference.ensemble_translator import build_ensemble
from saccade.inference.loading import translator_from
from saccade.inference.translator import Translator
from saccade.inference.verification import (
    check_batching,
    check_cached_decoding,
    check_explicit_attention,
    check_scores,
    difference,
    mixed_batches,
    tolerance_of,
    usable_examples,
    verify,
)
from saccade.interface import Source, Step, select
from saccade.model_folder import ModelFolder, load_model_folder, save_model_folder, vocabulary_sizes
from saccade.models.transformer import Transformer
from saccade.ops import kv_cache_attention, varlen_attention
from saccade.ops.dispatch import without_kernels
from saccade.plans.transformer_plan import TransformerPlan

WORDS = ["ab", "cd", "ef", "gh"]
PAIRS = [
    Pair(" ".join(WORDS[index % 4] for index in range(number, number + 1 + number % 5)), WORDS[number % 4].upper())
    for number in range(20)
]
CHECKS = ["cached = uncached", "alone = in a batch", "explicit = fused", "scorer = search", "saved = loaded"]


def make_folder(changes=None, seed: int = 0, **decoding) -> ModelFolder:
    subject = ("transformer", changes or {})
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="char"))
    model = build_model(subject, vocabulary_sizes(tokenizers), seed)
    settings = DecodingConfig(**{"beam": 3, "max_length": 8, **decoding})
    return ModelFolder(model, choice_of(subject), tokenizers, settings.model_dump())


def failed_checks(folder: ModelFolder) -> list[str]:
    """The names of the checks that fail."""
    results = list(verify(folder, PAIRS))
    assert [result.name for result in results] == CHECKS
    return [result.name for result in results if not result.passed]


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "decoder_layers": 3}, {"positions": "none"}])
@pytest.mark.parametrize(
    "decoding",
    [{}, {"beam": 1}, {"sample": True, "top_k": 3, "temperature": 0.5, "nbest": 4}, {"coverage_beta": 0.2}],
    ids=["beam", "greedy", "sampling", "coverage"],
)
def test_a_correct_model_passes_all_checks(changes, decoding):
    for result in verify(make_folder(changes, **decoding), PAIRS):
        assert result.passed, result
        assert result.largest_difference < 2e-5, "the tolerance is far above the noise"
        assert result.largest_difference <= result.tolerance
        assert result.to_json() == dataclasses.asdict(result)


@pytest.fixture
def references():
    """No kernels: encoder and `step` run on the PyTorch references, which these tests corrupt."""
    with without_kernels():
        yield


def test_a_cache_that_loses_values(monkeypatch, references):
    """The values of the first token shrink in every layer."""
    original = Transformer.step

    def step(self, token, state, memory, *, record=False):
        output, new, attention = original(self, token, state, memory, record=record)
        for layer in new:
            joined = layer.cache.joined  # (N, t, 2D)
            joined[:, 0, joined.size(2) // 2 :] *= 0.5
        return Step(output, new, attention)

    monkeypatch.setattr(Transformer, "step", step)
    assert failed_checks(make_folder()) == ["cached = uncached", "scorer = search"]


def test_a_state_that_is_not_reordered(monkeypatch, references):
    """State is kept on the module between calls, so a search that drops or reorders rows mixes sentences up."""
    start, original = Transformer.start, Transformer.step

    def start_and_keep(self, memory):
        self.kept = start(self, memory)
        return ()

    def step(self, token, state, memory, *, record=False):
        kept = [
            layer._replace(cache=layer.cache._replace(joined=layer.cache.joined[: len(token)])) for layer in self.kept
        ]
        rows = torch.arange(len(memory.mask))
        kept = [layer._replace(memory=select(layer.memory, rows)) for layer in kept]
        output, self.kept, attention = original(self, token, tuple(kept), memory, record=record)
        return Step(output, (), attention)

    monkeypatch.setattr(Transformer, "start", start_and_keep)
    monkeypatch.setattr(Transformer, "step", step)
    translator = translator_from(make_folder(beam=1))
    assert not check_cached_decoding(translator, usable_examples(translator, PAIRS)).passed


def test_attention_to_padding(monkeypatch, references):
    original = Transformer.encode

    def encode(self, source, *, record=False):
        unmasked = Source(source.values, torch.ones_like(source.mask))
        return dataclasses.replace(original(self, unmasked, record=record), mask=source.mask)

    monkeypatch.setattr(Transformer, "encode", encode)
    failed = failed_checks(make_folder())
    assert failed[0] == "alone = in a batch"
    assert set(failed[1:]) <= {"scorer = search"}  # fails too if the search has its own, correct encoder


def test_explicit_attention_with_another_scale(monkeypatch):
    original = varlen_attention.attend_padded

    def attend_padded(query, *arguments, record=False, **settings):
        return original(1.1 * query if record else query, *arguments, record=record, **settings)

    monkeypatch.setattr(varlen_attention, "attend_padded", attend_padded)
    assert failed_checks(make_folder()) == ["explicit = fused"]


def test_recorded_steps_with_another_scale(monkeypatch, references):
    """Another scale for steps only, which `decode` does not have."""
    original = kv_cache_attention.attend_one

    def attend_one(query, keys, values, mask, *, record):
        return original(1.1 * query if record else query, keys, values, mask, record=record)

    monkeypatch.setattr(kv_cache_attention, "attend_one", attend_one)
    assert failed_checks(make_folder()) == ["explicit = fused"]


def test_a_scorer_that_is_off_by_one(monkeypatch):
    original = scoring.target_log_probabilities
    monkeypatch.setattr(scoring, "target_log_probabilities", lambda logits, targets: original(logits, targets.roll(1)))
    assert failed_checks(make_folder()) == ["scorer = search"]


def test_a_save_that_flips_a_bit(monkeypatch):
    original = module.save_tensors

    def save_tensors(path, tensors):
        name = sorted(tensors)[-1]
        changed = tensors[name].clone()
        changed.view(-1)[0].view(torch.int32).bitwise_xor_(1)
        original(path, {**tensors, name: changed})

    monkeypatch.setattr(module, "save_tensors", save_tensors)
    folder = make_folder()
    assert failed_checks(folder) == ["saved = loaded"]
    *_, saved = verify(folder, PAIRS)
    assert saved.tolerance == 0
    assert "the tensor '" in saved.detail


def test_a_file_that_does_not_match_the_manifest(monkeypatch):
    def save(path, folder):
        save_model_folder(path, folder)
        (path / "generation.json").write_text("{}")

    monkeypatch.setattr(verification, "save_model_folder", save)
    folder = make_folder()
    assert failed_checks(folder) == ["saved = loaded"]
    *_, saved = verify(folder, PAIRS)
    assert "generation.json" in saved.detail
    assert saved.to_json()["largest_difference"] is None


@pytest.mark.parametrize("what", ["settings", "tokenizers"])
def test_a_load_that_changes_settings_or_tokenizers(monkeypatch, what):
    texts = [Pair(pair.source[::-1], pair.target) for pair in PAIRS[::-1]]
    other = train_tokenizers([Pair("h", "H"), *texts], DataConfig(tokenizer="char"))
    change = {"settings": {"generation": {"beam": 4}}, "tokenizers": {"tokenizers": other}}[what]

    def load(path, device):
        return dataclasses.replace(load_model_folder(path, device), **change)

    monkeypatch.setattr(verification, "load_model_folder", load)
    *_, saved = verify(make_folder(), PAIRS)
    assert not saved.passed
    assert what in saved.detail


def add_tie(monkeypatch, noise: float) -> None:
    """Make two tokens by far the best and equal up to `noise`, whose sign depends on the batch size."""
    original = Transformer.logits

    def logits(self, outputs):
        scores = original(self, outputs)
        scores[..., 5:7] = 20 + scores[..., 5:6]
        scores[..., 5] += noise if len(outputs) > 1 else -noise
        return scores

    monkeypatch.setattr(Transformer, "logits", logits)
    monkeypatch.setattr(TransformerPlan, "search", lambda self, request, constraints: None)  # it does not call `logits`


def test_ties_are_counted_and_pass(monkeypatch):
    add_tie(monkeypatch, noise=1e-5)
    translator = translator_from(make_folder(min_length=2))
    result = check_batching(translator, usable_examples(translator, PAIRS))
    assert result.passed
    assert "20 of 20 greedy" in result.detail


def test_different_greedy_outputs_without_a_tie_fail(monkeypatch):
    add_tie(monkeypatch, noise=1e-2)
    translator = translator_from(make_folder(min_length=2))
    result = check_batching(translator, usable_examples(translator, PAIRS))
    assert result.largest_difference < result.tolerance, "forced decoding passes many positions at once: no difference"
    assert not result.passed


def test_nan_is_not_equal():
    folder = make_folder()
    with torch.no_grad():
        folder.model.decoder[0].attention.output.bias[0] = math.nan
    assert failed_checks(folder) == CHECKS
    assert difference(torch.tensor([math.nan]), torch.tensor([math.nan])) == math.inf
    assert difference(torch.tensor([-math.inf, 1.0]), torch.tensor([-math.inf, 1.5])) == 0.5
    assert difference(torch.tensor([-math.inf]), torch.tensor([0.0])) == math.inf


def test_an_ensemble_passes_all_checks():
    translators = [translator_from(make_folder(changes, seed)) for seed, changes in enumerate([{}, {"norm": "pre"}])]
    ensemble = build_ensemble(translators, ["one", "two"])
    examples = usable_examples(ensemble, PAIRS)
    for check in (check_cached_decoding, check_batching, check_explicit_attention, check_scores):
        result = check(ensemble, examples)
        assert result.passed, result


def test_pairs_that_the_model_does_not_support_are_skipped():
    translator = translator_from(make_folder({"positions": "learned", "max_positions": 8}))
    pairs = [Pair("ab", "AB"), Pair("  ", "AB"), Pair("ab cd ef gh", "AB"), Pair("ab", "AB AB AB AB"), Pair("cd", "")]
    assert len(usable_examples(translator, pairs)) == 2
    assert len(usable_examples(translator, [Pair("ab cd e", "AB CD E")])) == 1, (
        "seven tokens and the end symbol are eight"
    )
    with pytest.raises(SaccadeError):
        usable_examples(translator, pairs[1:3])
    assert all(result.passed for result in verify(make_folder({"positions": "learned", "max_positions": 24}), PAIRS))


def test_every_batch_mixes_short_and_long():
    translator = translator_from(make_folder())
    examples = usable_examples(translator, PAIRS * 3)
    batches = mixed_batches(examples)
    assert sorted(index for batch in batches for index in batch) == list(range(60))
    for batch in batches:
        assert len({len(examples[index].source[0]) for index in batch}) > 3


def test_the_tolerance_depends_on_the_dtype():
    translator = translator_from(make_folder())
    exact = tolerance_of(translator.model)
    halved = Translator(translator.model.bfloat16(), translator.tokenizers, translator.decoding)
    assert tolerance_of(halved.model) > 100 * exact
    examples = usable_examples(halved, PAIRS)
    result = check_explicit_attention(halved, examples)
    assert exact < result.largest_difference <= result.tolerance

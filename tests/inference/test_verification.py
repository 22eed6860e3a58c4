"""Every equivalence holds for a sound model, and each one is caught when it is broken on purpose."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from contracts.registered_models import build_model, choice_of
from saccade import model_folder as checkpoint
from saccade.csrc.library import without_kernels
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.decoding import scoring
from saccade.decoding.config import DecodingConfig
from saccade.errors import SaccadeError
from saccade.inference import verification
from saccade.inference.loading import together, translator_from
from saccade.inference.translator import Translator
from saccade.inference.verification import (
    alone_and_in_a_batch,
    cached_and_uncached,
    difference,
    explicit_and_fused,
    mixed_batches,
    read_examples,
    scorer_and_search,
    tolerance_of,
    verify,
)
from saccade.interface import Source, Step, select
from saccade.layers import attention
from saccade.model_folder import ModelFolder, load_model_folder, save_model_folder, vocabulary_sizes
from saccade.models.transformer import Transformer

WORDS = ["ab", "cd", "ef", "gh"]
PAIRS = [
    Pair(" ".join(WORDS[place % 4] for place in range(number, number + 1 + number % 5)), WORDS[number % 4].upper())
    for number in range(20)
]
CHECKS = ["cached = uncached", "alone = in a batch", "explicit = fused", "scorer = search", "saved = loaded"]


def make_folder(changes=None, seed: int = 0, **decoding) -> ModelFolder:
    subject = ("transformer", changes or {})
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="char"))
    model = build_model(subject, vocabulary_sizes(tokenizers), seed)
    settings = DecodingConfig(**{"beam": 3, "max_length": 8, **decoding})
    return ModelFolder(model, choice_of(subject), tokenizers, settings.model_dump())


def broken(folder: ModelFolder) -> list[str]:
    """The names of the equivalences that do not hold."""
    found = list(verify(folder, PAIRS))
    assert [each.name for each in found] == CHECKS
    return [each.name for each in found if not each.passed]


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "decoder_layers": 3}, {"positions": "none"}])
@pytest.mark.parametrize(
    "decoding",
    [{}, {"beam": 1}, {"sample": True, "top_k": 3, "temperature": 0.5, "nbest": 4}, {"coverage_beta": 0.2}],
    ids=["beam", "greedy", "sampling", "coverage"],
)
def test_a_sound_model_keeps_all(changes, decoding):
    for each in verify(make_folder(changes, **decoding), PAIRS):
        assert each.passed, each
        assert each.largest_difference < 2e-5, "the tolerance stands far above the noise"
        assert each.largest_difference <= each.tolerance
        assert each.to_json() == dataclasses.asdict(each)


@pytest.fixture
def torch_alone():
    """Steps with the caches of torch's own operations, which these tests spoil."""
    with without_kernels():
        yield


def test_a_cache_that_forgets(monkeypatch, torch_alone):
    """The first token fades from the keys and values of every layer."""
    sound = Transformer.step

    def step(self, token, state, memory, *, record=False):
        output, new, looks = sound(self, token, state, memory, record=record)
        for layer in new:
            layer.past.values[:, :, 0] *= 0.5
        return Step(output, new, looks)

    monkeypatch.setattr(Transformer, "step", step)
    assert broken(make_folder()) == ["cached = uncached", "scorer = search"]


def test_a_state_that_is_not_reordered(monkeypatch, torch_alone):
    """Something stays on the module between calls, so a search that drops or moves rows mixes sentences up."""
    start, sound = Transformer.start, Transformer.step

    def begin(self, memory):
        self.kept = start(self, memory)
        return ()

    def step(self, token, state, memory, *, record=False):
        kept = [
            layer._replace(past=type(layer.past)(*(part[: len(token)] for part in layer.past))) for layer in self.kept
        ]
        rows = torch.arange(len(memory.mask))
        kept = [layer._replace(memory=select(layer.memory, rows)) for layer in kept]
        output, self.kept, looks = sound(self, token, tuple(kept), memory, record=record)
        return Step(output, (), looks)

    monkeypatch.setattr(Transformer, "start", begin)
    monkeypatch.setattr(Transformer, "step", step)
    translator = translator_from(make_folder(beam=1))
    assert not cached_and_uncached(translator, read_examples(translator, PAIRS)).passed


def test_attention_that_leaks_padding(monkeypatch):
    sound = Transformer.encode

    def encode(self, source, *, record=False):
        everything = Source(source.values, torch.ones_like(source.mask))
        return dataclasses.replace(sound(self, everything, record=record), mask=source.mask)

    monkeypatch.setattr(Transformer, "encode", encode)
    found = broken(make_folder())
    assert found[0] == "alone = in a batch"
    assert set(found[1:]) <= {"scorer = search"}  # too, where the search encodes by itself, and soundly


def test_an_explicit_path_with_another_scale(monkeypatch):
    sound = attention.masked_softmax
    monkeypatch.setattr(attention, "masked_softmax", lambda scores, mask: sound(1.1 * scores, mask))
    assert broken(make_folder()) == ["explicit = fused"]


def test_recorded_steps_with_another_scale(monkeypatch, torch_alone):
    """Only where one place attends, which `decode` never does alone."""
    sound = attention.masked_softmax

    def masked_softmax(scores, mask):
        return sound(1.1 * scores if scores.size(-2) == 1 else scores, mask)

    monkeypatch.setattr(attention, "masked_softmax", masked_softmax)
    assert broken(make_folder()) == ["explicit = fused"]


def test_a_scorer_that_is_off_by_one(monkeypatch):
    sound = scoring.target_log_probabilities
    monkeypatch.setattr(scoring, "target_log_probabilities", lambda logits, targets: sound(logits, targets.roll(1)))
    assert broken(make_folder()) == ["scorer = search"]


def test_a_save_that_drops_a_bit(monkeypatch):
    sound = checkpoint.save_tensors

    def save_tensors(path, tensors):
        name = sorted(tensors)[-1]
        changed = tensors[name].clone()
        changed.view(-1)[0].view(torch.int32).bitwise_xor_(1)
        sound(path, {**tensors, name: changed})

    monkeypatch.setattr(checkpoint, "save_tensors", save_tensors)
    folder = make_folder()
    assert broken(folder) == ["saved = loaded"]
    *_, saved = verify(folder, PAIRS)
    assert saved.tolerance == 0
    assert "the tensor '" in saved.detail


def test_a_file_that_is_not_the_one_of_the_manifest(monkeypatch):
    def save(path, folder):
        save_model_folder(path, folder)
        (path / "generation.json").write_text("{}")

    monkeypatch.setattr(verification, "save_model_folder", save)
    folder = make_folder()
    assert broken(folder) == ["saved = loaded"]
    *_, saved = verify(folder, PAIRS)
    assert "generation.json" in saved.detail
    assert saved.to_json()["largest_difference"] is None


@pytest.mark.parametrize("what", ["settings", "tokenizers"])
def test_a_load_that_loses_something(monkeypatch, what):
    texts = [Pair(pair.source[::-1], pair.target) for pair in PAIRS[::-1]]
    other = train_tokenizers([Pair("h", "H"), *texts], DataConfig(tokenizer="char"))
    change = {"settings": {"generation": {"beam": 4}}, "tokenizers": {"tokenizers": other}}[what]

    def load(path, device):
        return dataclasses.replace(load_model_folder(path, device), **change)

    monkeypatch.setattr(verification, "load_model_folder", load)
    *_, saved = verify(make_folder(), PAIRS)
    assert not saved.passed
    assert what in saved.detail


def favour_two(monkeypatch, noise: float) -> None:
    """Of two tokens that are far the best and exactly equal, `noise` decides; its sign depends on the batch."""
    sound = Transformer.logits

    def logits(self, outputs):
        found = sound(self, outputs)
        found[..., 5:7] = 20 + found[..., 5:6]
        found[..., 5] += noise if len(outputs) > 1 else -noise
        return found

    monkeypatch.setattr(Transformer, "logits", logits)
    monkeypatch.setattr(Transformer, "native", lambda self, memory: None)  # a search in C would not see it


def test_ties_are_counted_and_are_no_fault(monkeypatch):
    favour_two(monkeypatch, noise=1e-5)
    translator = translator_from(make_folder(min_length=2))
    found = alone_and_in_a_batch(translator, read_examples(translator, PAIRS))
    assert found.passed
    assert "20 of 20 greedy outputs differ, where best and second are at most" in found.detail


def test_a_greedy_choice_that_was_not_close_is_a_fault(monkeypatch):
    favour_two(monkeypatch, noise=1e-2)
    translator = translator_from(make_folder(min_length=2))
    found = alone_and_in_a_batch(translator, read_examples(translator, PAIRS))
    assert found.largest_difference < found.tolerance, "forced decoding passes many places at once and sees nothing"
    assert not found.passed


def test_numbers_that_are_none_are_never_equal():
    folder = make_folder()
    with torch.no_grad():
        folder.model.decoder[0].attention.output.bias[0] = math.nan
    assert broken(folder) == CHECKS
    assert difference(torch.tensor([math.nan]), torch.tensor([math.nan])) == math.inf
    assert difference(torch.tensor([-math.inf, 1.0]), torch.tensor([-math.inf, 1.5])) == 0.5
    assert difference(torch.tensor([-math.inf]), torch.tensor([0.0])) == math.inf


def test_an_ensemble_keeps_them_too():
    translators = [translator_from(make_folder(changes, seed)) for seed, changes in enumerate([{}, {"norm": "pre"}])]
    both = together(translators, ["one", "two"])
    examples = read_examples(both, PAIRS)
    for check in (cached_and_uncached, alone_and_in_a_batch, explicit_and_fused, scorer_and_search):
        found = check(both, examples)
        assert found.passed, found


def test_pairs_that_cannot_be_checked_are_left_out():
    translator = translator_from(make_folder({"positions": "learned", "max_positions": 8}))
    pairs = [Pair("ab", "AB"), Pair("  ", "AB"), Pair("ab cd ef gh", "AB"), Pair("ab", "AB AB AB AB"), Pair("cd", "")]
    assert len(read_examples(translator, pairs)) == 2
    assert len(read_examples(translator, [Pair("ab cd e", "AB CD E")])) == 1, "seven and an end are just eight"
    with pytest.raises(SaccadeError, match="none of 2 pairs"):
        read_examples(translator, pairs[1:3])
    assert all(each.passed for each in verify(make_folder({"positions": "learned", "max_positions": 24}), PAIRS))


def test_every_batch_mixes_short_and_long():
    translator = translator_from(make_folder())
    examples = read_examples(translator, PAIRS * 3)
    batches = mixed_batches(examples)
    assert sorted(row for batch in batches for row in batch) == list(range(60))
    for batch in batches:
        assert len({len(examples[row].source[0]) for row in batch}) > 3


def test_coarser_numbers_are_given_more_room():
    translator = translator_from(make_folder())
    exact = tolerance_of(translator.model)
    halved = Translator(translator.model.bfloat16(), translator.tokenizers, translator.decoding)
    assert tolerance_of(halved.model) > 100 * exact
    examples = read_examples(halved, PAIRS)
    found = explicit_and_fused(halved, examples)
    assert exact < found.largest_difference <= found.tolerance

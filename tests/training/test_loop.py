from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch, take
from saccade import parallel_map
from saccade.data.cache.corpus import Corpus, corpus_from_arrays
from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.tokenizers.bpe_dropout import NOT_MERGED, BpeDropout, MergeTable
from saccade.symbols import Symbols
from saccade.training.checkpoints.background_saving import CheckpointSaver
from saccade.training.checkpoints.checkpoint import TrainingState, load_checkpoint
from saccade.training.config import TrainingConfig
from saccade.training.gradient_accumulation import NotFiniteError, accumulate, random_key
from saccade.training.loop import Loop, Progress
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.objective import Loss
from saccade.training.optimizers import make_optimizer, scale_and_clip


def make_corpus(count: int = 40, seed: int = 0) -> Corpus:
    generator = np.random.default_rng(seed)

    def side() -> tuple[np.ndarray, np.ndarray]:
        rows = [[*generator.integers(4, 23, generator.integers(1, 9)), 2] for _ in range(count)]
        offsets = np.cumsum([0, *(len(row) for row in rows)])
        return np.concatenate(rows).astype(np.int32), offsets.astype(np.int64)

    return corpus_from_arrays(*side(), *side())


def higher_half_split() -> BpeDropout:
    """Split tokens of the upper half into two tokens of the lower half, with probability 0.3."""
    left, right = np.full(23, NOT_MERGED, dtype=np.int32), np.full(23, NOT_MERGED, dtype=np.int32)
    left[13:], right[13:] = np.arange(4, 14), np.arange(5, 15)
    return BpeDropout(MergeTable(left, right), MergeTable(left, right), 0.3, 64)


def make_loop(
    corpus: Corpus,
    *,
    dropout: float = 0.1,
    progress: Progress | None = None,
    batches: int = 1,
    bpe_dropout: BpeDropout | None = None,
) -> Loop:
    model, objective = build_model(("transformer", {"dropout": dropout})).train(), Likelihood(0.1)
    return Loop(
        model,
        lambda _: objective,
        make_optimizer(model, TrainingConfig()),
        BatchSampler(corpus, batch_tokens=64, seed=7),
        symbols=Symbols(),
        learning_rate=lambda step: 1e-3,
        seed=7,
        accumulate=batches,
        clip_norm=1.0,
        progress=progress,
        bpe_dropout=bpe_dropout,
    )


def test_accumulated_batches_equal_one_large_batch():
    """Loss and gradients do not depend on the division into batches."""
    batch = make_batch([7, 4, 1, 5, 3, 6], [6, 3, 5, 1, 2, 7])
    results = []
    for parts in ([[0, 1, 2, 3, 4, 5]], [[0, 3], [1, 2, 4], [5]]):
        model = build_model(("transformer", {}))
        found = accumulate(model, Likelihood(0.1), [take(batch, rows) for rows in parts], keys=range(len(parts)))
        norm = scale_and_clip(model.parameters(), found.count, 0.0)
        gradients = [parameter.grad for parameter in model.parameters()]
        results.append((found.total / found.count, found.count, found.metrics["nll"], norm, gradients))
    reference, parts = results
    assert reference[1] == parts[1] == 24
    assert parts[0] == pytest.approx(reference[0], rel=1e-6)
    assert parts[2] == pytest.approx(reference[2], rel=1e-6)
    assert parts[3] == pytest.approx(reference[3], rel=1e-5)
    assert_close(parts[4], reference[4], rtol=1e-4, atol=1e-7)


def test_clipping_scales_the_mean_gradient_to_the_limit():
    model = build_model(("transformer", {}))
    batch = make_batch([4, 4], [5, 5])
    found = accumulate(model, Likelihood(), [batch], keys=[0])
    norm = scale_and_clip(model.parameters(), found.count, 0.01)
    assert norm > 0.01
    after = math.sqrt(sum(parameter.grad.square().sum().item() for parameter in model.parameters()))
    assert after == pytest.approx(0.01, rel=1e-4)


def test_epoch_contains_every_example_once():
    corpus = make_corpus()
    loop = make_loop(corpus, batches=2)
    seen: list[int] = []
    original = loop.update
    loop.update = lambda batches: (seen.extend(i for b in batches for i in b.indices), original(batches))[1]
    updates = loop.updates()
    while loop.progress.position.epoch == 0:
        next(updates)
    assert sorted(seen) == list(range(len(corpus)))
    assert loop.progress.position == EpochPosition(1)
    next(updates)
    assert loop.progress == Progress(
        step=loop.progress.step,
        position=EpochPosition(1, 0, 2),
        source_tokens=loop.progress.source_tokens,
        target_tokens=loop.progress.target_tokens,
    )


@pytest.mark.parametrize("bpe_dropout", [None, higher_half_split()], ids=["plain", "split"])
def test_loop_from_a_checkpoint_is_bitwise_equal(bpe_dropout, tmp_path):
    corpus = make_corpus()
    reference = make_loop(corpus, bpe_dropout=bpe_dropout)
    losses = [next(updates).loss for updates in [reference.updates()] for _ in range(25)]
    first = make_loop(corpus, bpe_dropout=bpe_dropout)
    updates = first.updates()
    for _ in range(11):
        next(updates)
    with CheckpointSaver(tmp_path, keep=1, every=1) as saver:
        saver.save(first.model, first.optimizer, TrainingState(first.progress))
        for _ in range(3):  # what is saved is that moment, however far the model is when it is written
            next(updates)
    second = make_loop(corpus, bpe_dropout=bpe_dropout)
    torch.manual_seed(999)
    second.progress = load_checkpoint(tmp_path / "step-11", second.model, second.optimizer).progress
    updates = second.updates()
    assert [next(updates).loss for _ in range(14)] == losses[11:]
    for ours, theirs in zip(second.model.parameters(), reference.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert second.progress == reference.progress
    plain = make_loop(corpus).updates()
    assert (losses == [next(plain).loss for _ in range(25)]) == (bpe_dropout is None)


def test_random_keys_of_positions_differ():
    keys = {random_key(seed, step, batch) for seed in range(5) for step in range(20) for batch in range(5)}
    assert len(keys) == 500
    assert all(0 <= key < 2**63 for key in keys)


@pytest.fixture
def two_threads(monkeypatch):
    """Compute a batch of any size in two parts."""
    monkeypatch.setattr(parallel_map, "MIN_TOKENS", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "kind", [("transformer", {}), ("transformer", {"norm": "pre"}), ("bahdanau", {}), ("convs2s", {})]
)
def test_parallel_batch_parts_equal_the_batch(two_threads, kind):
    """Loss and gradients do not depend on the number of threads."""
    batch = make_batch([7, 4, 1, 5, 3], [6, 3, 5, 1, 2])
    results = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        model = build_model(kind)
        found = accumulate(model, Likelihood(0.1), [batch], keys=[1])
        results.append((found.total, found.count, found.metrics["nll"], [p.grad for p in model.parameters()]))
    assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_parallel_batch_parts_keep_r_drop_pairs(two_threads):
    batch, model = make_batch([7, 4, 1, 5, 3], [6, 3, 5, 1, 2]), build_model(("transformer", {"dropout": 0.3}))
    found = accumulate(model, Likelihood(0.1, r_drop=2.0), [batch], keys=[1])
    assert found.metrics["divergence"] == pytest.approx(0.0, abs=1e-4)
    model.train()
    assert accumulate(model, Likelihood(0.1, r_drop=2.0), [batch], keys=[1]).metrics["divergence"] > 0.01


def test_parallel_batch_parts_have_their_own_random_numbers(two_threads):
    """For any order of threads: equal keys give equal bits, different keys different ones."""
    batch, model = make_batch([7, 4, 1, 5, 3], [6, 3, 5, 1, 2]), build_model(("transformer", {"dropout": 0.3})).train()
    found = [accumulate(model, Likelihood(), [batch], keys=[key]).total for key in [5, *[4] * 8]]
    assert len(set(found[1:])) == 1
    assert found[0] != found[1]


def test_inseparable_objective_gets_the_complete_batch(two_threads):
    class Inseparable(Likelihood):
        def __init__(self):
            super().__init__()
            self.separable, self.sizes = False, []

        def loss(self, model, batch):
            self.sizes.append(len(batch.indices))
            return super().loss(model, batch)

    objective = Inseparable()
    accumulate(build_model(("transformer", {})), objective, [make_batch([7, 4, 1], [6, 3, 5])], keys=[1])
    assert objective.sizes == [3]


class Explodes:
    """Objective whose loss is NaN on one example."""

    metrics = ("nll",)
    separable = True
    passes = 1

    def loss(self, model, batch):
        found = Likelihood().loss(model, batch)
        factor = math.inf if 13 in batch.indices else 1.0
        return Loss(found.total * factor, found.count, found.metrics)


def test_nan_loss_names_its_batch_and_changes_nothing():
    loop = make_loop(make_corpus())
    loop.objective_at = lambda _: Explodes()
    updates = loop.updates()
    before = {}
    with pytest.raises(NotFiniteError, match="the loss is inf") as caught:
        for _ in range(100):
            before = {name: parameter.clone() for name, parameter in loop.model.named_parameters()}
            next(updates)
    named = str(caught.value)
    guilty = next(planned.indices for planned in loop.sampler.rest_of_epoch(EpochPosition()) if 13 in planned.indices)
    assert str(guilty[0]) in named
    for name, parameter in loop.model.named_parameters():
        assert torch.equal(parameter, before[name])

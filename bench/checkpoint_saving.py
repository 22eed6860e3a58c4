"""How much saving a checkpoint slows training: steps during a save compared with steps without one.

    make bench-save

Trains `transformer-tiny` on generated text with batches of 4096 tokens and saves every ten steps, much more often than
a normal run, to have enough saves to measure. Prints how long a save blocks the loop, and how much slower steps are
while the background thread writes; both as a share of a step, and averaged over 100 steps.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from saccade.allocator import keep_freed_memory
from saccade.data.cache.corpus import corpus_from_arrays
from saccade.data.sampling.batch_sampler import BatchSampler
from saccade.interface import VocabularySizes
from saccade.models.registry import choose
from saccade.symbols import Symbols
from saccade.training.checkpoints.background_saving import CheckpointSaver
from saccade.training.checkpoints.checkpoint import TrainingState
from saccade.training.config import TrainingConfig
from saccade.training.loop import Loop
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import make_optimizer

SAVE_EVERY = 100  # steps between two saves in a normal run


def corpus(vocabulary: int, pairs: int = 20_000):
    """Random pairs of similar lengths, so that all steps cost about the same."""
    generator = np.random.default_rng(0)

    def side() -> tuple[np.ndarray, np.ndarray]:
        lengths = generator.integers(14, 17, pairs)
        ids = generator.integers(4, vocabulary, lengths.sum()).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids[offsets[1:] - 1] = Symbols.end
        return ids, offsets

    return corpus_from_arrays(*side(), *side())


def main() -> None:
    """Alternate ten steps with a save and ten without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="transformer-tiny")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps with a save, and steps without, per round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(1)
    sizes = VocabularySizes(options.vocabulary, options.vocabulary, joint=True)
    model = choose({"preset": options.preset}).build(sizes).train()
    objective = Likelihood(0.1)
    loop = Loop(
        model,
        lambda _: objective,
        make_optimizer(model, TrainingConfig()),
        BatchSampler(corpus(options.vocabulary), batch_tokens=options.batch_tokens, seed=1),
        symbols=Symbols(),
        learning_rate=lambda step: 1e-4,
        seed=1,
        clip_norm=1.0,
    )
    folder = Path(tempfile.mkdtemp(prefix="save-", dir="."))
    updates = loop.updates()
    for _ in range(5):
        next(updates)
    blocked, quiet, saving = [], [], []
    with CheckpointSaver(folder, keep=2, every=1) as saver:
        saver.save(loop.model, loop.optimizer, TrainingState(loop.progress))  # the first save allocates the buffers
        saver.wait()
        for _ in range(options.rounds):
            began = time.perf_counter()
            saver.save(loop.model, loop.optimizer, TrainingState(loop.progress))
            blocked.append(time.perf_counter() - began)
            saving.append(steps(updates, options.steps))
            saver.wait()
            quiet.append(steps(updates, options.steps))
    size = sum(file.stat().st_size for file in next(folder.glob("step-*")).iterdir())
    shutil.rmtree(folder)

    step = statistics.median(quiet) / options.steps
    # Steps during a save minus the mean of the steps before and after it: drift of the machine cancels.
    extra = statistics.median(
        busy - (before + after) / 2 for busy, before, after in zip(saving[1:], quiet, quiet[1:], strict=False)
    )
    stall = statistics.median(blocked)
    found = {
        "checkpoint_megabytes": size / 1e6,
        "step_seconds": step,
        "blocked_share_of_a_step": stall / step,
        "slowed_share_of_a_step": extra / step,
        "stall_share_of_a_step_on_average": (stall + max(0.0, extra)) / (SAVE_EVERY * step),
    }
    print(f"{options.preset}: a step {1000 * step:.0f} ms, a checkpoint {size / 1e6:.1f} MB, {len(blocked)} saves")
    print(f"blocked by a save: {1000 * stall:.1f} ms, {stall / step:.1%} of a step")
    print(f"slower steps during writing: {1000 * extra:+.1f} ms per save, {extra / step:+.1%} of a step")
    print(f"with one save per {SAVE_EVERY} steps: {found['stall_share_of_a_step_on_average']:.3%} of a step on average")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def steps(updates, count: int) -> float:
    """Seconds of `count` updates."""
    began = time.perf_counter()
    for _ in range(count):
        next(updates)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

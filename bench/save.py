"""How much saving stalls training: steps with a checkpoint being copied and written beside steps without.

    make bench-save

Trains `transformer-tiny` on generated text with batches of 4096 tokens and saves every ten steps, far more often than a
run does, to have enough saves to measure. Prints how long the loop stands still in a save, and how much longer the
steps take during which the writer works; both as a share of a step, a save, and spread over 100 steps.
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

from saccade.allocator import keep_memory
from saccade.data.cache.corpus import corpus_of_arrays
from saccade.data.sampling.batch_sampler import Order
from saccade.interface import VocabularySizes
from saccade.models.registry import choose
from saccade.symbols import Symbols
from saccade.training.checkpoints.background_saving import Saver
from saccade.training.checkpoints.checkpoint import State
from saccade.training.config import TrainingConfig
from saccade.training.loop import Loop
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import make_optimizer

SAVE_EVERY = 100  # steps between two saves of the bar


def corpus(vocabulary: int, pairs: int = 20_000):
    """Random pairs of like lengths, so that all steps cost about the same."""
    generator = np.random.default_rng(0)

    def side() -> tuple[np.ndarray, np.ndarray]:
        lengths = generator.integers(14, 17, pairs)
        ids = generator.integers(4, vocabulary, lengths.sum()).astype(np.int32)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        ids[offsets[1:] - 1] = Symbols.end
        return ids, offsets

    return corpus_of_arrays(*side(), *side())


def main() -> None:
    """Alternate ten steps with a save and ten without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="transformer-tiny")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps of half a round")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    keep_memory()
    torch.manual_seed(1)
    sizes = VocabularySizes(options.vocabulary, options.vocabulary, joint=True)
    model = choose({"preset": options.preset}).build(sizes).train()
    objective = Likelihood(0.1)
    loop = Loop(
        model,
        lambda _: objective,
        make_optimizer(model, TrainingConfig()),
        Order(corpus(options.vocabulary), batch_tokens=options.batch_tokens, seed=1),
        symbols=Symbols(),
        rate=lambda step: 1e-4,
        seed=1,
        clip_norm=1.0,
    )
    folder = Path(tempfile.mkdtemp(prefix="save-", dir="."))
    updates = loop.updates()
    for _ in range(5):
        next(updates)
    blocked, quiet, saving = [], [], []
    with Saver(folder, keep=2, every=1) as saver:
        saver.save(loop.model, loop.optimizer, State(loop.progress))  # the first one makes room for the copies
        saver.wait()
        for _ in range(options.rounds):
            began = time.perf_counter()
            saver.save(loop.model, loop.optimizer, State(loop.progress))
            blocked.append(time.perf_counter() - began)
            saving.append(steps(updates, options.steps))
            saver.wait()
            quiet.append(steps(updates, options.steps))
    size = sum(file.stat().st_size for file in next(folder.glob("step-*")).iterdir())
    shutil.rmtree(folder)

    step = statistics.median(quiet) / options.steps
    # Each half with the writer beside the halves without it before and after: the machine's own drift cancels.
    extra = statistics.median(
        busy - (before + after) / 2 for busy, before, after in zip(saving[1:], quiet, quiet[1:], strict=False)
    )
    stall = statistics.median(blocked)
    found = {
        "checkpoint_megabytes": size / 1e6,
        "step_seconds": step,
        "blocked_share_of_a_step": stall / step,
        "slowed_share_of_a_step": extra / step,
        "stall_a_step_at_one_save_in_100": (stall + max(0.0, extra)) / (SAVE_EVERY * step),
    }
    print(f"{options.preset}: a step {1000 * step:.0f} ms, a checkpoint {size / 1e6:.1f} MB, {len(blocked)} saves")
    print(f"standing still in a save: {1000 * stall:.1f} ms, {stall / step:.1%} of a step")
    print(f"steps while it is written: {1000 * extra:+.1f} ms a save, {extra / step:+.1%} of a step")
    print(f"at one save in {SAVE_EVERY} steps: {found['stall_a_step_at_one_save_in_100']:.3%} of a step on average")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def steps(updates, count: int) -> float:
    """Seconds of some updates."""
    began = time.perf_counter()
    for _ in range(count):
        next(updates)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

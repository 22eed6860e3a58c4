"""Decoding with a beam, side by side: the search as it is, and as it was before hypotheses shared their memory.

SACCADE_DATA=data make bench-decode RUNS="runs/bahdanau runs/luong runs/seq2seq"

Before: every hypothesis held a copy of the memory and of its projected keys, each reordering of the beam copied them
again, the largest logits were looked for in the whole row, and an output could be a quarter longer than the largest
ratio of target to source in the training data. Both ways run in turn, on the same sentences.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import saccade
from saccade.decoding import beam
from saccade.interface import Memory, OfMemory, Step
from saccade.training.config import TrainingConfig
from saccade.training.machine import prepare_machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="run directories or model folders")
    data = Path(os.environ.get("SACCADE_DATA", "data"))
    parser.add_argument("--source", type=Path, default=data / "multi30k" / "test_2016_flickr.en")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--factor-before", type=float, default=2.4, help="the old limit of an output's length")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    prepare_machine(TrainingConfig())
    lines = options.source.read_text(encoding="utf-8").splitlines()[: options.sentences]
    found = {}
    for run in options.runs:
        translator = saccade.load(run, "cpu")
        settings = {"beam": options.beam}
        old = {**settings, "max_length_factor": options.factor_before}
        before, after = [], []
        for _ in range(options.rounds):  # in turn, so that the machine's drift meets both
            with as_before(translator):
                began = time.perf_counter()
                outputs = translator.translate(lines, **old)
                before.append(time.perf_counter() - began)
            began = time.perf_counter()
            others = translator.translate(lines, **settings)
            after.append(time.perf_counter() - began)
        changed = sum(one != other for one, other in zip(outputs, others, strict=True))
        ratio = statistics.median(then / now for then, now in zip(before, after, strict=True))
        speeds = [len(lines) / statistics.median(times) for times in (before, after)]
        found[run] = {"before": speeds[0], "after": speeds[1], "ratio": ratio, "changed": changed}
        print(
            f"{run}: {speeds[0]:.0f} sentences a second before, {speeds[1]:.0f} now: {ratio:.2f}x "
            f"({min(t / n for t, n in zip(before, after, strict=True)):.2f} to "
            f"{max(t / n for t, n in zip(before, after, strict=True)):.2f}); {changed} outputs differ"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


@contextmanager
def as_before(translator: Any) -> Any:
    """The search with a memory for every hypothesis, copied whenever the beam is reordered, and a plain top-k."""
    model, largest = translator.model, beam.most_probable
    translator.model = Separate(model)
    beam.most_probable = lambda values, count: values.topk(count)
    try:
        yield
    finally:
        translator.model = model
        beam.most_probable = largest


class Copied(NamedTuple):
    """What `OfMemory` marks, without the mark: selected and reordered like any other part of a state."""

    value: Any


class Separate:
    """A model whose hypotheses share nothing."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.longest = model.longest

    def encode(self, source: Any, *, record: bool = False) -> Memory:
        return self.model.encode(source, record=record)

    def start(self, memory: Memory) -> Any:
        return unmarked(self.model.start(memory)), Copied(memory)

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        own = state[1].value
        step = self.model.step(token, marked(state[0]), own, record=record)
        return Step(step.output, (unmarked(step.state), Copied(own)), step.attention)

    def logits(self, outputs: Tensor) -> Tensor:
        return self.model.logits(outputs)


def unmarked(state: Any) -> Any:
    """A state with every `OfMemory` as `Copied`."""
    return renamed(state, OfMemory, Copied)


def marked(state: Any) -> Any:
    """The way back."""
    return renamed(state, Copied, OfMemory)


def renamed(state: Any, old: type, new: type) -> Any:
    if isinstance(state, old):
        return new(state.value)
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(renamed(part, old, new) for part in state))
    if isinstance(state, tuple | list):
        return type(state)(renamed(part, old, new) for part in state)
    return state


if __name__ == "__main__":
    main()

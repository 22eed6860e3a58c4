"""Decoding with a beam, side by side: the search as it is, and as it was before hypotheses shared their memory.

SACCADE_DATA=data make bench-decode RUNS="runs/bahdanau runs/luong runs/seq2seq"

Before: every hypothesis held a copy of the memory and of its projected keys, and each reordering of the beam copied
them again; the logits of all rows were made at once and their largest looked for in the whole row; the allocator gave
every big tensor back; batches were searched one after another, all cores on one; an output could be a quarter longer
than the largest ratio of target to source in the training data (2.4 on Multi30k with 8,000 pieces; --factor-before).
Both ways run in turn, each in a process of its own, on the same sentences.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import saccade
from saccade.allocator import keep_memory
from saccade.decoding import beam
from saccade.inference import engine
from saccade.inference.translator import Translator
from saccade.interface import Memory, OfMemory, Step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run directories or model folders")
    data = Path(os.environ.get("SACCADE_DATA", "data"))
    parser.add_argument("--source", type=Path, default=data / "multi30k" / "test_2016_flickr.en")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--factor-before", type=float, default=2.4, help="the old limit of an output's length")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=["before", "now"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(decode(options)))
        return
    found = {}
    for run in options.runs:
        before, now = [], []
        for _ in range(options.rounds):  # in turn, so that the machine's drift meets both
            before.append(in_process("before", run, options))
            now.append(in_process("now", run, options))
        ratios = [then["seconds"] / here["seconds"] for then, here in zip(before, now, strict=True)]
        changed = sum(one != other for one, other in zip(before[0]["outputs"], now[0]["outputs"], strict=True))
        speeds = [statistics.median(options.sentences / way["seconds"] for way in ways) for ways in (before, now)]
        ratio = statistics.median(ratios)
        found[run] = {"before": speeds[0], "now": speeds[1], "ratio": ratio, "changed": changed}
        print(
            f"{run}: {speeds[0]:.0f} sentences a second before, {speeds[1]:.0f} now: {ratio:.2f}x "
            f"({min(ratios):.2f} to {max(ratios):.2f}); {changed} outputs differ",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def in_process(way: str, run: str, options: argparse.Namespace) -> dict[str, Any]:
    """One way in a fresh process."""
    names = ("source", "sentences", "beam", "factor_before")
    settings = [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names]
    done = subprocess.run([sys.executable, __file__, run, f"--way={way}", *settings], capture_output=True, check=True)
    return json.loads(done.stdout)


def decode(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and outputs of one way, after a few sentences to warm up."""
    lines = options.source.read_text(encoding="utf-8").splitlines()[: options.sentences]
    translator = saccade.load(options.runs[0], "cpu", engine="torch")
    settings: dict[str, Any] = {"beam": options.beam}
    if options.way == "before":
        settings["max_length_factor"] = options.factor_before
        translator = Translator(Separate(translator.model), translator.tokenizers, translator.decoding, "cpu")
        beam.most_probable = lambda values, count: values.topk(count)
        beam.ROWS = sys.maxsize
        engine.workers_for = lambda batch_tokens, device: 1
    else:
        keep_memory()
    translator.translate(lines[:20], **settings)
    began = time.perf_counter()
    outputs = translator.translate(lines, **settings)
    return {"seconds": time.perf_counter() - began, "outputs": outputs}


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
        return renamed(self.model.start(memory), OfMemory, Copied), Copied(memory)

    def step(self, token: Tensor, state: Any, memory: Memory, *, record: bool = False) -> Step:
        own = state[1].value
        step = self.model.step(token, renamed(state[0], Copied, OfMemory), own, record=record)
        return Step(step.output, (renamed(step.state, OfMemory, Copied), Copied(own)), step.attention)

    def logits(self, outputs: Tensor) -> Tensor:
        return self.model.logits(outputs)


def renamed(state: Any, old: type, new: type) -> Any:
    """A state with every part of one kind as another."""
    if isinstance(state, old):
        return new(state.value)
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        return type(state)(*(renamed(part, old, new) for part in state))
    if isinstance(state, tuple | list):
        return type(state)(renamed(part, old, new) for part in state)
    return state


if __name__ == "__main__":
    main()

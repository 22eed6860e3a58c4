"""Cost per token in long documents: full attention compared with attention within a radius.

    make bench-long

Trains `transformer-tiny` for a few updates to copy generated documents, with the same number of tokens per batch at
every length, and then decodes the first tokens of a document greedily. Prints the time per token at each length, full
and restricted (`--model.radius`, `--model.cross-radius`), and the ratio to the shortest documents. Each combination is
measured in a separate process, in alternating rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.comparison import log_progress
from bench.paths import ROOT
from bench.spread import Spread
from bench.tables import markdown_table
from saccade.data.cache.corpus import Corpus, corpus_from_arrays
from saccade.data.sampling.batch_sampler import BatchSampler
from saccade.decoding.config import DecodingConfig
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Source, VocabularySizes
from saccade.models.registry import choose
from saccade.symbols import Symbols
from saccade.training.compute_settings import ComputeSettings, configure_process
from saccade.training.config import TrainingConfig
from saccade.training.loop import make_loop
from saccade.training.objectives.likelihood import Likelihood

VOCABULARY = 8_000
KINDS = ("full", "restricted")


def main() -> None:
    options = read_options()
    if options.cell:
        kind, length = options.cell.split(":")
        print(json.dumps(measure(kind, int(length), options)))
        return
    cells = [(kind, length) for length in options.lengths for kind in KINDS]
    found: dict[tuple[str, int], list[dict[str, float]]] = {cell: [] for cell in cells}
    for number in range(options.rounds):
        for kind, length in cells:
            found[kind, length].append(in_process(kind, length))
            shown = ", ".join(f"{name} {value:.4g}" for name, value in found[kind, length][-1].items())
            log_progress(f"round {number + 1}, {kind}, {length:,} tokens: {shown}")
    for task in ("training", "decoding"):
        print(f"\n{task}, microseconds per token\n\n{table(found, task, options.lengths)}")
    if options.json:
        rows = [{"kind": kind, "length": length, "rounds": rounds} for (kind, length), rounds in found.items()]
        text = json.dumps({"radius": options.radius, "cells": rows}, indent=1) + "\n"
        options.json.write_text(text, encoding="utf-8")


def table(found: dict[tuple[str, int], list[dict[str, float]]], task: str, lengths: list[int]) -> str:
    """One row per length: time per token, and its ratio to the shortest length."""
    rows, first = [], {}
    for length in lengths:
        row, costs = [f"{length:,}"], []
        for kind in KINDS:
            spread = Spread.of([1e6 * one[task] for one in found[kind, length]])
            first.setdefault(kind, spread.median)
            costs.append(spread.median)
            row += [spread.text(), f"{spread.median / first[kind]:.2f}"]
        rows.append([*row, f"{costs[0] / costs[1]:.2f}"])
    header = ["tokens"]
    for kind in KINDS:
        header += [kind, "ratio to first"]
    return markdown_table([*header, "full / restricted"], rows)


def in_process(kind: str, length: int) -> dict[str, float]:
    """Measure one combination in a new process with the same options."""
    command = [sys.executable, "-m", "bench.long_input", *sys.argv[1:], f"--cell={kind}:{length}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{kind}, {length} tokens fails:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def measure(kind: str, length: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds per target token in training and per output token in decoding."""
    settings = TrainingConfig()
    configure_process(settings)
    torch.manual_seed(1)
    radius = {"radius": options.radius, "cross_radius": options.radius} if kind == "restricted" else {}
    model = choose({"preset": "transformer-tiny", "dropout": 0.0, **radius}).build(
        VocabularySizes(VOCABULARY, VOCABULARY, joint=True)
    )
    pairs = max(1, options.batch_tokens // length) * (options.steps + 2)
    corpus = documents(pairs, length)
    device = torch.device("cpu")
    objective = Likelihood(settings.label_smoothing)
    loop = make_loop(
        model.train(),
        lambda _: objective,
        BatchSampler(corpus, batch_tokens=options.batch_tokens, seed=1),
        settings,
        learning_rate=lambda step: 1e-4,
        symbols=Symbols(),
        device=device,
        autocast=ComputeSettings(device, "float32").autocast,
    )
    updates = loop.updates()
    next(updates)
    began = time.perf_counter()
    tokens = sum(next(updates).target_tokens for _ in range(options.steps))
    training = (time.perf_counter() - began) / tokens
    return {"training": training, "decoding": decode(model.eval(), corpus, options.written or length)}


def documents(pairs: int, length: int) -> Corpus:
    """Random documents of equal length for a copy task: targets are the sources."""
    generator = np.random.default_rng(0)
    ids = generator.integers(4, VOCABULARY, (pairs, length)).astype(np.int32)
    ids[:, -1] = Symbols.end
    offsets = np.arange(pairs + 1, dtype=np.int64) * length
    return corpus_from_arrays(ids.ravel(), offsets, ids.ravel(), offsets)


def decode(model: Any, corpus: Corpus, written: int) -> float:
    """Seconds per output token, including an equal share of encoding the document."""
    ids = torch.from_numpy(np.array(corpus.source(0), dtype=np.int64))[None]
    source = Source(ids, torch.ones_like(ids, dtype=torch.bool))
    config = DecodingConfig(beam=1, min_length=written, max_length=written)
    began = time.perf_counter()
    with torch.inference_mode():
        search(model, SearchRequest(model.encode(source), config, Symbols()))
    return (time.perf_counter() - began) / written


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--radius", type=int, default=64)
    parser.add_argument("--batch-tokens", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=2, help="measured updates, after one for warmup")
    parser.add_argument("--written", type=int, default=1024, help="tokens of the output; 0 for the length of the input")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Speed of the training loop: model FLOP/s compared with a matrix product measured in the same run.

    make bench-train            (Multi30k from $SACCADE_DATA, default ./data; else generated text)

With two processes of one thread, each computing half of every update:

    torchrun --nproc-per-node 2 -m bench.training_loop --batch-tokens 2048 --accumulate 2

Counts tokens without padding. Prints one line per round and the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from bench.machine_limits import matmul_rate
from saccade.allocator import keep_freed_memory
from saccade.data.cache.corpus import build_corpus
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair, read_pairs
from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import collate
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.distributed.group import Group, join_process_group
from saccade.model_folder import vocabulary_sizes
from saccade.models.registry import choose
from saccade.training.config import TrainingConfig
from saccade.training.loop import Loop
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import make_optimizer
from saccade.training.preflight.flops import flops_of_batch


def read_or_generate_pairs() -> tuple[str, list[Pair]]:
    """A description of the data and its sentence pairs."""
    folder = Path(os.environ.get("SACCADE_DATA", "data")) / "multi30k"
    if (folder / "train.en").is_file():
        return "Multi30k", list(read_pairs(str(folder / "train.en"), str(folder / "train.de")))
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.normal(12, 4, 20000).astype(int), 3, 40)
    words = [f"w{index}" for index in (generator.zipf(1.3, lengths.sum()) % 9000)]
    texts = [" ".join(part) for part in np.split(np.array(words), np.cumsum(lengths)[:-1])]
    return "generated text (no Multi30k under $SACCADE_DATA)", [Pair(text, text) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="transformer-tiny")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--accumulate", type=int, default=1, help="batches per update")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=12, help="updates per round")
    parser.add_argument("--product-seconds", type=float, default=2.0, help="measuring time of the matrix product")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    keep_freed_memory()
    group = join_process_group(torch.device("cpu"))
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // group.size)
    torch.set_num_threads(threads)
    log = print if group.rank == 0 else lambda *_: None
    name, texts = read_or_generate_pairs()
    data = DataConfig(vocabulary=options.vocabulary, batch_tokens=options.batch_tokens)
    tokenizers = train_tokenizers(texts, data)
    corpus = build_corpus(texts, tokenizers, data)
    torch.manual_seed(1)
    model = choose({"preset": options.preset}).build(vocabulary_sizes(tokenizers)).train()
    objective = Likelihood(0.1)
    # One pool for the whole corpus, so that the position in the epoch is the number of the batch.
    sampler = BatchSampler(corpus, batch_tokens=options.batch_tokens, seed=1, pool=1_000_000)
    loop = Loop(
        model,
        lambda _: objective,
        make_optimizer(model, TrainingConfig()),
        sampler,
        symbols=tokenizers.target.symbols,
        learning_rate=lambda step: 1e-4,
        seed=1,
        accumulate=options.accumulate,
        clip_norm=1.0,
        group=group,
    )
    plan = [planned.indices for planned in sampler.rest_of_epoch(EpochPosition())]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    update = f"updates of {options.accumulate} x {options.batch_tokens} tokens"
    log(f"{options.preset}, {parameters:,} parameters, {name}, {update}")
    log(f"{sampler.padding:.1%} padding, {group.size} processes x {threads} threads, torch {torch.__version__}")

    updates = loop.updates()
    for _ in range(3):
        next(updates)
    rows = []
    for number in range(options.rounds):
        first = loop.progress.position.batch
        peak = matmul_rate_of_all_cores(group, cores, threads, options.product_seconds)
        tokens, began = 0, time.perf_counter()
        for _ in range(options.steps):
            tokens += next(updates).target_tokens
        seconds = time.perf_counter() - began
        peak = (peak + matmul_rate_of_all_cores(group, cores, threads, options.product_seconds)) / 2
        batches = plan[first : loop.progress.position.batch]
        flops = sum(flops_without_padding(model, objective, corpus, batch) for batch in batches)
        row = {
            "tokens_per_second": tokens / seconds,
            "model": flops / seconds,
            "matmul": peak,
            "share": flops / seconds / peak,
        }
        rows.append(row)
        log(f"round {number + 1}: {line(row)}")
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    log(f"median:  {line(medians)} of the matmul rate")
    if options.json and group.rank == 0:
        options.json.write_text(json.dumps({"median": medians, "rounds": rows}, indent=2) + "\n", encoding="utf-8")


def matmul_rate_of_all_cores(group: Group, cores: int, threads: int, seconds: float) -> float:
    """FLOP/s of a matrix product on all cores, measured by the first process while the others wait."""
    rate = 0.0
    if group.rank == 0:
        torch.set_num_threads(cores)
        rate = matmul_rate(seconds=seconds)
        torch.set_num_threads(threads)
    return group.all_reduce_numbers([rate])[0]


def line(row: dict[str, float]) -> str:
    speed, model, matmul = row["tokens_per_second"], row["model"] / 1e9, row["matmul"] / 1e9
    return f"{speed:,.0f} target tok/s, model {model:.1f} GFLOP/s, matmul {matmul:.1f} GFLOP/s, {row['share']:.1%}"


def flops_without_padding(model: torch.nn.Module, objective: Likelihood, corpus: object, rows: np.ndarray) -> float:
    """Floating-point operations of a batch, scaled to tokens without padding."""
    batch = collate(corpus, rows)  # type: ignore[arg-type]
    cells = batch.source.mask.numel() + batch.target_mask.numel()
    return flops_of_batch(model, objective, batch) * (batch.source_tokens + batch.target_tokens) / cells


if __name__ == "__main__":
    main()

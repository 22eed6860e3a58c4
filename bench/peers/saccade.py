"""Saccade itself: the loop of its trainer on the same ids, and its translator; runs in our own environment."""

from __future__ import annotations

import gc
import inspect
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import saccade
from bench.peers.job import Updates, read_ids, read_job, read_lines, tell, write_lines
from saccade.allocator import keep_memory
from saccade.data.cache.corpus import Corpus, corpus_of_arrays
from saccade.data.sampling.batch_sampler import Order, Place
from saccade.data.sampling.batches import collate
from saccade.interface import VocabularySizes
from saccade.models.registry import choose
from saccade.symbols import Symbols
from saccade.training.assembly import make_loop
from saccade.training.compute_settings import autocast_for, prepare_machine
from saccade.training.config import TrainingConfig
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.preflight.flops import FlopRate

# unknown, pad, begin, end are 0, 1, 2, 3 in the pieces of the benchmark
OWN_IDS = np.array([Symbols.unknown, Symbols.pad, Symbols.begin, Symbols.end])


def main() -> None:
    job = read_job()
    answer = {"training": train, "plan": plan, "decoding": decode, "latency": latency}[job["task"]](job)
    tell({"version": saccade.__version__, "threads": torch.get_num_threads(), **answer})


def corpus_of(work: Path) -> Corpus:
    """The benchmark's ids as ours; all other pieces keep their number."""

    def side(name: str) -> tuple[np.ndarray, np.ndarray]:
        sentences = read_ids(work / f"train.{name}.ids")
        ids = np.fromiter(itertools.chain.from_iterable(sentences), dtype=np.int32)
        special = ids < len(OWN_IDS)
        ids[special] = OWN_IDS[ids[special]]
        lengths = [len(sentence) for sentence in sentences]
        return ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    return corpus_of_arrays(*side("source"), *side("target"))


def plan(job: dict[str, Any]) -> dict[str, Any]:
    """The rows of every batch of the first epoch, for peers that take ready batches."""
    order = order_of(corpus_of(Path(job["work"])), job)
    batches = [planned.rows.tolist() for planned in order.rest_of_epoch(Place())]
    return {"plan": batches, "padding": order.padding}


def order_of(corpus: Corpus, job: dict[str, Any]) -> Order:
    return Order(corpus, batch_tokens=job["batch_tokens"], seed=1)


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds and tokens of single updates of the trainer's loop, and the operations of a target token."""
    settings = TrainingConfig(label_smoothing=job["label_smoothing"])
    prepare_machine(settings)
    corpus, size = corpus_of(Path(job["work"])), job["size"]
    order = order_of(corpus, job)
    torch.manual_seed(1)
    sizes = VocabularySizes(size["pieces"], size["pieces"], joint=True)
    model = choose({"preset": size["preset"], "dropout": job["dropout"]}).build(sizes).train()
    device = torch.device("cpu")
    objective = Likelihood(settings.label_smoothing)
    loop = make_loop(
        model,
        lambda _: objective,
        order,
        settings,
        rate=lambda step: 1e-4,
        symbols=Symbols(),
        device=device,
        autocast=autocast_for(device, "float32"),
    )
    batches = itertools.islice(order.rest_of_epoch(Place()), 3)
    rates = [FlopRate.measure(model, objective, collate(corpus, planned.rows)).per_token for planned in batches]
    updates = Updates(job["warmup"], job["updates"])
    for update in loop.updates():
        if updates.tick(update.target_tokens):
            break
    parameters = sum(parameter.numel() for parameter in model.parameters())
    flops = {"flops_per_token": sum(rates) / len(rates), "parameters": parameters, "padding": order.padding}
    return {**updates.result(), **flops}


def load(job: dict[str, Any]) -> Any:
    """The translator on the engine that is asked for; a version that has no engines is told apart from a fault."""
    keep_memory()  # as the command does
    chosen = {"engine": job["engine"], "precision": job["precision"]}
    missing = chosen.keys() - inspect.signature(saccade.load).parameters.keys()
    if missing and job["engine"] != "torch":
        raise SystemExit(f"error: this Saccade has no engine '{job['engine']}': load takes no {min(missing)}")
    found = saccade.load(job["model"], "cpu", **({} if missing else chosen))
    gc.collect()
    gc.freeze()  # as it does too
    return found


def limits_of(job: dict[str, Any]) -> dict[str, int]:
    """Settings for outputs of one length, of which none is the end; the model's own limit otherwise."""
    length = job["size"]["length"]
    return {"min_length": length, "max_length": length} if length else {}


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Raw text to raw text, every beam; loading is not counted."""
    translator, lines, found = load(job), read_lines(job["source"]), []
    lengths: dict[int, float] = {}
    for beam in job["beams"]:
        translator.translate(lines[:20], beam=beam, **limits_of(job))
        began = time.perf_counter()
        outputs = translator.translate(lines, beam=beam, **limits_of(job))
        seconds = time.perf_counter() - began
        output = f"{job['output']}.beam{beam}"
        write_lines(output, outputs)
        found.append({"beam": beam, "seconds": seconds, "output": output})
        lengths[beam] = mean_length(translator.tokenizers.target, outputs)
    counts: dict[str, Any] = {"encoder_parameters": 0, "decoder_parameters": 0, "output_parameters": 0}
    counts |= {"source_tokens": mean_length(translator.tokenizers.source, lines), "target_tokens": lengths}
    for name, parameter in getattr(translator.model, "named_parameters", list)():
        part = name.split(".")[0].removesuffix("_norm")
        if ".cross.key_value." in name:
            part = "encoder"  # applied once to each token of the source
        counts[f"{part if part in ('encoder', 'decoder') else 'output'}_parameters"] += parameter.numel()
    return {"decoded": found, **counts}


def mean_length(tokenizer: Any, texts: list[str]) -> float:
    """Tokens of a text, its end included."""
    return sum(len(ids) + 1 for ids in tokenizer.encode_batch(texts)) / len(texts)


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of single sentences, one after another."""
    translator, lines, found = load(job), read_lines(job["source"])[: job["sentences"]], []
    for beam in job["beams"]:
        for line in lines[:5]:
            translator.translate(line, beam=beam, **limits_of(job))
        seconds = []
        for line in lines:
            began = time.perf_counter()
            translator.translate(line, beam=beam, **limits_of(job))
            seconds.append(time.perf_counter() - began)
        found.append({"beam": beam, "seconds": seconds})
    return {"single": found}


if __name__ == "__main__":
    main()

"""Saccade: its training loop on the prepared ids, and its translator; runs in this environment."""

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
from bench.peers.job import UpdateTimer, print_result, read_ids, read_job, read_lines, write_lines
from saccade.allocator import keep_freed_memory
from saccade.data.cache.corpus import Corpus, corpus_from_arrays
from saccade.data.sampling.batch_sampler import BatchSampler, EpochPosition
from saccade.data.sampling.batches import collate
from saccade.interface import VocabularySizes
from saccade.models.registry import choose
from saccade.symbols import Symbols
from saccade.training.compute_settings import ComputeSettings, configure_process
from saccade.training.config import TrainingConfig
from saccade.training.loop import make_loop
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.preflight.flops import FlopRate

# the prepared data uses 0, 1, 2, 3 for unknown, pad, begin, end
OWN_IDS = np.array([Symbols.unknown, Symbols.pad, Symbols.begin, Symbols.end])


def main() -> None:
    job = read_job()
    result = {"training": train, "plan": plan, "decoding": decode, "latency": latency}[job["task"]](job)
    print_result({"version": saccade.__version__, "threads": torch.get_num_threads(), **result})


def corpus_of(work: Path) -> Corpus:
    """The prepared data with Saccade's ids of the special tokens."""

    def side(name: str) -> tuple[np.ndarray, np.ndarray]:
        sentences = read_ids(work / f"train.{name}.ids")
        ids = np.fromiter(itertools.chain.from_iterable(sentences), dtype=np.int32)
        special = ids < len(OWN_IDS)
        ids[special] = OWN_IDS[ids[special]]
        lengths = [len(sentence) for sentence in sentences]
        return ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    return corpus_from_arrays(*side("source"), *side("target"))


def plan(job: dict[str, Any]) -> dict[str, Any]:
    """The example indices of every batch in the first epoch, for toolkits that can use given batches."""
    sampler = sampler_of(corpus_of(Path(job["work"])), job)
    batches = [planned.indices.tolist() for planned in sampler.rest_of_epoch(EpochPosition())]
    return {"plan": batches, "padding": sampler.padding}


def sampler_of(corpus: Corpus, job: dict[str, Any]) -> BatchSampler:
    return BatchSampler(corpus, batch_tokens=job["batch_tokens"], seed=1)


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds and tokens of each update, and floating-point operations per target token."""
    settings = TrainingConfig(label_smoothing=job["label_smoothing"])
    configure_process(settings)
    corpus, size = corpus_of(Path(job["work"])), job["size"]
    sampler = sampler_of(corpus, job)
    torch.manual_seed(1)
    sizes = VocabularySizes(size["pieces"], size["pieces"], joint=True)
    model = choose({"preset": size["preset"], "dropout": job["dropout"]}).build(sizes).train()
    device = torch.device("cpu")
    objective = Likelihood(settings.label_smoothing)
    loop = make_loop(
        model,
        lambda _: objective,
        sampler,
        settings,
        learning_rate=lambda step: 1e-4,
        symbols=Symbols(),
        device=device,
        autocast=ComputeSettings(device, "float32").autocast,
    )
    batches = itertools.islice(sampler.rest_of_epoch(EpochPosition()), 3)
    rates = [FlopRate.measure(model, objective, collate(corpus, planned.indices)).per_token for planned in batches]
    updates = UpdateTimer(job["warmup"], job["updates"])
    for update in loop.updates():
        if updates.record(update.target_tokens):
            break
    parameters = sum(parameter.numel() for parameter in model.parameters())
    flops = {"flops_per_token": sum(rates) / len(rates), "parameters": parameters, "padding": sampler.padding}
    return {**updates.result(), **flops}


def load(job: dict[str, Any]) -> Any:
    """The translator with the requested engine; versions without engines are reported as such."""
    keep_freed_memory()  # as `saccade translate` does
    chosen = {"engine": job["engine"], "precision": job["precision"]}
    missing = chosen.keys() - inspect.signature(saccade.load).parameters.keys()
    if missing and job["engine"] != "torch":
        raise SystemExit(f"error: this version has no engine '{job['engine']}': load takes no {min(missing)}")
    found = saccade.load(job["model"], "cpu", **({} if missing else chosen))
    gc.collect()
    gc.freeze()  # as `saccade translate` does
    return found


def limits_of(job: dict[str, Any]) -> dict[str, int]:
    """Settings for outputs of a fixed length, if the job has one."""
    length = job["size"]["length"]
    return {"min_length": length, "max_length": length} if length else {}


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Measure translation with every beam size; loading is not counted."""
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
            part = "encoder"  # applied once per source token
        counts[f"{part if part in ('encoder', 'decoder') else 'output'}_parameters"] += parameter.numel()
    return {"decoded": found, **counts}


def mean_length(tokenizer: Any, texts: list[str]) -> float:
    """Average number of tokens per text, with the end-of-sequence token."""
    return sum(len(ids) + 1 for ids in tokenizer.encode_batch(texts)) / len(texts)


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds per sentence, one sentence at a time."""
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

"""Joey NMT: trains, for speed or for some minutes, and decodes; runs in Joey's environment."""

from __future__ import annotations

import functools
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from joeynmt import prediction
from joeynmt.config import load_config, parse_global_args
from joeynmt.helpers import make_model_dir
from joeynmt.training import TrainManager, train

from bench.peers.job import EnoughError, Updates, read_job, read_lines, tell, write_lines


def main() -> None:
    job = read_job()
    answer = {"training": measure_training, "model": make_model, "decoding": decode}[job["task"]](job)
    tell({"version": version("joeynmt"), "threads": torch.get_num_threads(), **answer})


def measure_training(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds and tokens of single updates."""
    updates = Updates(job["warmup"], job["updates"])

    def after(tokens: int) -> None:
        if updates.tick(tokens):
            raise EnoughError

    run_training(job, after)
    return updates.result()


def make_model(job: dict[str, Any]) -> dict[str, Any]:
    """A model after some minutes, at a moment that the job names, or after some updates."""
    began, done = time.perf_counter(), [0]
    deadline = job.get("deadline") or time.time() + 60 * job["minutes"]

    def after(tokens: int) -> None:
        done[0] += 1
        if time.time() >= deadline or done[0] >= job.get("updates", sys.maxsize):
            raise EnoughError  # its loop saves whatever happens

    run_training(job, after)
    return {"steps": done[0], "training_seconds": time.perf_counter() - began}


def run_training(job: dict[str, Any], after: Any) -> None:
    """Its own training, with a word between two updates."""
    step, before = TrainManager._train_step, []

    def counted(trainer: TrainManager, batch: Any) -> Any:
        if before:
            after(before.pop())
        before.append(int(batch.ntokens))
        return step(trainer, batch)

    TrainManager._train_step = counted
    folder = Path(job["folder"])
    try:
        make_model_dir(folder, overwrite=True)
        train(rank=0, world_size=None, cfg=read_settings(job), skip_test=True)
    except EnoughError:
        return
    raise SystemExit("its training ended before ours did")


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Raw text to raw text with its own model; loading is not counted."""
    sentences = read_lines(job["source"])
    for side in ("source", "target"):  # it wants both; the target is never looked at
        write_lines(f"{job['output']}.{side}", sentences)
    args = parse_global_args(read_settings({**job, "test": job["output"]}), rank=0, mode="test")
    model, _, _, data = prediction.prepare(args, rank=0, mode="test")
    data.reset_indices(random_subset=-1)
    data.has_trg = False  # no scoring within the measured time
    length = job["size"]["length"]
    if length:  # a setting that its own code forgets to hand on
        prediction.search = functools.partial(prediction.search, min_output_length=length)
    found = []
    for beam in job["beams"]:
        settings = args.test._replace(beam_size=beam, max_output_length=length or 100)
        began = time.perf_counter()
        predicted = prediction.predict(
            model=model, data=data, device=args.device, n_gpu=0, args=settings, autocast=args.autocast
        )
        seconds = time.perf_counter() - began
        output = f"{job['output']}.beam{beam}"
        write_lines(output, predicted[2])
        found.append({"beam": beam, "seconds": seconds, "output": output})
    return {"decoded": found}


def read_settings(job: dict[str, Any]) -> dict[str, Any]:
    """The settings by way of a file, as it reads them."""
    path = Path(job["folder"] + ".yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings(job), indent=1))  # JSON is YAML
    return load_config(path)


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the sizes of the job."""
    work, size = Path(job["work"]), job["size"]
    side = {
        "max_length": 100,
        "level": "bpe",
        "lowercase": False,
        "voc_file": str(work / "pieces.txt"),
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": str(work / "pieces.model")},
    }
    stack = {
        "type": "transformer",
        "num_layers": size["layers"],
        "num_heads": size["heads"],
        "embeddings": {"embedding_dim": size["width"], "scale": True, "dropout": 0.0},
        "hidden_size": size["width"],
        "ff_size": size["feed_forward"],
        "dropout": job["dropout"],
        "layer_norm": job.get("layer_norm", "post"),
    }
    return {
        "name": "bench",
        "joeynmt_version": version("joeynmt"),
        "model_dir": job["folder"],
        "use_cuda": False,
        "fp16": False,
        "random_seed": 42,
        "data": {
            "train": str(work / "train"),
            "dev": str(work / "valid"),
            "test": job.get("test", str(work / "test")),
            "dataset_type": "plain",
            "src": {"lang": "source", **side},
            "trg": {"lang": "target", **side},
        },
        "testing": {
            "load_model": str(Path(job["folder"]) / "latest.ckpt"),
            "n_best": 1,
            "beam_size": 5,
            "beam_alpha": 1.0,
            "batch_size": 1024,
            "batch_type": "token",
            "max_output_length": 100,
            "eval_metrics": ["bleu"],
        },
        "training": {
            "optimizer": "adam",
            "adam_betas": [0.9, 0.98],
            "clip_grad_norm": 1.0,
            "normalization": "tokens",
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 2000,
            "learning_rate": 0.005,
            "learning_rate_min": 0.0,
            "label_smoothing": job["label_smoothing"],
            "loss": "crossentropy",
            "batch_size": job["batch_tokens"],
            "batch_type": "token",
            "early_stopping_metric": "bleu",
            "epochs": 100_000,
            "validation_freq": 1_000_000,
            "logging_freq": 50,
            "overwrite": True,
            "shuffle": True,
            "print_valid_sents": [0],
            "keep_best_ckpts": 1,
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "embed_init_gain": 1.0,
            "init_gain": 1.0,
            "bias_initializer": "zeros",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": dict(stack),
        },
    }


if __name__ == "__main__":
    main()

"""Joey NMT: training speed, training for some minutes, and decoding; runs in the environment of Joey NMT."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from joeynmt import prediction
from joeynmt.config import load_config, parse_global_args
from joeynmt.helpers import make_model_dir
from joeynmt.training import TrainManager, train

from bench.peers.job import EnoughUpdatesError, print_result, read_job, read_lines, run_task, write_lines


def main() -> None:
    job = read_job()
    result = run_task(job, run_training, decode)
    print_result({"version": version("joeynmt"), "threads": torch.get_num_threads(), **result})


def run_training(job: dict[str, Any], finished: Callable[[int], bool]) -> None:
    """Run Joey NMT's training until `finished` is true between two updates; Joey NMT then saves the model."""
    step, before = TrainManager._train_step, []

    def counted(trainer: TrainManager, batch: Any) -> Any:
        if before and finished(before.pop()):
            raise EnoughUpdatesError
        before.append(int(batch.ntokens))
        return step(trainer, batch)

    TrainManager._train_step = counted
    folder = Path(job["folder"])
    try:
        make_model_dir(folder, overwrite=True)
        train(rank=0, world_size=None, cfg=read_settings(job), skip_test=True)
    except EnoughUpdatesError:
        return
    raise SystemExit("training ended early")


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Translate with Joey NMT's own model; loading is not counted."""
    sentences = read_lines(job["source"])
    for side in ("source", "target"):  # it requires both; the target is not used
        write_lines(f"{job['output']}.{side}", sentences)
    args = parse_global_args(read_settings({**job, "test": job["output"]}), rank=0, mode="test")
    model, _, _, data = prediction.prepare(args, rank=0, mode="test")
    data.reset_indices(random_subset=-1)
    data.has_trg = False  # no scoring within the measured time
    length = job["size"]["length"]
    if length:  # its own code does not pass this setting on
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
    """The config, written to a file and loaded by Joey NMT."""
    path = Path(job["folder"] + ".yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(settings(job), indent=1))  # JSON is YAML
    return load_config(path)


def settings(job: dict[str, Any]) -> dict[str, Any]:
    """The Joey NMT config with the model size of the job."""
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

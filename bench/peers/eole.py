"""eole: trains, for speed or for some minutes, and decodes; runs in eole's environment."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers
import torch
from eole.bin.run.train import Train, _get_parser
from eole.config.run import PredictConfig
from eole.inference_engine import InferenceEnginePY
from eole.trainer import Trainer

from bench.peers.job import EnoughError, Updates, read_job, read_lines, tell, write_lines


def main() -> None:
    job = read_job()
    answer = {"training": measure_training, "model": make_model, "decoding": decode}[job["task"]](job)
    tell({"version": version("eole"), "threads": torch.get_num_threads(), **answer})
    sys.stderr.flush()
    os._exit(0)  # its data processes would go on


def measure_training(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds and tokens of single updates."""
    updates = Updates(job["warmup"], job["updates"])

    def after(trainer: Trainer, tokens: int) -> None:
        if updates.tick(tokens):
            raise EnoughError

    train(job, after)
    return updates.result()


def make_model(job: dict[str, Any]) -> dict[str, Any]:
    """A model after some minutes, at a moment that the job names, or after some updates."""
    began, done = time.perf_counter(), [0]
    deadline = job.get("deadline") or time.time() + 60 * job["minutes"]

    def after(trainer: Trainer, tokens: int) -> None:
        done[0] += 1
        if time.time() >= deadline or done[0] >= job.get("updates", sys.maxsize):
            trainer.model_saver.save(done[0])
            raise EnoughError

    train(job, after)
    return {"steps": done[0], "training_seconds": time.perf_counter() - began}


def train(job: dict[str, Any], after: Any) -> None:
    """Its own training, with a word after every update."""
    process = Trainer._process_accumulated_batches

    def counted(trainer: Trainer, batches: list[dict[str, Any]], *rest: Any) -> None:
        process(trainer, batches, *rest)
        padding = trainer.train_loss.padding_idx
        after(trainer, sum(int(batch["tgt"][:, 1:].ne(padding).sum()) for batch in batches))

    Trainer._process_accumulated_batches = counted
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "eole.yaml"
    config.write_text(json.dumps(settings(job, folder), indent=1))  # JSON is YAML
    try:
        Train.run(_get_parser().parse_args(["-config", str(config)]))
    except EnoughError:
        return
    raise SystemExit("its training ended before ours did")


def settings(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A configuration with the sizes of the job; only its decoder's norm is another: it has no other choice."""
    size, work = job["size"], Path(job["work"])
    pieces = {"src_subword_model": str(work / "pieces.model"), "tgt_subword_model": str(work / "pieces.model")}
    return {
        "seed": 1234,
        "overwrite": True,
        "report_every": 50,
        "save_data": str(folder / "data"),
        "src_vocab": str(work / "pieces.txt"),
        "tgt_vocab": str(work / "pieces.txt"),
        "src_vocab_size": size["pieces"],
        "tgt_vocab_size": size["pieces"],
        "share_vocab": True,
        "pad_token": "<pad>",
        "data": {
            "corpus_1": {"path_src": str(work / "train.source"), "path_tgt": str(work / "train.target")},
            "valid": {"path_src": str(work / "valid.source"), "path_tgt": str(work / "valid.target")},
        },
        "transforms": ["sentencepiece"],
        "transforms_configs": {"sentencepiece": pieces},
        "training": {
            "model_path": str(folder / "model"),
            "world_size": 0,
            "gpu_ranks": [],
            "compute_dtype": "fp32",
            "train_steps": 1_000_000,
            "valid_steps": 1_000_000,
            "save_checkpoint_steps": 1_000_000,
            "keep_checkpoint": 1,
            "batch_type": "tokens",
            "batch_size": job["batch_tokens"],
            "batch_size_multiple": 1,
            "accum_count": [1],
            "accum_steps": [0],
            "optim": "adam",
            "adam_beta2": 0.98,
            "learning_rate": 0.5,
            "warmup_steps": 1000,
            "decay_method": "noam",
            "bucket_size": 29_000,
            "num_workers": 1,
            "prefetch_factor": 20,
            "dropout": [job["dropout"]],
            "attention_dropout": [0.0],
            "dropout_steps": [0],
            "max_grad_norm": 1.0,
            "label_smoothing": job["label_smoothing"],
            "param_init_method": "xavier_uniform",
            "normalization": "tokens",
        },
        "model": {
            "architecture": "transformer",
            "hidden_size": size["width"],
            "layers": size["layers"],
            "heads": size["heads"],
            "transformer_ff": size["feed_forward"],
            "share_embeddings": True,
            "share_decoder_embeddings": True,
            "embeddings": {
                "word_vec_size": size["width"],
                "position_encoding_type": "SinusoidalInterleaved",
            },
        },
    }


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Raw text to raw text with Saccade's weights, or with its own; loading is not counted."""
    found: list[dict[str, Any]] = []
    first = Path(f"{job['output']}.first")
    write_lines(first, read_lines(job["source"])[:20])
    for beam in job["beams"]:
        predict(job, beam, str(first))  # to warm up
        found.append({"beam": beam, **predict(job, beam, job["source"])})
    return {"decoded": found}


def predict(job: dict[str, Any], beam: int, source: str) -> dict[str, Any]:
    """The seconds of one file, and where its outputs are."""
    length, output = job["size"]["length"], f"{job['output']}.beam{beam}"
    limits = {"min_length": length, "max_length": length} if length else {"max_length": 100}
    pieces = Pieces(job, source) if "export" in job else None
    config = PredictConfig(
        model_path=[job["export"] if pieces else str(Path(job["folder"]) / "model")],
        src=str(pieces.source) if pieces else source,
        output=output,
        world_size=0,
        gpu_ranks=[],
        compute_dtype="fp32",
        beam_size=beam,
        batch_type="tokens",
        batch_size=4096,
        length_penalty="avg",
        **limits,
    )
    engine = InferenceEnginePY(config)
    began = time.perf_counter()
    if pieces:
        pieces.cut()
    engine.infer_file()
    if pieces:
        pieces.join(output)
    return {"seconds": time.perf_counter() - began, "output": output}


class Pieces:
    """Text to and from the pieces of the Saccade model, by way of files: eole reads and writes no other."""

    def __init__(self, job: dict[str, Any], raw: str) -> None:
        document = json.loads(Path(job["tokenizer"]).read_text(encoding="utf-8"))
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document["tokenizer"]))
        self.end = json.loads((Path(job["export"]) / "vocab.json").read_text())["specials"]["eos_token"]
        self.raw, self.source = raw, Path(f"{job['output']}.pieces")

    def cut(self) -> None:
        """The source as pieces, with the end that the model expects."""
        encoded = self.tokenizer.encode_batch(read_lines(self.raw), add_special_tokens=False)
        write_lines(self.source, [" ".join([*encoding.tokens, self.end]) for encoding in encoded])

    def join(self, output: str) -> None:
        """What was written, as text."""
        rows = [[self.tokenizer.token_to_id(piece) for piece in line.split()] for line in read_lines(output)]
        write_lines(output, self.tokenizer.decode_batch(rows, skip_special_tokens=False))


if __name__ == "__main__":
    main()

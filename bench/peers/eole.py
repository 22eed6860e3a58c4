"""eole: training speed, training for some minutes, and decoding; runs in the environment of eole."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tokenizers
import torch
from eole.bin.run.train import Train, _get_parser
from eole.config.run import PredictConfig
from eole.inference_engine import InferenceEnginePY
from eole.trainer import Trainer

from bench.peers.job import EnoughUpdatesError, print_result, read_job, read_lines, run_task, write_lines


def main() -> None:
    job = read_job()
    result = run_task(job, train, decode)
    print_result({"version": version("eole"), "threads": torch.get_num_threads(), **result})
    sys.stderr.flush()
    os._exit(0)  # its data processes would keep running


def train(job: dict[str, Any], finished: Callable[[int], bool]) -> None:
    """Run eole's training until `finished` is true after an update; the task "model" saves the model then."""
    process, steps = Trainer._process_accumulated_batches, itertools.count(1)

    def counted(trainer: Trainer, batches: list[dict[str, Any]], *rest: Any) -> None:
        process(trainer, batches, *rest)
        padding, step = trainer.train_loss.padding_idx, next(steps)
        if finished(sum(int(batch["tgt"][:, 1:].ne(padding).sum()) for batch in batches)):
            if job["task"] == "model":
                trainer.model_saver.save(step)
            raise EnoughUpdatesError

    Trainer._process_accumulated_batches = counted
    folder = Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "eole.yaml"
    config.write_text(json.dumps(settings(job, folder), indent=1))  # JSON is YAML
    try:
        Train.run(_get_parser().parse_args(["-config", str(config)]))
    except EnoughUpdatesError:
        return
    raise SystemExit("training ended early")


def settings(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The eole config with the model size of the job; eole supports only pre-norm."""
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
    """Translate with Saccade's weights, or with eole's own model; loading is not counted."""
    found: list[dict[str, Any]] = []
    first = Path(f"{job['output']}.first")
    write_lines(first, read_lines(job["source"])[:20])
    for beam in job["beams"]:
        predict(job, beam, str(first))  # warmup
        found.append({"beam": beam, **predict(job, beam, job["source"])})
    return {"decoded": found}


def predict(job: dict[str, Any], beam: int, source: str) -> dict[str, Any]:
    """Translate one file; returns the seconds and the path of the outputs."""
    length, output = job["size"]["length"], f"{job['output']}.beam{beam}"
    limits = {"min_length": length, "max_length": length} if length else {"max_length": 100}
    tokens = TokenFiles(job, source) if "export" in job else None
    config = PredictConfig(
        model_path=[job["export"] if tokens else str(Path(job["folder"]) / "model")],
        src=str(tokens.source) if tokens else source,
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
    if tokens:
        tokens.write_source()
    engine.infer_file()
    if tokens:
        tokens.decode_output(output)
    return {"seconds": time.perf_counter() - began, "output": output}


class TokenFiles:
    """Files of tokens of the Saccade model, which eole reads and writes."""

    def __init__(self, job: dict[str, Any], raw: str) -> None:
        document = json.loads(Path(job["tokenizer"]).read_text(encoding="utf-8"))
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document["tokenizer"]))
        self.end = json.loads((Path(job["export"]) / "vocab.json").read_text())["specials"]["eos_token"]
        self.raw, self.source = raw, Path(f"{job['output']}.pieces")

    def write_source(self) -> None:
        """Tokenize the source, with the end-of-sequence token that the model expects."""
        encoded = self.tokenizer.encode_batch(read_lines(self.raw), add_special_tokens=False)
        write_lines(self.source, [" ".join([*encoding.tokens, self.end]) for encoding in encoded])

    def decode_output(self, output: str) -> None:
        """Replace the output tokens by text."""
        rows = [[self.tokenizer.token_to_id(piece) for piece in line.split()] for line in read_lines(output)]
        write_lines(output, self.tokenizer.decode_batch(rows, skip_special_tokens=False))


if __name__ == "__main__":
    main()

"""CTranslate2 with Saccade's weights: batches and single sentences; runs in its own environment.

CT2_USE_MKL selects the back-end at import, so each back-end is a separate job.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import ctranslate2
import tokenizers

from bench.peers.job import print_result, read_job, read_lines, write_lines


def main() -> None:
    job = read_job()
    backend = "MKL" if os.environ.get("CT2_USE_MKL") == "1" else "default"
    result = {"decoding": decode, "latency": latency}[job["task"]](job)
    print_result({"version": ctranslate2.__version__, "backend": backend, **result})


class TextTranslator:
    """Translates text with CTranslate2 and the tokenizer of the Saccade model."""

    def __init__(self, job: dict[str, Any]) -> None:
        workers, threads = job["workers"], job["threads"]
        self.model = ctranslate2.Translator(
            job["export"],
            device="cpu",
            compute_type=job["compute_type"],
            inter_threads=workers,
            intra_threads=threads,
        )
        document = json.loads(Path(job["tokenizer"]).read_text(encoding="utf-8"))
        self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document["tokenizer"]))
        config = json.loads((Path(job["export"]) / "config.json").read_text(encoding="utf-8"))
        # Append the end-of-sequence token unless the model does.
        self.end = [] if config.get("add_source_eos") else [config.get("eos_token", "</s>")]

    def translate(self, lines: list[str], beam: int, length: int | None, batch: int = 0) -> list[str]:
        """Translate all lines; CTranslate2 sorts them and makes batches of at most `batch` tokens."""
        encoded = self.tokenizer.encode_batch(lines, add_special_tokens=False)
        sources = [encoding.tokens + self.end for encoding in encoded]
        limits = {"min_decoding_length": length or 1, "max_decoding_length": length or 100}
        results = self.model.translate_batch(
            sources, beam_size=beam, max_batch_size=batch, batch_type="tokens", length_penalty=1.0, **limits
        )
        ids = [[self.tokenizer.token_to_id(piece) for piece in result.hypotheses[0]] for result in results]
        return list(self.tokenizer.decode_batch(ids, skip_special_tokens=False))


def decode(job: dict[str, Any]) -> dict[str, Any]:
    """Measure every beam size with every batch size; loading is not counted."""
    translator, lines, found = TextTranslator(job), read_lines(job["source"]), []
    for beam in job["beams"]:
        for batch in job["batch_sizes"]:
            translator.translate(lines[:20], beam, job["size"]["length"], batch)
            began = time.perf_counter()
            outputs = translator.translate(lines, beam, job["size"]["length"], batch)
            seconds = time.perf_counter() - began
            output = f"{job['output']}.beam{beam}.{batch}"
            write_lines(output, outputs)
            found.append({"beam": beam, "seconds": seconds, "output": output, "batch": batch})
    return {"decoded": found}


def latency(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds per sentence, one sentence at a time."""
    translator, lines, found = TextTranslator(job), read_lines(job["source"])[: job["sentences"]], []
    for beam in job["beams"]:
        for line in lines[:5]:
            translator.translate([line], beam, job["size"]["length"])
        seconds = []
        for line in lines:
            began = time.perf_counter()
            translator.translate([line], beam, job["size"]["length"])
            seconds.append(time.perf_counter() - began)
        found.append({"beam": beam, "seconds": seconds})
    return {"single": found}


if __name__ == "__main__":
    main()

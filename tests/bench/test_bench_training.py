"""Benchmarks that train, run as commands with tiny data and one or two updates."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict

from bench.paths import ROOT
from bench.peers.job import find_result
from bench.sizes import SIZES


def run(module, *arguments):
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_training_job_of_saccade(tmp_path):
    for side in ("source", "target"):
        (tmp_path / f"train.{side}.ids").write_text("".join(f"{4 + line} {5 + line} 3\n" for line in range(40)))
    job = {"task": "training", "size": asdict(SIZES["tiny"]), "work": str(tmp_path), "batch_tokens": 30}
    job |= {"warmup": 1, "updates": 2, "dropout": 0.3, "label_smoothing": 0.1}
    found = find_result(run("bench.peers.saccade", json.dumps(job)))
    assert found is not None
    assert len(found["seconds"]) == len(found["tokens"]) == 2
    assert found["flops_per_token"] > 6 * 2 * SIZES["tiny"].width * SIZES["tiny"].pieces


def test_long_input():
    settings = ["--batch-tokens=128", "--steps=1", "--written=3", "--radius=4"]
    for kind in ("full", "restricted"):
        found = json.loads(run("bench.long_input", *settings, f"--cell={kind}:64"))
        assert found["training"] > 0
        assert found["decoding"] > 0

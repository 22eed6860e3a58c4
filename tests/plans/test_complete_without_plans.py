"""Without kernels, `plans/` and `csrc/` the toolkit trains and translates; results are equal up to rounding."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import saccade
from saccade.config import merge
from training.small_runs import run_settings, write_pairs

PACKAGE = Path(saccade.__file__).parent
VARIANTS = [(), ("*.so",), ("plans",), ("plans", "csrc")]
"""The names of files and folders that a copy of the package lacks."""

SCRIPT = """
import json, sys
import torch
torch.set_num_threads(1)
import saccade
from saccade.ops.dispatch import kernels_in_use

config, folder, sentences = json.load(sys.stdin)
result = saccade.train(config)
translator = saccade.load(folder, engine="torch")
found = [translator.translate(sentences, beam=beam, max_length=12) for beam in (1, 4)]
plan = type(translator.plan).__name__
try:
    int8 = type(saccade.load(folder, engine="torch", precision="int8").plan).__name__
except saccade.SaccadeError as error:
    int8 = type(error).__name__
answer = {"kernels": kernels_in_use(), "plan": plan, "int8": int8, "step": result.step, "loss": result.validation.loss}
print(json.dumps({**answer, "file": saccade.__file__, "translations": found}))
"""


def copy_of_the_package(folder: Path, *without: str) -> Path:
    """A copy of the package without the files and folders of these names."""
    shutil.copytree(PACKAGE, folder / "saccade", ignore=shutil.ignore_patterns("__pycache__", *without))
    return folder


def trained_and_translated(path: Path, config: dict[str, Any], model_folder: Path) -> dict[str, Any]:
    """Run the script with this copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    environment.pop("SACCADE_KERNELS", None)  # the kernels are those of the copy
    given = json.dumps([config, str(model_folder), ["ab ba", "cad dac ee", "fg", "ee ab fg cad"]])
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, input=given, env=environment, cwd=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["file"]).parent.parent == path
    return found


def test_training_and_translating(tmp_path):
    write_pairs(tmp_path, 120, 4)
    settings = run_settings(tmp_path, hold_out=20, max_steps=3, validate_every=3, metrics=["bleu"])
    # Without dropout: kernels and references draw other random numbers.
    config = merge(settings, {"model": {"dropout": 0.0}, "decoding": {"beam": 2}})
    found = {}
    for without in VARIANTS:
        path = tmp_path / f"without {' '.join(without)}"
        copy_of_the_package(path, *without)
        run = {**config, "output": str(path / "run")}
        # All translate with the first model: rounding would make others of their own.
        found[without] = trained_and_translated(path, run, tmp_path / "without " / "run")
    complete = found[()]
    assert complete["plan"] == "TransformerPlan"
    for without, each in found.items():
        assert each["kernels"] == (not {"*.so", "csrc"} & set(without) and any(PACKAGE.glob("csrc/*.so")))
        assert each["plan"] == ("Transformer" if "plans" in without else "TransformerPlan")
        has_int8 = each["kernels"] and "plans" not in without
        assert each["int8"] == (complete["int8"] if has_int8 else "UsageError")
        assert each["step"] == 3
        assert each["loss"] == pytest.approx(complete["loss"], rel=1e-4)
        assert each["translations"] == complete["translations"]
    assert any(complete["translations"][0])

"""Without compiled kernels, or without plans, the toolkit trains and translates; results are equal up to rounding."""

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
from training.small_runs import MODEL, write_pairs

PACKAGE = Path(saccade.__file__).parent

MODEL_AS_PLAN = """
def plan_for(model, *, quantize=False):
    return model
"""

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
answer = {"kernels": kernels_in_use(), "plan": plan, "step": result.step, "loss": result.validation.loss}
print(json.dumps({**answer, "file": saccade.__file__, "translations": found}))
"""


def copy_of_the_package(folder: Path, *, kernels: bool, plans: bool) -> Path:
    """The package with or without compiled kernels, and with all of plans/ or an entry that returns the model."""
    shutil.copytree(
        PACKAGE, folder / "saccade", ignore=shutil.ignore_patterns("__pycache__", *([] if kernels else ["*.so"]))
    )
    if not plans:
        shutil.rmtree(folder / "saccade" / "plans")
        (folder / "saccade" / "plans").mkdir()
        (folder / "saccade" / "plans" / "__init__.py").write_text("")
        (folder / "saccade" / "plans" / "plan_selection.py").write_text(MODEL_AS_PLAN)
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
    config = {
        "model": {**MODEL, "dropout": 0.0},  # kernels and references draw other random numbers
        "data": {
            "source": str(tmp_path / "train.src"),
            "target": str(tmp_path / "train.tgt"),
            "hold_out": 20,
            "tokenizer": "char",
            "batch_tokens": 400,
        },
        "training": {"max_steps": 3, "validate_every": 3, "warmup_steps": 4, "metrics": ["bleu"], "device": "cpu"},
        "decoding": {"beam": 2},
    }
    found = {}
    for kernels, plans in [(True, True), (False, True), (True, False)]:
        path = tmp_path / f"kernels {kernels}, plans {plans}"
        copy_of_the_package(path, kernels=kernels, plans=plans)
        run = {**config, "output": str(path / "run")}
        # All translate with the first model: rounding would make others of their own.
        found[kernels, plans] = trained_and_translated(path, run, tmp_path / "kernels True, plans True" / "run")
    complete = found[True, True]
    assert complete["plan"] == "TransformerPlan"
    for (kernels, plans), each in found.items():
        assert each["kernels"] == (kernels and any(PACKAGE.glob("csrc/*.so")))
        assert each["plan"] == ("TransformerPlan" if plans else "Transformer")
        assert each["step"] == 3
        assert each["loss"] == pytest.approx(complete["loss"], rel=1e-4)
        assert each["translations"] == complete["translations"]
    assert any(complete["translations"][0])

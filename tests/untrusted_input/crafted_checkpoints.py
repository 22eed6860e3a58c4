"""Training checkpoints that are damaged or forged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from untrusted_input.case import Catalog
from untrusted_input.crafted_configs import NOT_JSON
from untrusted_input.crafted_manifests import add_damage
from untrusted_input.crafted_weights import WEIGHTS
from untrusted_input.pristine import change_json, update_manifest

CHECKPOINTS = Catalog()
"""Each case changes a valid checkpoint; most update the manifest."""

STATE, OPTIMIZER = "state.json", "optimizer.safetensors"

for name in (STATE, OPTIMIZER, "model.safetensors"):
    CHECKPOINTS.add(f"without_{name}", lambda folder, name=name: (folder / name).unlink(), name, "")
    add_damage(CHECKPOINTS, name)
CHECKPOINTS.add("without_manifest", lambda folder: (folder / "manifest.json").unlink(), "manifest.json", "")

for case in WEIGHTS.cases:
    pattern = "tensor"
    CHECKPOINTS.add(f"weights_{case.name}", case.make, case.file, pattern)

for label, (content, pattern) in NOT_JSON.items():
    raw = content if isinstance(content, bytes) else content.encode("utf-8")

    def write_state(folder: Path, raw: bytes = raw) -> None:
        (folder / STATE).write_bytes(raw)
        update_manifest(folder)

    CHECKPOINTS.add(f"state_{label}", write_state, STATE, pattern)


def state(name: str, change: Callable[[Any], object], pattern: str) -> None:
    """Add a case with another state."""

    def make(folder: Path) -> None:
        change_json(folder / STATE, change)
        update_manifest(folder)

    CHECKPOINTS.add(f"state_{name}", make, STATE, pattern)


def progress(name: str, pattern: str, **values: Any) -> None:
    """Add a case with another training progress."""
    state(name, lambda old: old["progress"].update(values), pattern)


progress("of_a_negative_step", "step -1", step=-1)
progress("of_another_step", "step 999", step=999)
progress("of_a_text_for_a_step", "progress.step .*'three'", step="three")
progress("of_a_list_for_a_step", "progress.step", step=[3])
progress("of_half_a_step", "progress.step .*3.5", step=3.5)
progress("of_no_step", "progress.step .*None", step=None)
progress("of_a_step_of_many_digits", "step", step=10**4000)
progress("of_a_negative_time", "negative", seconds=-1.0)
progress("of_negative_tokens", "negative", source_tokens=-5)
progress("of_negative_patience", "negative", stale=-1)
progress("of_a_path_for_the_best", "progress.best .*'../../x'", best="../../x")
progress("of_a_text_for_recent_losses", "progress.recent", recent="x")
progress("of_groups_of_recent_losses", "progress.recent", recent=[{"loss": {"a": 1}}])
progress("with_more", "", surprise=1)
state("without_progress", lambda values: values.pop("progress"), "progress")
state("of_a_list_for_progress", lambda values: values.update(progress=[1]), "progress")
state("of_a_negative_position", lambda values: values["progress"]["position"].update(epoch=-1), "negative")
state("of_text_for_a_position", lambda values: values["progress"].update(position="x"), "progress.position")
state("of_negative_logs", lambda values: values.update(logged={"metrics.csv": -5}), "negative")
state("of_a_list_of_logs", lambda values: values.update(logged=["../../etc/passwd"]), "logged")
state("with_more_parts", lambda values: values.update(code="import os"), "")


def optimizer(name: str, change: Callable[[dict[str, torch.Tensor], str], object], pattern: str) -> None:
    """Add a case with another state of the optimizer; the change gets the name of a parameter."""

    def make(folder: Path) -> None:
        tensors = {key: tensor.clone() for key, tensor in load_file(folder / OPTIMIZER).items()}
        change(tensors, next(iter(tensors)).rpartition("/")[0])
        save_file(tensors, folder / OPTIMIZER)
        update_manifest(folder)

    CHECKPOINTS.add(f"optimizer_{name}", make, OPTIMIZER, pattern)


optimizer(
    "of_another_model",
    lambda tensors, name: tensors.update({"backdoor/step": torch.ones(())}),
    "backdoor/step",
)
optimizer(
    "with_another_part",
    lambda tensors, name: tensors.update({f"{name}/hook": torch.ones(())}),
    "/hook",
)
optimizer("without_a_part", lambda tensors, name: tensors.pop(f"{name}/exp_avg"), "decoder.0.attention.output.bias")
optimizer("of_another_shape", lambda tensors, name: tensors.update({f"{name}/exp_avg": torch.ones(3)}), r"\(3,\)")
optimizer("of_one_number", lambda tensors, name: tensors.update({f"{name}/exp_avg": torch.ones(())}), r"\(\)")
optimizer("of_many_steps", lambda tensors, name: tensors.update({f"{name}/step": torch.ones(3)}), r"\(3,\).* \(\)")
optimizer(
    "of_another_kind", lambda tensors, name: tensors.update({f"{name}/step": torch.ones((), dtype=int)}), "float32"
)
optimizer("not_a_number", lambda tensors, name: tensors[f"{name}/exp_avg_sq"].fill_(torch.nan), "NaN")

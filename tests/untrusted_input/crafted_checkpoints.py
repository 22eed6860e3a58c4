"""Training checkpoints that are damaged, or made up by somebody else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from untrusted_input.case import Catalogue
from untrusted_input.crafted_configs import NOT_JSON
from untrusted_input.crafted_manifests import listed, write_manifest
from untrusted_input.crafted_weights import WEIGHTS
from untrusted_input.pristine import change_json, seal_again

CHECKPOINTS = Catalogue()
"""Each case spoils a sound checkpoint; most seal it again."""

STATE, OPTIMIZER = "state.json", "optimizer.safetensors"

for name in (STATE, OPTIMIZER, "model.safetensors"):
    CHECKPOINTS.add(f"without_{name}", lambda folder, name=name: (folder / name).unlink(), name, "is missing")
    CHECKPOINTS.add(f"empty_{name}", lambda folder, name=name: os.truncate(folder / name, 0), name, "size differs")
    CHECKPOINTS.add(
        f"half_of_{name}",
        lambda folder, name=name: os.truncate(folder / name, (folder / name).stat().st_size // 2),
        name,
        "size differs",
    )
    CHECKPOINTS.add(
        f"manifest_leaves_out_{name}",
        lambda folder, name=name: write_manifest(
            folder, {"files": {other: entry for other, entry in listed(folder).items() if other != name}}
        ),
        name,
        "is not in the manifest",
    )
CHECKPOINTS.add("without_manifest", lambda folder: (folder / "manifest.json").unlink(), "manifest.json", "No such file")

for case in WEIGHTS.cases:
    says = "tensor|safetensors|offset|header|invalid|dtype|metadata|head|infinite"
    CHECKPOINTS.add(f"weights_{case.name}", case.make, case.file, says)

for label, (content, says) in NOT_JSON.items():
    raw = content if isinstance(content, bytes) else content.encode("utf-8")
    CHECKPOINTS.add(
        f"state_{label}",
        lambda folder, raw=raw: ((folder / STATE).write_bytes(raw) and seal_again(folder)) or seal_again(folder),
        STATE,
        says,
    )


def state(name: str, change: Callable[[Any], object], says: str) -> None:
    """A case with another state."""

    def make(folder: Path) -> None:
        change_json(folder / STATE, change)
        seal_again(folder)

    CHECKPOINTS.add(f"state_{name}", make, STATE, says)


def progress(name: str, says: str, **values: Any) -> None:
    """A case with another place in the run."""
    state(name, lambda old: old["progress"].update(values), says)


progress("of_a_negative_step", "step -1", step=-1)
progress("of_another_step", "step 999", step=999)
progress("of_a_text_for_a_step", "progress.step cannot be 'three'", step="three")
progress("of_a_list_for_a_step", "progress.step cannot be", step=[3])
progress("of_half_a_step", "progress.step cannot be 3.5", step=3.5)
progress("of_no_step", "progress.step cannot be None", step=None)
progress("of_a_step_of_many_digits", "cannot be|step", step=10**4000)
progress("of_a_negative_time", "a count below 0", seconds=-1.0)
progress("of_negative_tokens", "a count below 0", source_tokens=-5)
progress("of_negative_patience", "a count below 0", stale=-1)
progress("of_a_path_for_the_best", "progress.best cannot be '../../x'", best="../../x")
progress("of_a_text_for_recent_losses", "progress.recent cannot be", recent="x")
progress("of_groups_of_recent_losses", "progress.recent", recent=[{"loss": {"a": 1}}])
progress("with_more", "unknown checkpoint format", surprise=1)
state("without_progress", lambda values: values.pop("progress"), "progress")
state("of_a_list_for_progress", lambda values: values.update(progress=[1]), "progress cannot be")
state("of_a_negative_position", lambda values: values["progress"]["position"].update(epoch=-1), "a count below 0")
state("of_text_for_a_position", lambda values: values["progress"].update(position="x"), "progress.position cannot be")
state("of_negative_logs", lambda values: values.update(logged={"metrics.csv": -5}), "a count below 0")
state("of_a_list_of_logs", lambda values: values.update(logged=["../../etc/passwd"]), "logged cannot be")
state("with_more_parts", lambda values: values.update(code="import os"), "unknown checkpoint format")


def optimizer(name: str, change: Callable[[dict[str, torch.Tensor], str], object], says: str) -> None:
    """A case with another state of the optimizer; the change gets the name of a parameter."""

    def make(folder: Path) -> None:
        tensors = {key: tensor.clone() for key, tensor in load_file(folder / OPTIMIZER).items()}
        change(tensors, next(iter(tensors)).rpartition("/")[0])
        save_file(tensors, folder / OPTIMIZER)
        seal_again(folder)

    CHECKPOINTS.add(f"optimizer_{name}", make, OPTIMIZER, says)


optimizer(
    "of_another_model",
    lambda tensors, name: tensors.update({"backdoor/step": torch.ones(())}),
    "unexpected optimizer state",
)
optimizer(
    "with_another_part",
    lambda tensors, name: tensors.update({f"{name}/hook": torch.ones(())}),
    "unexpected optimizer state",
)
optimizer("without_a_part", lambda tensors, name: tensors.pop(f"{name}/exp_avg"), "incomplete")
optimizer("of_another_shape", lambda tensors, name: tensors.update({f"{name}/exp_avg": torch.ones(3)}), r"shape \(3,\)")
optimizer("of_one_number", lambda tensors, name: tensors.update({f"{name}/exp_avg": torch.ones(())}), r"shape \(\)")
optimizer(
    "of_many_steps", lambda tensors, name: tensors.update({f"{name}/step": torch.ones(3)}), r"is \(3,\), not \(\)"
)
optimizer(
    "of_another_kind", lambda tensors, name: tensors.update({f"{name}/step": torch.ones((), dtype=int)}), "float32"
)
optimizer("not_a_number", lambda tensors, name: tensors[f"{name}/exp_avg_sq"].fill_(torch.nan), "infinite or NaN")

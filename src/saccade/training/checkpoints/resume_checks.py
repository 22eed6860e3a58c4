"""Which settings and which environment a resumed run must keep to be bitwise equal to an uninterrupted one."""

from __future__ import annotations

import platform
import unicodedata
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from saccade.errors import SaccadeError
from saccade.ops.dispatch import kernel_level
from saccade.training.config import RunConfig, TrainingConfig
from saccade.version import __version__

FIXED = ("seed", "start", "objective", "risk", "r_drop", "optimizer", "accumulate", "metrics", "criterion")
"""Training settings that cannot change on resume: the metrics of the run would not be comparable."""

HARMLESS = ("max_minutes", "keep_checkpoints", "average_last", "patience", "samples", "log_to", "threads", "device")
"""Training settings that do not change the updates, or that the environment check covers."""

LENGTH = ("max_steps", "max_epochs")
"""Training settings that change the updates only if the schedule decays towards the end of the run."""

HARMLESS_DATA = ("cache", "workers", "source", "target", "valid_source", "valid_target")
"""Data settings about location and speed; a digest covers the content of the files."""


def check_resumable(before: RunConfig, after: RunConfig) -> None:
    """Reject changes of model, data and fixed training settings."""
    changed = ["model"] if before.model != after.model else []
    changed += [f"data.{name}" for name in differing(before.data, after.data) if name not in HARMLESS_DATA]
    changed += [f"training.{name}" for name in differing(before.training, after.training) if name in FIXED]
    if changed:
        raise SaccadeError(
            f"settings that a resumed run cannot change: {', '.join(changed)}".replace("_", "-"),
            hint="leave these settings as they were, or start a new run with another --output",
        )


def result_changing_settings(before: RunConfig, after: RunConfig) -> list[str]:
    """Describe the changed settings that change the result of the run."""
    changes: list[str] = []
    for group, old, new in (
        ("training", before.training, after.training),
        ("decoding", before.decoding, after.decoding),
    ):
        for name in differing(old, new):
            if group == "training" and (name in HARMLESS or (name in LENGTH and not depends_on_end(after.training))):
                continue
            changes.append(f"{group}.{name} {getattr(old, name)} -> {getattr(new, name)}".replace("_", "-"))
    return changes


def differing(before: Any, after: Any) -> list[str]:
    """Return the names of the settings in which two configs of the same class differ."""
    return [name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)]


def depends_on_end(training: TrainingConfig) -> bool:
    """Return whether the learning rate depends on the length of the run."""
    return training.schedule in ("linear", "cosine")


def numeric_environment(device: torch.device, processes: int, precision: str) -> dict[str, str]:
    """Return versions and hardware that tokenization and bitwise results depend on, besides the config."""
    facts = {
        "saccade": __version__,
        "torch": torch.__version__,
        "tokenizers": version("tokenizers"),
        "unicode": unicodedata.unidata_version,
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "device": device.type if device.type != "cuda" else torch.cuda.get_device_name(device),
        "precision": precision,
        "threads": str(torch.get_num_threads()),
        "processes": str(processes),
        "kernels": kernel_level() or "none",
    }
    return facts if device.type == "cpu" else facts | {"threads": "any", "processor": "any", "kernels": "any"}


def environment_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Describe how the environment differs from that of the checkpoint."""
    names = [name for name in after if before.get(name) != after[name]]
    return [f"{name} {before.get(name, 'unknown')} -> {after[name]}" for name in names]

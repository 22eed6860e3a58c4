"""What a resumed run must keep to be, bit for bit, the run that was interrupted; and what is said where it does not."""

from __future__ import annotations

import platform
import unicodedata
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch

from saccade.csrc.library import level
from saccade.errors import SaccadeError
from saccade.training.config import RunConfig, TrainingConfig
from saccade.version import __version__

KEPT = ("seed", "start", "objective", "risk", "consistency", "optimizer", "accumulate", "metrics", "criterion")
"""Settings of the training that a run keeps for life: with others its figures would not belong together."""

FREE = ("max_minutes", "keep_checkpoints", "average_last", "patience", "samples", "threads", "device")
"""Settings that end a run, or come after it, or are told by the environment."""

ENDS = ("max_steps", "max_epochs")
"""Settings that end a run, and shape it only if the schedule comes down to its end."""

DATA_FREE = ("cache", "workers", "source", "target", "valid_source", "valid_target")
"""Settings of the data that say where it lies and how fast it is prepared; a digest guards its content."""


def check_resumable(before: RunConfig, after: RunConfig) -> None:
    """Refuse changes under which the rest of a run would not be the rest of that run."""
    changed = ["model"] if before.model != after.model else []
    changed += [f"data.{name}" for name in differing(before.data, after.data) if name not in DATA_FREE]
    changed += [f"training.{name}" for name in differing(before.training, after.training) if name in KEPT]
    if changed:
        raise SaccadeError(
            f"a resumed run keeps its {', '.join(changed)}".replace("_", "-"),
            do="leave these settings as they were, or start a new run with another --output",
        )


def shaping_changes(before: RunConfig, after: RunConfig) -> list[str]:
    """The changed settings that make the rest of the run another one than it would have been, in words."""
    words: list[str] = []
    for group, old, new in (
        ("training", before.training, after.training),
        ("decoding", before.decoding, after.decoding),
    ):
        for name in differing(old, new):
            if group == "training" and (name in FREE or (name in ENDS and not comes_down(after.training))):
                continue
            words.append(f"{group}.{name} {getattr(old, name)} -> {getattr(new, name)}".replace("_", "-"))
    return words


def differing(before: Any, after: Any) -> list[str]:
    """The names of the settings in which two configs of one kind differ."""
    return [name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)]


def comes_down(training: TrainingConfig) -> bool:
    """Whether the learning rate depends on where the run ends."""
    return training.schedule in ("linear", "cosine")


def arithmetic(device: torch.device, processes: int, precision: str) -> dict[str, str]:
    """All that decides, besides the config, which tokens a text becomes and in which order numbers are added."""
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
        "kernels": level() or "none",
    }
    return facts if device.type == "cpu" else facts | {"threads": "any", "processor": "any", "kernels": "any"}


def environment_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """In what the machine differs from the one of the checkpoint, in words."""
    names = [name for name in after if before.get(name) != after[name]]
    return [f"{name} {before.get(name, 'unknown')} -> {after[name]}" for name in names]

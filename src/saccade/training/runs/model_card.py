"""The model card: the README of a model folder."""

from __future__ import annotations

from itertools import zip_longest

from saccade.data.config import DataConfig
from saccade.models.registry import Choice, load_family
from saccade.training.loop import Progress
from saccade.training.validation import Validation
from saccade.version import __version__


def model_card(
    data: DataConfig, choice: Choice, progress: Progress, parameters: int, validation: Validation | None, note: str = ""
) -> str:
    """Return the model card as Markdown."""
    lines = [
        f"# {choice.family} ({parameters:,} parameters)",
        "",
        f"Trained with Saccade {__version__}; architecture of {load_family(choice.family).paper}.",
        f"Translates raw text: `saccade translate THIS_FOLDER < in > out`. {note}".rstrip(),
        "",
        "| | |",
        "|---|---|",
        *(
            f"| training data | `{source}`" + (f" to `{target}` |" if target else " |")
            for source, target in zip_longest(data.source, data.target)
        ),
        f"| tokens | {data.source_kind}"
        + (f" to {data.target_kind}" if data.target_kind != data.source_kind else "")
        + " |",
        f"| updates | {progress.step:,} ({progress.target_tokens:,} target tokens) |",
        f"| training cost | {progress.flops:.2e} FLOPs, {progress.seconds / 60:.1f} minutes |",
    ]
    if validation:
        lines.append(f"| validation | {validation} |")
    settings = ", ".join(f"{name} {value}" for name, value in choice.config.model_dump().items())
    return "\n".join([*lines, f"| settings | {settings} |", ""])

"""The model card: what a folder holds, in a person's words."""

from __future__ import annotations

from itertools import zip_longest

from saccade.models.registry import Choice, load_family
from saccade.training.config import RunConfig
from saccade.training.loop import Progress
from saccade.training.validation import Validation
from saccade.version import __version__


def model_card(
    config: RunConfig, choice: Choice, progress: Progress, parameters: int, found: Validation | None, note: str = ""
) -> str:
    """Markdown for the folder's README."""
    data = config.data
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
        f"| tokens | {data.tokenizer}"
        + (f" to {data.target_kind}" if data.target_kind != data.tokenizer else "")
        + " |",
        f"| updates | {progress.step:,} ({progress.target_tokens:,} target tokens) |",
        f"| training cost | {progress.flops:.2e} FLOPs, {progress.seconds / 60:.1f} minutes |",
    ]
    if found:
        lines.append(f"| validation | {found} |")
    settings = ", ".join(f"{name} {value}" for name, value in choice.config.model_dump().items())
    return "\n".join([*lines, f"| settings | {settings} |", ""])

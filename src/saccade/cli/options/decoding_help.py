"""Help on the settings of decoding, with the defaults of the model that the command line names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saccade.cli.options.help_page import SettingsHelp
from saccade.errors import SaccadeError

SHORTCUTS = {
    f"--{name}": f"decoding.{name}"
    for name in ("beam", "nbest", "sample", "temperature", "top-k", "top-p", "seed", "batch-tokens")
}
"""Plain options of `saccade translate` that set a decoding setting."""


def describe_decoding(context: Any) -> SettingsHelp:
    """Describe every decoding setting, with the defaults of the model RUN."""
    from saccade.config_help import describe
    from saccade.decoding.config import DecodingConfig

    run = context.params.get("run")
    values = None if run is None else decoding_defaults(Path(run))
    settings = describe(DecodingConfig, values, "decoding.")
    whose = "A model may have other defaults: name its RUN." if values is None else f"The defaults are those of {run}."
    return SettingsHelp(settings, whose)


def decoding_defaults(run: Path) -> dict[str, Any] | None:
    """Return the decoding defaults of a model, None if there is no model."""
    from saccade.config import build
    from saccade.decoding.config import DecodingConfig
    from saccade.folder import read_json
    from saccade.model_folder import GENERATION, find_model_folder

    try:
        path = find_model_folder(run) / GENERATION
        return build(DecodingConfig, read_json(path), where=str(path)).model_dump()
    except (OSError, SaccadeError):
        return None

"""The `--device` option of every verb that loads a model."""

from __future__ import annotations

from typing import Annotated

import typer

Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 … or mps.")]

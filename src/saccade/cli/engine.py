"""The `--engine` and `--precision` options of every verb that translates."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

EngineName = Literal["auto", "torch", "ctranslate2"]
PrecisionName = Literal["float32", "int8"]

Engine = Annotated[
    EngineName,
    typer.Option(help="What computes: auto is torch, or ctranslate2 on a CPU for which torch has no kernels."),
]
Precision = Annotated[
    PrecisionName,
    typer.Option(help="int8 is faster with many lines, on a CPU, and gives other outputs now and then."),
]

"""The `--engine` and `--precision` options of every verb that translates."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

EngineName = Literal["auto", "torch", "ctranslate2"]
PrecisionName = Literal["float32", "int8"]

Engine = Annotated[
    EngineName,
    typer.Option(help="What computes: auto takes the faster one, ctranslate2 only where its outputs are the same."),
]
Precision = Annotated[
    PrecisionName,
    typer.Option(help="With --engine ctranslate2: int8 is faster and gives other outputs now and then."),
]

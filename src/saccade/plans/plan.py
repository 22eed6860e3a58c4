"""The plan of a model: what runs in inference in its stead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from saccade.interface import Translates
from saccade.models.convs2s import ConvS2S
from saccade.models.transformer import Transformer
from saccade.plans.convs2s_plan import ConvS2SPlan
from saccade.plans.quantization import QuantizedPlan
from saccade.plans.transformer_plan import TransformerPlan

PLANS: Mapping[type[nn.Module], Callable[..., Any]] = {Transformer: TransformerPlan, ConvS2S: ConvS2SPlan}


def plan_for(model: Translates, *, quantize: bool = False) -> Translates:
    """A plan of a model, with int8 weights if asked for, or the model itself if nothing of it is compiled.

    A plan has the methods of the interface, does not modify the model, and follows it when its weights change.
    """
    plan = PLANS.get(type(model))  # type: ignore[arg-type]
    if plan is not None:
        return plan(model, quantize=quantize)  # type: ignore[no-any-return]
    return QuantizedPlan(model) if quantize else model  # type: ignore[return-value]

"""Selection of the inference plan for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from saccade.decoding.ensemble import Ensemble
from saccade.interface import EncoderDecoder
from saccade.models.convs2s import ConvS2S
from saccade.models.transformer import Transformer
from saccade.plans.convs2s_plan import ConvS2SPlan
from saccade.plans.quantization import QuantizedPlan
from saccade.plans.transformer_plan import TransformerPlan

PLANS: Mapping[type[nn.Module], Callable[..., Any]] = {Transformer: TransformerPlan, ConvS2S: ConvS2SPlan}


def plan_for(model: EncoderDecoder, *, quantize: bool = False) -> EncoderDecoder:
    """Return the plan for a model, with int8 weights if `quantize`, or the model itself if there is no plan for it.

    A plan has the methods of the interface, does not modify the model, and is rebuilt when its weights change.
    """
    if isinstance(model, Ensemble):
        return model.with_members([plan_for(member, quantize=quantize) for member in model.members])
    plan = PLANS.get(type(model))  # type: ignore[arg-type]
    if plan is not None:
        return plan(model, quantize=quantize)  # type: ignore[no-any-return]
    return QuantizedPlan(model) if quantize else model  # type: ignore[return-value]

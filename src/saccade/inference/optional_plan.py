"""The inference plan of a model, in a package with `plans/`; otherwise the model itself."""

from __future__ import annotations

from saccade.errors import UsageError
from saccade.interface import EncoderDecoder


def inference_plan(model: EncoderDecoder, *, quantize: bool = False) -> EncoderDecoder:
    """Return the plan of a model, with int8 weights if `quantize`; the model itself in a package without `plans/`.

    The import is here because plans are optional: without them everything runs, only more slowly.
    """
    try:
        from saccade.plans.plan_selection import plan_for
    except ModuleNotFoundError as error:
        if error.name not in ("saccade.plans", "saccade.plans.plan_selection"):
            raise
        if quantize:
            raise UsageError("this package has no plans, which int8 needs", hint="use --precision float32") from error
        return model
    return plan_for(model, quantize=quantize)

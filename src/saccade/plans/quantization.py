"""Int8 weights of a whole model."""

from __future__ import annotations

from torch import nn

from saccade.ops.int8_linear import QuantizedParameter, quantizable


def quantize_model(model: nn.Module) -> int:
    """Replace every matrix among the parameters of a model by one with an int8 form; returns how many there are.

    A parameter that several modules share stays shared. The float32 values stay for embeddings and for gradients.
    """
    replaced: dict[int, QuantizedParameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in replaced and quantizable(parameter.detach()):
                replaced[id(parameter)] = QuantizedParameter.of(parameter)
            if id(parameter) in replaced:
                module._parameters[name] = replaced[id(parameter)]
    return len(replaced)

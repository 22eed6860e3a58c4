"""The fingerprint of the model that a plan was built from, to detect changes."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from torch import Tensor, nn

from saccade.ops.dispatch import runs_on_kernel

REGISTRIES = ("_modules", "_parameters", "_buffers")
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
SETTINGS = (bool, int, float, str, tuple, type(None))
"""Types of the attributes of a module that are settings, such as `training`, `heads` or `eps`."""


class Fingerprint:
    """The modules, parameters, buffers, settings and number of hooks of a model, and the versions of its tensors.

    The version counter of a tensor shows its in-place changes, except for writes through `.data`, writes to inference
    tensors, and steps of PyTorch's fused optimizers, which `make_optimizer` counts itself.
    """

    def __init__(self, model: nn.Module) -> None:
        attributes = [vars(module) for module in model.modules()]
        self.attributes = attributes
        self.registries = [own[name] for own in attributes for name in REGISTRIES]
        self.sized = [*self.registries, *(own[name] for own in attributes for name in HOOKS)]
        names = ([name for name, value in own.items() if isinstance(value, SETTINGS)] for own in attributes)
        self.settings = [itemgetter(*own) for own in names]
        self.tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
        self.counted = [tensor for tensor in self.tensors if not tensor.is_inference()]
        # An id can be used again after its object is deleted: the objects are kept alive.
        self.kept = list(chain.from_iterable(map(dict.values, self.registries)))
        self.ran_on_kernels = self.runs_on_kernels()
        self.found = self.read()

    def read(self) -> tuple[Any, ...]:
        """Return all values that are compared, in few calls: `matches` is part of the latency of a sentence."""
        return (
            list(map(len, self.sized)),
            list(map(id, chain.from_iterable([registry.values() for registry in self.registries if registry]))),
            [get(own) for get, own in zip(self.settings, self.attributes, strict=True)],
            list(map(Tensor.data_ptr, self.tensors)),
            list(map(attrgetter("_version"), self.counted)),
        )

    def runs_on_kernels(self) -> bool:
        """Return whether all weights can be read by kernels now."""
        return all(map(runs_on_kernel, self.tensors[:1]))

    def matches(self) -> bool:
        """Return whether the model is unchanged, and no kernels have become available since."""
        try:
            same = self.read() == self.found
        except KeyError:  # a setting was deleted
            return False
        return same and (self.ran_on_kernels or not self.runs_on_kernels())


def has_hooks(model: nn.Module) -> bool:
    """Return whether some module has forward hooks."""
    return any(getattr(module, name) for module in model.modules() for name in HOOKS)

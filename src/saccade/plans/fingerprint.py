"""What a plan was built from: the modules, weights and mode of a model, so that a change of any of them is noticed."""

from __future__ import annotations

from torch import nn

from saccade.ops.int8_linear import version_of


class Fingerprint:
    """Identity of all modules and parameters, versions of all weights, and training mode of a model.

    The version counter of a weight shows its in-place changes, except for writes through `.data`, writes to inference
    tensors, and steps of PyTorch's fused optimizers, which `make_optimizer` counts itself.
    """

    def __init__(self, model: nn.Module) -> None:
        modules, self.weights = list(model.modules()), list(model.parameters())
        self.parts = [part for one in modules for part in (one._modules, one._parameters)]
        self.sizes = list(map(len, self.parts))
        slots = [(part, name) for part in self.parts for name in part]
        self.slots = [*slots, *((module.__dict__, "training") for module in modules)]
        self.values = [slot.get(name) for slot, name in self.slots]
        self.versions = [version_of(weight) for weight in self.weights]

    def holds(self) -> bool:
        """Whether nothing has changed."""
        slots = zip(self.slots, self.values, strict=True)
        same = all([slot.get(name) is value for (slot, name), value in slots])  # noqa: C419  a list is twice as fast
        same = same and self.sizes == list(map(len, self.parts))  # nothing was added
        return same and self.versions == [version_of(weight) for weight in self.weights]

from __future__ import annotations

import copy

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch, registered_models
from saccade.ops.dispatch import without_kernels
from saccade.training.compute_settings import compile_layers
from saccade.training.objectives.likelihood import Likelihood

pytestmark = pytest.mark.filterwarnings("default")  # torch warns of itself while it compiles


def loss_and_gradients(model, batch):
    total = Likelihood(0.1).loss(model, batch).total
    return total.detach(), torch.autograd.grad(total, list(model.parameters()), allow_unused=True)


def check_compiled(subject, backend):
    """Compiled layers give the loss and the gradients of plain ones, for batches of several shapes."""
    plain = build_model(subject)
    compiled = copy.deepcopy(plain)
    assert compile_layers(compiled, backend)
    assert compiled.state_dict().keys() == plain.state_dict().keys()
    with without_kernels():  # as on a GPU, where layers are called one by one
        for lengths in ([3, 2], [7, 5, 4], [1]):
            batch = make_batch(lengths, lengths[::-1])
            assert_close(loss_and_gradients(compiled, batch), loss_and_gradients(plain, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_traced_layers_equal_plain_layers(norm):
    check_compiled(("transformer", {"norm": norm}), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("subject", registered_models())
def test_every_model_with_layer_stacks_compiles(subject):
    if not any(isinstance(part, torch.nn.ModuleList) for part in build_model(subject).modules()):
        pytest.skip("it has no stack of layers")
    check_compiled(subject, "inductor")

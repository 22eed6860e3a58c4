from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from saccade.training.checkpoints.checkpoint import optimizer_tensors
from saccade.training.config import TrainingConfig
from saccade.training.gradient_accumulation import accumulate
from saccade.training.muon import Muon, is_matrix, matrix_count, orthogonalize
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import make_optimizer, optimizer_state_keys

MUON = TrainingConfig(optimizer="muon", momentum=0.9)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 4, 12), (2, 12, 4)])
def test_orthogonalization_keeps_singular_vectors(shape):
    """Singular vectors are unchanged, singular values become about 1."""
    torch.manual_seed(0)
    matrices = torch.randn(shape)
    found = orthogonalize(matrices)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    values = left.mT @ found @ right.mT  # diagonal if the vectors are equal
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    assert ((diagonal > 0.3) & (diagonal < 1.3)).all()
    assert_close(values, torch.diag_embed(diagonal), rtol=0, atol=1e-4)


def test_orthogonalization_is_scale_invariant():
    matrices = torch.randn(2, 6, 6)
    assert_close(orthogonalize(matrices * 1e-3), orthogonalize(matrices), rtol=1e-3, atol=1e-3)


def test_tables_and_vectors_use_adam():
    model = build_model(("transformer", {}))
    optimizer = make_optimizer(model, MUON)
    assert isinstance(optimizer, Muon)
    for name, parameter in model.named_parameters():
        wanted = ("momentum",) if is_matrix(name, parameter) else ("step", "exp_avg", "exp_avg_sq")
        assert optimizer_state_keys(optimizer, parameter) == wanted
        assert (parameter in optimizer.parts) == (name.endswith("weight") and parameter.ndim == 2)
    names = {name for name, parameter in model.named_parameters() if parameter in optimizer.parts}
    assert {matrix_count(name) for name in names} == {1, 2, 3}


@pytest.mark.parametrize(
    ("subject", "matrices", "others"),
    [
        (("transformer", {"experts": 4}), {"expand", "contract"}, {"expand_bias", "contract_bias"}),
        (("convs2s", {"separable": True}), {"direction"}, {"positions_table", "depthwise", "table"}),
    ],
    ids=["experts", "convolutions"],
)
def test_matrix_parameters_of_every_family(subject, matrices, others):
    model = build_model(subject)
    optimizer = make_optimizer(model, MUON)
    taken = {name.split(".")[-1] for name, parameter in model.named_parameters() if parameter in optimizer.parts}
    left = {name.split(".")[-1] for name, parameter in model.named_parameters() if parameter not in optimizer.parts}
    assert matrices <= taken
    assert others <= left
    assert not taken & left - {"weight"}


def test_step_updates_every_parameter_and_its_state():
    model = build_model(("transformer", {})).train()
    optimizer = make_optimizer(model, MUON)
    for group in optimizer.param_groups:
        group["lr"] = 1e-2
    before = [parameter.detach().clone() for parameter in model.parameters()]
    accumulate(model, Likelihood(), [make_batch([5, 3], [6, 2])], keys=[1])
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    tensors = optimizer_tensors(model, optimizer)
    for name, parameter in model.named_parameters():
        assert {f"{name}/{key}" for key in optimizer_state_keys(optimizer, parameter)} <= tensors.keys()


def test_first_step_by_hand():
    """Fused queries, keys and values are three matrices; a step is as large as Adam's, 0.2 in the root mean square."""
    torch.manual_seed(0)
    layer = nn.Module()
    layer.query_key_value = nn.Linear(8, 24, bias=False)
    holder = nn.Module()
    holder.attention = layer
    weight = layer.query_key_value.weight
    weight.grad = torch.randn(24, 8)
    optimizer = Muon(holder.named_parameters(), momentum=0.9, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.1)
    optimizer.param_groups[0]["lr"] = 0.5
    before, gradient = weight.detach().clone(), weight.grad.clone()
    optimizer.step()
    directions = torch.cat([orthogonalize(part[None])[0] for part in gradient.chunk(3)])
    assert_close(weight.detach(), before * (1 - 0.5 * 0.1) - 0.5 * 0.2 * 8**0.5 * directions, rtol=1e-3, atol=1e-4)


def test_muon_without_matrices_equals_adam():
    weight, other = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    ours = Muon([("table", weight)], momentum=0.9, betas=(0.9, 0.98), epsilon=1e-9, weight_decay=0.01)
    theirs = torch.optim.AdamW([other], lr=0.1, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.01, fused=True)
    ours.param_groups[0]["lr"] = 0.1
    for _ in range(3):
        weight.grad = other.grad = torch.randn(5)
        ours.step()
        theirs.step()
        assert torch.equal(weight, other)

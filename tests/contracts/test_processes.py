"""Contract test of data-parallel training: two processes have the gradients of one on the same batches."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from contracts.registered_models import build_model, choice_of, make_batch, registered_models
from saccade.distributed.group import Group, join_process_group
from saccade.training.gradient_accumulation import accumulate
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import scale_and_clip

BATCHES = [([7, 4], [6, 3]), ([2, 2, 5], [4, 4, 1]), ([3], [3])]
Subject = tuple[str, dict[str, Any]]
SUBJECTS: list[Subject] = [parameter.values[0] for parameter in registered_models()]
COUNTS = [3, 1]  # number of batches; with one, the second process has none


def gradients(subject: Subject, group: Group, count: int) -> dict[str, torch.Tensor]:
    family, changes = subject
    with_dropout = (family, {**changes, "dropout": 0.2})  # the dropout masks too must be those of one process
    model = build_model(with_dropout).train()
    likelihood = Likelihood(0.1, auxiliary=choice_of(with_dropout).config.auxiliary)
    batches = [make_batch(*lengths, seed=seed) for seed, lengths in enumerate(BATCHES[:count])]
    loss = accumulate(model, likelihood, batches, keys=range(len(batches)), group=group)
    scale_and_clip(model.parameters(), loss.count, 1.0)
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {**found, "loss": torch.tensor(loss.total / loss.count), "nll": torch.tensor(loss.metrics["nll"])}


def work(rank: int, port: int, registered_models: list[Subject], folder: str) -> None:
    environment = {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in environment.items()})
    torch.set_num_threads(1)
    group = join_process_group(torch.device("cpu"))
    for number, subject in enumerate(registered_models):
        for count in COUNTS:
            save_file(gradients(subject, group, count), Path(folder) / f"{number}-{count}-{rank}.safetensors")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(work, args=(port, SUBJECTS, str(folder)), nprocs=2)
    return folder


@pytest.mark.parametrize("number", range(len(SUBJECTS)), ids=[parameter.id for parameter in registered_models()])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("count", COUNTS)
def test_two_processes_have_the_gradients_of_one(results, number, rank, count):
    expected = gradients(SUBJECTS[number], Group(), count)
    found = load_file(results / f"{number}-{count}-{rank}.safetensors")
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")

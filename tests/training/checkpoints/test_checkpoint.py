"""Checkpoints: written in the background, complete or absent; the newest intact one is found."""

from __future__ import annotations

import errno
import json
import threading

import pytest
import torch

import saccade.training.checkpoints.background_saving as saving_module
from saccade.errors import SaccadeError
from saccade.folder import MANIFEST, partial_path, seal
from saccade.training.checkpoints.background_saving import CheckpointSaver
from saccade.training.checkpoints.checkpoint import (
    TrainingState,
    find_newest_intact,
    list_checkpoints,
    load_checkpoint,
    mark_damaged,
    prune,
    scheduled_checkpoints,
)
from saccade.training.loop import Progress


def make(value: float = 0.0):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model, optimizer


def save(folder, *steps, every=1, keep=9):
    with CheckpointSaver(folder, keep=keep, every=every) as saver:
        for step in steps:
            saver.save(*make(step), TrainingState(Progress(step=step, seconds=0.1 + 0.2, recent=[{"loss": 1 / 3}])))
            saver.wait()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_checkpoint_round_trip_is_exact(tmp_path):
    save(tmp_path, 5)
    model, optimizer = make()
    state = load_checkpoint(tmp_path / "step-5", model, optimizer)
    assert state == TrainingState(Progress(step=5, seconds=0.1 + 0.2, recent=[{"loss": 1 / 3}]))
    other, moments = make(5)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(optimizer.state[ours]["exp_avg_sq"], moments.state[theirs]["exp_avg_sq"])


def test_saving_takes_a_snapshot(tmp_path, monkeypatch):
    """The writing thread waits until the model has changed."""
    go = threading.Event()
    original = saving_module.write_checkpoint
    monkeypatch.setattr(saving_module, "write_checkpoint", lambda *words: (go.wait(5), original(*words))[1])
    model, optimizer = make(1.0)
    progress = Progress(step=1)
    with CheckpointSaver(tmp_path, keep=1, every=1) as saver:
        saver.save(model, optimizer, TrainingState(progress))
        with torch.no_grad():
            model.weight.fill_(2.0)
        progress.recent.append({"loss": 9.0})
        go.set()
    again, moments = make()
    assert load_checkpoint(tmp_path / "step-1", again, moments).progress.recent == []
    assert torch.all(again.weight == 1.0)


def test_full_disk_is_reported_at_the_next_call_and_keeps_old_checkpoints(tmp_path, monkeypatch):
    save(tmp_path, 1, 2)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("saccade.training.checkpoints.checkpoint.save_tensors", full)
    with CheckpointSaver(tmp_path, keep=1, every=1) as saver:
        saver.save(*make(3), TrainingState(Progress(step=3)))
        with pytest.raises(SaccadeError, match=r"step-3: .*No space left on device"):
            while True:
                saver.check()
    assert names(tmp_path) == ["step-1", "step-2"]
    assert find_newest_intact(tmp_path).path == tmp_path / "step-2"


def test_checkpoints_are_sorted_by_step(tmp_path):
    save(tmp_path, 9, 10, 100)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-9", "step-10", "step-100"]


def test_pruning_keeps_regular_checkpoints_and_the_newest(tmp_path):
    """The checkpoint of an interruption is removed when it is no longer the newest: averages do not depend on it."""
    save(tmp_path, 4, 8, 11, every=4)
    assert names(tmp_path) == ["step-11", "step-4", "step-8"]
    save(tmp_path, 12, every=4)
    assert names(tmp_path) == ["step-12", "step-4", "step-8"]
    prune(tmp_path, 2, 4)
    assert names(tmp_path) == ["step-12", "step-8"]
    assert [path.name for path in scheduled_checkpoints(list_checkpoints(tmp_path), 8)] == ["step-8", "step-12"]


def test_newest_intact_checkpoint_is_found_and_damaged_one_reported(tmp_path):
    save(tmp_path, 1, 2, 3)
    weights = tmp_path / "step-3" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    (tmp_path / "step-2" / MANIFEST).unlink()
    found = find_newest_intact(tmp_path)
    assert found.path == tmp_path / "step-1"
    assert [path.name for path, _ in found.damaged] == ["step-3", "step-2"]
    assert "model.safetensors" in str(found.damaged[0][1])
    for path, _ in found.damaged:
        mark_damaged(path)
    assert names(tmp_path) == ["damaged-step-2", "damaged-step-3", "step-1"]
    save(tmp_path, 3)
    (tmp_path / "step-3" / MANIFEST).unlink()
    assert mark_damaged(tmp_path / "step-3").name == "damaged-step-3-2"


def test_without_intact_checkpoint_none_is_found(tmp_path):
    assert find_newest_intact(tmp_path) == (None, [])
    assert find_newest_intact(tmp_path / "absent") == (None, [])


def test_leftovers_of_a_killed_writer_are_removed(tmp_path):
    save(tmp_path, 1)
    partial_path(tmp_path / "step-2").mkdir()
    find_newest_intact(tmp_path)
    assert names(tmp_path) == ["step-1"]


@pytest.mark.parametrize(
    "change",
    [
        {"step": "many"},
        {"step": None},
        {"position": [1]},
        {"position": {"epoch": "x"}},
        {"recent": [{"loss": []}]},
        {"unheard": 1},
    ],
    ids=str,
)
def test_invalid_state_is_rejected(tmp_path, change):
    save(tmp_path, 1)
    path = tmp_path / "step-1" / "state.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["progress"].update(change)
    path.write_text(json.dumps(values), encoding="utf-8")
    (path.parent / MANIFEST).unlink()
    seal(path.parent)
    with pytest.raises(SaccadeError, match=r"state\.json"):
        load_checkpoint(path.parent, *make())


def test_optimizer_state_of_another_model_is_rejected(tmp_path):
    save(tmp_path, 1)
    other = torch.nn.Linear(3, 2, bias=False)
    with pytest.raises(SaccadeError, match=r"safetensors"):
        load_checkpoint(tmp_path / "step-1", other, torch.optim.Adam(other.parameters()))

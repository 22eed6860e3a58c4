"""Runs on a copy task of a few hundred lines: files, limits, interruption, resumption."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil

import pytest
import torch
import yaml

import saccade.training.checkpoints.checkpoint as state_module
import saccade.training.run as run_module
from crash_safety.kill_runs import differences
from saccade.config import merge
from saccade.errors import SaccadeError
from saccade.inference.loading import load
from saccade.model_folder import load_model_folder, weights_of
from saccade.training.checkpoints.averaging import average_weights
from saccade.training.checkpoints.checkpoint import list_checkpoints
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_config, resolve_recipe
from saccade.training.model_selection import ModelSelection
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.preflight.flops import flops_of_batch
from saccade.training.run import resume, train
from saccade.training.runs.lock import run_lock
from saccade.training.validation import Validation
from training.small_runs import STEPS, interrupted_after, log_of, run_settings, write_pairs

ABSENT = "mps" if torch.cuda.is_available() else "cuda"  # no machine has both


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder, 300, 5)
    return folder


@pytest.fixture
def config(data, tmp_path):
    def make(**changes) -> RunConfig:
        settings = run_settings(data, hold_out=30, metrics=["bleu", "exact-match"], **STEPS)
        values = {**settings, "decoding": {"beam": 2}, "output": str(tmp_path / "run")}
        return resolve_config(merge(values, changes), where="test")

    return make


def test_run_writes_all_files(config, tmp_path):
    result = train(config())
    path = tmp_path / "run"
    assert result.step == 12
    assert result.validation is not None
    assert {p.name for p in path.iterdir()} == {
        "config.yaml", "env.json", "data.json", "train.log", "metrics.csv", "timing.csv", "results.png", "tb",
        "samples", "checkpoints", "tokenizers", "model-best", "model-last", ".lock",
    }  # fmt: skip
    with (path / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    trained = [row for row in rows if row["loss"]]
    validated = [row for row in rows if row["valid_loss"]]
    assert [int(row["step"]) for row in trained] == [2, 4, 6, 8, 10, 12]
    assert [int(row["step"]) for row in validated] == [5, 10, 12]
    assert all(float(row["flops"]) > 0 and row["valid_bleu"] == "" for row in trained)
    assert all(row["valid_bleu"] and row["valid_exact-match"] for row in validated)
    assert (path / "samples" / "step-12.txt").read_text(encoding="utf-8").count("reference") == 5
    assert (path / "results.png").read_bytes().startswith(b"\x89PNG")
    assert yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))["model"]["width"] == 16
    assert json.loads((path / "env.json").read_text(encoding="utf-8"))["torch"] == torch.__version__
    log = (path / "train.log").read_text(encoding="utf-8")
    for words in ("% padding", "dropped none", "parameters", "FLOPs", "validation: loss"):
        assert words in log
    assert len(load(path).translate(["ab ba", "ee"])) == 2
    assert "exact-match" in load_model_folder(path).card


def test_saved_config_repeats_the_run_bitwise(config, tmp_path):
    train(config())
    again = resolve_recipe(tmp_path / "run" / "config.yaml", {"output": str(tmp_path / "again")})
    train(again)
    first, second = (weights_of(load_model_folder(tmp_path / name / "model-last").model) for name in ("run", "again"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def losses_of(run):
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["loss"]]


def test_r_drop_begins_after_some_updates(config, tmp_path):
    train(config(training={"r_drop": 2.0, "r_drop_after": 5}))
    rows = losses_of(tmp_path / "run")
    assert [row["divergence"] == "" for row in rows] == [True, True, False, False, False, False]
    assert all(float(row["divergence"]) > 0 for row in rows[2:])

    train(config(output=str(tmp_path / "plain")))
    first, second = (
        (tmp_path / name / "checkpoints" / "step-4" / "model.safetensors").read_bytes() for name in ("run", "plain")
    )
    assert first == second, "equal until then"
    twice, once = ([float(row["flops"]) for row in found] for found in (rows, losses_of(tmp_path / "plain")))
    assert twice[1] == once[1]
    assert twice[5] - twice[2] == pytest.approx(2 * (once[5] - once[2]))


def test_run_interrupted_before_r_drop_begins(config, tmp_path, monkeypatch):
    later = {"r_drop": 2.0, "r_drop_after": 5}
    train(config(training=later, output=str(tmp_path / "uninterrupted")))
    interrupted_after(3, monkeypatch)
    train(config(training=later))
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert differences(tmp_path / "uninterrupted", tmp_path / "run") == []


def test_existing_directory_is_not_overwritten(config, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x", encoding="utf-8")
    with pytest.raises(SaccadeError, match="already exists"):
        train(config())
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["precious"]


def test_run_resumed_after_a_signal_equals_uninterrupted_run(config, tmp_path, monkeypatch):
    uninterrupted = train(config(output=str(tmp_path / "uninterrupted")))
    assert uninterrupted.interrupted is None

    interrupted_after(7, monkeypatch)
    stopped = train(config())
    assert stopped.interrupted == "SIGTERM"
    assert stopped.step == 7
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "step-7"
    monkeypatch.undo()
    assert resume(tmp_path / "run").step == 12
    assert differences(tmp_path / "uninterrupted", tmp_path / "run") == []


@pytest.fixture
def uninterrupted(config, tmp_path):
    train(config(output=str(tmp_path / "uninterrupted")))
    return tmp_path / "uninterrupted"


def test_damaged_checkpoint_is_reported_and_the_previous_one_used(config, tmp_path, uninterrupted, monkeypatch):
    interrupted_after(9, monkeypatch)
    train(config())
    monkeypatch.undo()
    newest = tmp_path / "run" / "checkpoints" / "step-9"
    weights = bytearray((newest / "optimizer.safetensors").read_bytes())
    weights[-1] ^= 1
    (newest / "optimizer.safetensors").write_bytes(weights)
    resume(tmp_path / "run")
    aside = tmp_path / "run" / "checkpoints" / "damaged-step-9"
    logged = log_of(tmp_path / "run")
    assert "damaged checkpoint" in logged
    assert "step-9/optimizer.safetensors: SHA-256 differs" in logged
    assert "resumed from" in logged
    assert "step-8" in logged
    shutil.rmtree(aside)
    assert differences(uninterrupted, tmp_path / "run") == []


def test_run_without_checkpoint_begins_again(config, tmp_path, uninterrupted, monkeypatch):
    interrupted_after(3, monkeypatch)
    train(config())
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-3")
    shutil.rmtree(tmp_path / "run" / "model-last")  # as if killed before the first checkpoint
    resume(tmp_path / "run")
    assert differences(uninterrupted, tmp_path / "run") == []


def test_time_limit_does_not_change_the_run(config, tmp_path, monkeypatch):
    """The validation at a time limit has no effect after resuming, not even on early stopping."""
    patient = {"max_steps": 100, "patience": 3, "learning_rate": 1e-12, "criterion": "bleu"}
    train(config(training=patient, output=str(tmp_path / "uninterrupted")))
    original = run_module.reason_to_stop

    def stop_at(step):
        def clock(run, interruption):
            return "out of time" if run.loop.progress.step == step else original(run, interruption)

        monkeypatch.setattr(run_module, "reason_to_stop", clock)

    stop_at(3)
    train(config(training=patient))
    for steps in (7, 12):
        stop_at(steps)
        assert resume(tmp_path / "run").step == steps
    monkeypatch.undo()
    assert resume(tmp_path / "run").step == 20  # four validations: the first is the best
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (tmp_path / "uninterrupted" / "metrics.csv").read_bytes()
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[-1].name == "step-20"


def test_changed_data_is_rejected(config, data, tmp_path):
    for name in ("train.src", "train.tgt"):
        shutil.copy(data / name, tmp_path / name)
    files = {"source": str(tmp_path / "train.src"), "target": str(tmp_path / "train.tgt")}
    train(config(data=files))
    text = (tmp_path / "train.src").read_text(encoding="utf-8")
    (tmp_path / "train.src").write_text(text.replace("ab", "ba", 1), encoding="utf-8")
    with pytest.raises(SaccadeError, match="has changed"):
        resume(tmp_path / "run")
    (tmp_path / "train.src").write_text(text, encoding="utf-8")
    resume(tmp_path / "run")


def test_changed_threads_and_settings_are_reported(config, tmp_path):
    train(config())
    threads = torch.get_num_threads()
    try:
        resume(tmp_path / "run", {"training": {"max_steps": 14, "clip_norm": 0.5, "threads": threads + 1}})
    finally:
        torch.set_num_threads(threads)
    logged = log_of(tmp_path / "run")
    assert f"changed: threads {threads} -> {threads + 1}: " in logged
    assert "changed: training.clip-norm 1.0 -> 0.5: " in logged
    assert "changed: training.max-steps" not in logged


def test_second_process_is_rejected(config, tmp_path):
    train(config())
    with run_lock(tmp_path / "run"), pytest.raises(SaccadeError, match=f"process {os.getpid()}"):
        resume(tmp_path / "run")


def test_run_can_be_resumed_after_a_full_disk(config, tmp_path, uninterrupted, monkeypatch):
    original = state_module.save_tensors

    def full(path, tensors):
        if "step-8" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, tensors)

    monkeypatch.setattr(state_module, "save_tensors", full)
    with pytest.raises(SaccadeError, match=r"step-8: .*No space left on device"):
        train(config())
    monkeypatch.undo()
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-4"]
    resume(tmp_path / "run")
    assert differences(uninterrupted, tmp_path / "run") == []


def test_early_stopping(config):
    result = train(config(training={"max_steps": 500, "learning_rate": 1e-12, "patience": 2, "criterion": "bleu"}))
    assert result.step == 15  # the first validation is the best, two more are not better


def test_limits_in_epochs_and_minutes(config, tmp_path):
    by_epochs = train(config(training={"max_steps": None, "max_epochs": 2}))
    state = json.loads(
        (list_checkpoints(by_epochs.directory.checkpoints)[-1] / "state.json").read_text(encoding="utf-8")
    )
    assert state["progress"]["position"] == {"epoch": 2, "pool": 0, "batch": 0}
    limits = {"max_steps": 100_000, "max_minutes": 0.01, "validate_every": 100_000}
    by_minutes = train(config(training=limits, output=str(tmp_path / "short")))
    assert by_minutes.seconds >= 0.6
    assert by_minutes.step < 100_000


@pytest.mark.parametrize("better", [True, False])
def test_average_becomes_the_best_model_if_it_is_better(config, tmp_path, monkeypatch, better):
    original = Validation.value
    final = [False]

    def value(self, criterion):
        return (-1e9 if better else 1e9) if final[0] else original(self, criterion)

    def consider(self, progress, original=ModelSelection.validate_average):
        final[0] = True
        original(self, progress)

    monkeypatch.setattr(Validation, "value", value)
    monkeypatch.setattr(ModelSelection, "validate_average", consider)
    train(config(training={"average_last": 3}))
    average = average_weights(list_checkpoints(tmp_path / "run" / "checkpoints")[-3:])
    best = weights_of(load_model_folder(tmp_path / "run").model)
    last = weights_of(load_model_folder(tmp_path / "run" / "model-last").model)
    assert all(torch.equal(best[name], average[name]) for name in best) == better
    assert not all(torch.equal(last[name], average[name]) for name in last)


def test_last_model_of_a_resumed_run_without_validation_is_the_best(config, tmp_path):
    train(config(data={"hold_out": 0}))
    assert resume(tmp_path / "run", {"training": {"max_steps": "16"}}).step == 16
    best, last = (weights_of(load_model_folder(tmp_path / "run" / name).model) for name in ("model-best", "model-last"))
    assert all(torch.equal(best[name], last[name]) for name in best)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))["training"]["max_steps"] == 16


@pytest.mark.parametrize(
    "changes", [{"data": {"batch_tokens": 99}}, {"model": {"dropout": 0.5}}, {"training": {"seed": 5}}], ids=str
)
def test_fixed_settings_cannot_change_on_resume(config, tmp_path, changes):
    train(config())
    with pytest.raises(SaccadeError, match="cannot change"):
        resume(tmp_path / "run", changes)


def test_length_limit_covers_the_training_targets(config, tmp_path, data):
    """From words to characters, a target is much longer than twice its source."""
    train(config(data={"tokenizer": "word", "target_tokenizer": "char", "min_frequency": 1}))
    decoding = load(tmp_path / "run").decoding
    lines = (data / "train.tgt").read_text(encoding="utf-8").splitlines()
    limits = [decoding.max_length_factor * (len(line.split()) + 1) + decoding.max_length_offset for line in lines]
    assert all(len(line) + 1 <= limit for line, limit in zip(lines, limits, strict=True))
    assert decoding.max_length_factor > 1  # the minimum


def test_last_model_without_validation_is_the_best(config, tmp_path):
    train(config(data={"hold_out": 0}))
    best, last = (weights_of(load_model_folder(tmp_path / "run" / name).model) for name in ("model-best", "model-last"))
    assert all(torch.equal(best[name], last[name]) for name in best)


def test_nan_loss_keeps_the_last_good_checkpoint(config, tmp_path, monkeypatch):
    original = Likelihood.loss

    def poisoned(self, model, batch):
        found = original(self, model, batch)
        learning = torch.is_grad_enabled() and poisoned.learning
        wrong = learning and poisoned.calls > 5
        poisoned.calls += learning
        return type(found)(found.total * float("nan"), found.count, found.metrics) if wrong else found

    original_updates = run_module.run_updates

    def run_updates(run, interruption):
        poisoned.learning = True
        original_updates(run, interruption)

    poisoned.calls, poisoned.learning = 0, False
    monkeypatch.setattr(run_module, "run_updates", run_updates)
    monkeypatch.setattr(Likelihood, "loss", poisoned)
    with pytest.raises(SaccadeError, match=r"(?s)nan.* examples \d+.*checkpoints/step-4"):
        train(config())
    assert [p.name for p in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-4"]
    load_model_folder(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"metrics": ["blue"]}}, "did you mean 'bleu'"),
        ({"training": {"criterion": "chrf"}}, "not among the metrics"),
        ({"training": {"schedule": "linear", "max_steps": None}}, "needs max-steps or max-epochs"),
        ({"training": {"average_last": 9}}, "keep-checkpoints"),
        ({"training": {"lerning_rate": 1}}, "did you mean 'learning-rate'"),
        ({"training": {"learning_rate": "fast"}}, "learning-rate"),
        ({"data": {"source": None, "target": None}}, "no training data"),
        ({"output": None}, "no run directory"),
        ({"data": {"hold_out": 10_000}}, "hold out"),
        ({"data": {"max_length": 1}}, "filters"),
        ({"data": {"hold_out": 0}, "training": {"patience": 3}}, "need validation data"),
        ({"training": {"criterion": "bleu", "valid_sentences": 0}}, "valid-sentences"),
        ({"training": {"betas": [0.9, 1.5]}}, "betas"),
        ({"model": {"positions": "learned", "max_positions": 4}}, "4 positions"),
        ({"training": {"device": ABSENT}}, f"the device '{ABSENT}'"),
    ],
)
def test_invalid_configs_are_rejected_at_once(config, changes, message):
    with pytest.raises(SaccadeError, match=message):
        train(config(**changes))


def test_run_that_fails_before_training_leaves_no_directory(config, tmp_path):
    with pytest.raises(SaccadeError):
        train(config(data={"source": str(tmp_path / "missing")}))
    assert not (tmp_path / "run").exists()


def test_resuming_a_folder_without_run_is_rejected(tmp_path):
    for folder in ("nowhere", "empty", "texts"):
        with pytest.raises(SaccadeError, match="run directory") as refused:
            resume(tmp_path / folder)
        assert refused.value.hint
        if folder == "nowhere":
            (tmp_path / "empty").mkdir()
            (tmp_path / "texts").mkdir()
            (tmp_path / "texts" / "a.txt").write_text("x", encoding="utf-8")
    assert list((tmp_path / "empty").iterdir()) == []


def test_flops_equal_the_formula(config):
    """6 operations a weight and token (2 forward, 4 backward), plus the attention's own products."""
    from contracts.registered_models import SIZES, make_batch
    from saccade.models.registry import choose

    width, inner, rows, length = 32, 64, 3, 5
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "width": width, "feed_forward": inner, "heads": 2}
    model = choose({"family": "transformer", **sizes}).build(SIZES)
    tokens = rows * length
    encoder = 2 * (4 * width * width + 2 * width * inner)
    decoder = 3 * (8 * width * width + 2 * width * inner)
    products = 2 * width * length  # scores and weighted sum, for each token and attention
    expected = 6 * tokens * (encoder + decoder + SIZES.target * width + (2 + 3 + 3) * products)
    assert flops_of_batch(model, Likelihood(0.1), make_batch([length] * rows, [length] * rows)) == expected
    assert all(parameter.grad is None for parameter in model.parameters())


def test_run_with_only_damaged_checkpoints_is_unchanged(config, tmp_path):
    train(config())
    run = tmp_path / "run"
    for path in list_checkpoints(run / "checkpoints"):
        (path / "state.json").write_text("{}", encoding="utf-8")
    before = (run / "metrics.csv").read_bytes()
    with pytest.raises(SaccadeError, match="3 checkpoints"):
        resume(run)
    assert (run / "metrics.csv").read_bytes() == before
    assert len(list_checkpoints(run / "checkpoints")) == 3


def test_data_may_be_moved_before_resuming(config, data, tmp_path):
    for name in ("train.src", "train.tgt"):
        shutil.copy(data / name, tmp_path / name)
    train(config(data={"source": str(tmp_path / "train.src"), "target": str(tmp_path / "train.tgt")}))
    elsewhere = {"source": str(data / "train.src"), "target": str(data / "train.tgt")}
    for name in ("train.src", "train.tgt"):
        (tmp_path / name).unlink()
    assert resume(tmp_path / "run", {"data": elsewhere, "training": {"max_steps": 13}}).step == 13


def test_existing_empty_folder_becomes_the_run_directory(config, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with pytest.raises(SaccadeError):
        train(config(data={"max_length": 1}, output=str(tmp_path / "link")))
    assert list((tmp_path / "disk").iterdir()) == []
    assert train(config(training={"max_steps": 2}, output=str(tmp_path / "link"))).step == 2
    assert (tmp_path / "disk" / "config.yaml").is_file()


def test_resumed_run_knows_the_validation_of_its_best_model(config, tmp_path):
    first = train(config())
    again = resume(tmp_path / "run")
    assert again.validation is not None
    assert again.validation.loss == first.validation.loss
    assert again.validation.scores == first.validation.scores

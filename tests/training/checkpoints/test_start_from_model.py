"""Runs that start from a trained model: copied settings, conflicts, repetition, resumption."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
from functools import partial
from types import MappingProxyType

import pytest
import torch
import yaml

import saccade
from crash_safety.kill_runs import differences
from saccade.cli.main import main
from saccade.config import merge, read_yaml
from saccade.errors import SaccadeError
from saccade.model_folder import load_model_folder, weights_of
from saccade.models import registry
from saccade.training.config import RunConfig
from saccade.training.config_resolution import load_saved_config, resolve_config, resolve_recipe
from saccade.training.preflight.inspector import inspect
from saccade.training.run import resume, train
from training.small_runs import MODEL, interrupted_after, log_of, write_pairs

RISK = {"objective": "minimum-risk", "risk": {"samples": 3}}


@pytest.fixture(scope="module", autouse=True)
def no_plots():
    """Skip the plots, which take longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saccade.training.runs.log_files.plot_curves", lambda rows, path: None)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_pairs(folder, 120, 4)
    return folder


def settings(folder, output, **changes):
    values = {
        "data": {
            "source": str(folder / "train.src"),
            "target": str(folder / "train.tgt"),
            "hold_out": 20,
            "batch_tokens": 300,
        },
        "training": {
            "max_steps": 4,
            "validate_every": 3,
            "checkpoint_every": 2,
            "log_every": 1,
            "device": "cpu",
            "valid_sentences": 2,
        },
        "output": str(output),
    }
    return merge(values, changes)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """A start model, trained for a few steps."""
    output = tmp_path_factory.mktemp("runs") / "first"
    values = settings(data, output, model=MODEL, data={"tokenizer": "char"})
    train(resolve_config(merge(values, {"training": {"warmup_steps": 4}}), where="test"))
    return output


@pytest.fixture(scope="module")
def make(data, trained):
    def make(output, **changes) -> RunConfig:
        values = settings(data, output, training={"start": str(trained), "learning_rate": 1e-3, **RISK})
        return resolve_config(merge(values, changes), where="test")

    return make


@pytest.fixture
def config(make, tmp_path):
    return partial(make, tmp_path / "run")


@pytest.fixture(scope="module")
def uninterrupted(make, tmp_path_factory):
    """An uninterrupted run with minimum risk."""
    output = tmp_path_factory.mktemp("runs") / "uninterrupted"
    train(make(output))
    return output


@contextlib.contextmanager
def away(folder):
    """Rename the folder within the block."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)


def weights(run, name="model-last"):
    return weights_of(load_model_folder(run / name).model)


def same(first, second) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_run_copies_weights_settings_and_tokenizers(config, trained, tmp_path):
    made = config(training={"learning_rate": 1e-12})
    assert (made.model["width"], made.data.tokenizer, made.training.schedule) == (16, "char", "constant")
    result = train(made)
    run = tmp_path / "run"
    before, after = weights(trained, "model-best"), weights(run)
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in before)
    kept = sorted(path.name for path in (run / "tokenizers").glob("tokenizer*"))
    assert kept == ["tokenizer.source.json", "tokenizer.target.json"]
    for name in kept:
        assert (run / "tokenizers" / name).read_bytes() == (trained / "model-best" / name).read_bytes()
    assert f"starts from {trained}" in log_of(run)
    assert result.validation is not None
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    assert len(rows) == 4
    assert all(0 <= float(row["risk"]) <= 1 and 0 <= float(row["reward"]) <= 1 for row in rows)
    assert all(float(row["nll"]) > 0 for row in rows)


def test_defaults_of_fine_tuning(data, trained, config):
    values = settings(data, "x", training={"start": str(trained), **RISK})
    made = resolve_config(values, where="test")
    assert (made.training.criterion, made.training.learning_rate) == ("bleu", 5e-5)
    assert config(training={"criterion": "loss", "learning_rate": 1e-4}).training.criterion == "loss"
    assert config(data={"hold_out": 0}).training.criterion == "loss"
    assert config(training={"objective": "likelihood", "risk": {"samples": 15}}).training.criterion == "loss"


def test_repeated_run_is_bitwise_equal(trained, uninterrupted, tmp_path):
    train(resolve_recipe(uninterrupted / "config.yaml", {"output": str(tmp_path / "again")}))
    assert same(weights(uninterrupted), weights(tmp_path / "again"))
    assert not same(weights(uninterrupted), weights(trained, "model-best"))


def test_resumed_run_equals_uninterrupted_run_without_start_folder(
    config, trained, uninterrupted, tmp_path, monkeypatch
):
    interrupted_after(3, monkeypatch)
    assert train(config()).interrupted == "SIGTERM"
    monkeypatch.undo()
    with away(trained):
        assert resume(tmp_path / "run").step == 4
    assert differences(uninterrupted, tmp_path / "run") == []


def test_run_without_checkpoint_begins_again_from_an_unchanged_start_model(
    config, trained, uninterrupted, tmp_path, monkeypatch
):
    interrupted_after(1, monkeypatch)
    train(config())
    monkeypatch.undo()
    for name in ("checkpoints", "model-last", "model-best"):  # as if the run had ended before its first checkpoint
        shutil.rmtree(tmp_path / "run" / name, ignore_errors=True)
    (tmp_path / "run" / "checkpoints").mkdir()
    with away(trained):
        with pytest.raises(SaccadeError, match="no such run"):
            resume(tmp_path / "run")
        shutil.copytree(uninterrupted, trained)
        with pytest.raises(SaccadeError, match="has changed"):
            resume(tmp_path / "run")
    resume(tmp_path / "run")
    assert differences(uninterrupted, tmp_path / "run") == []


@pytest.mark.parametrize(
    "change",
    [{"objective": "likelihood", "risk": {"samples": 15}}, {"risk": {"samples": 4}}, {"start": "elsewhere"}],
    ids=str,
)
def test_objective_of_a_resumed_run_cannot_change(uninterrupted, change):
    with pytest.raises(SaccadeError, match=r"training\."):
        resume(uninterrupted, {"training": change})


def test_settings_that_keep_weight_shapes_may_change(config, tmp_path):
    train(config(model={"dropout": 0.4}, training={"max_steps": 1}))
    assert read_yaml(tmp_path / "run" / "config.yaml")["model"]["dropout"] == 0.4
    assert "changed: model.dropout 0.3 -> 0.4" in log_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"training": {"start": "/nowhere/run"}}, "no such run or model folder"),
        ({"training": {"start": "x" * 300}}, "cannot be read"),
        ({"model": {"preset": "transformer-small"}}, r"is not 'transformer-small': its .* is"),
        ({"model": {"family": "recurrent"}}, "is a transformer, not 'recurrent'"),
        ({"data": {"tokenizer": "bpe"}}, "tokenizer char, not bpe"),
        ({"data": {"vocabulary": 5}}, "vocabulary .*, not 5"),
        ({"data": {"joint": True}}, "joint False, not True"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_conflicts_with_the_start_model_are_rejected(config, changes, match):
    with pytest.raises(SaccadeError, match=match):
        config(**changes)


def test_settings_equal_to_the_start_model_are_accepted(config, trained):
    saved = read_yaml(trained / "config.yaml")
    made = config(model=saved["model"], data={"tokenizer": "char", "vocabulary": 8000})
    assert made.data.vocabulary < 100
    small = {"encoder_layers": 1, "decoder_layers": 1, "width": 16, "feed_forward": 16, "heads": 2}
    assert config(model={"preset": "transformer-tiny", **small}) == config()
    with pytest.raises(SaccadeError, match=r"'transformer-tiny': .*width .*16"):
        config(model={"preset": "transformer-tiny"})


@pytest.mark.parametrize("change", [{"width": 32}, {"encoder_layers": 2}], ids=str)
def test_weights_of_another_shape_are_rejected_and_leave_no_run(config, tmp_path, change):
    with pytest.raises(SaccadeError, match="weights"):
        train(config(model=change))
    assert not (tmp_path / "run").exists()


def test_damaged_start_model_is_rejected(config, trained, tmp_path):
    start = tmp_path / "start"
    shutil.copytree(trained, start)
    path = start / "model-best" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    made = config(training={"start": str(start)})
    with pytest.raises(SaccadeError, match="SHA-256 differs"):
        train(made)
    assert not (tmp_path / "run").exists()
    found = inspect(made, Silent())
    assert any("SHA-256 differs" in finding.what for finding in found.findings if finding.severity == "error")


class Silent:
    def log(self, message):
        pass

    def progress(self, what, done, total):
        pass


def test_inspection_of_a_run_from_a_start_model(config):
    found = inspect(config(), Silent())
    assert not found.has_errors
    assert found.vocabulary is not None
    assert "char" in found.vocabulary
    assert found.forecast is not None


def test_command_starts_from_a_run(data, trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = ["--source", str(data / "train.src"), "--target", str(data / "train.tgt")]
    options = ["--training.max-steps", "1", "--training.objective", "minimum-risk", "--training.risk.samples", "2"]
    assert main(["train", "--from", str(trained), *files, *options]) == 0
    saved = read_yaml(tmp_path / "runs" / "first-1" / "config.yaml")
    assert saved["training"]["start"] == str(trained)
    assert saved["model"]["width"] == 16
    assert main(["check", "--from", str(trained), *files, *options, "--no-model"]) == 0
    capsys.readouterr()
    assert main(["train", "--from", str(tmp_path / "nowhere"), *files, *options]) != 0
    assert f"'{tmp_path / 'nowhere'}': no such run or model folder" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "runs" / "first-1"), "--from", str(trained)]) == 2


@pytest.fixture(scope="module")
def fresh(data, tmp_path_factory):
    """The config.yaml of another run: word tokenizers, learning rate of a new model."""
    values = settings(data, "x", model=MODEL, data={"tokenizer": "word"})
    made = resolve_config(merge(values, {"training": {"learning_rate": 3e-3}}), where="test")
    path = tmp_path_factory.mktemp("fresh") / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(made.model_dump_json())), encoding="utf-8")
    return path


EXPLICIT = {"learning_rate": 1e-4, "schedule": "constant", "warmup_steps": 5, "max_steps": 2}


def test_recipe_from_another_run_conflicts_with_a_new_start(fresh, trained, tmp_path):
    training = {"start": str(trained), **EXPLICIT}
    with pytest.raises(SaccadeError, match=r"char.* word"):
        resolve_recipe(fresh, {"training": training})
    made = resolve_recipe(fresh, {"training": training, "data": {"tokenizer": "char"}})
    assert made.data.vocabulary < 100
    assert resolve_config(made.model_dump(), where="again") == made
    with pytest.raises(SaccadeError, match="no such run"):
        resolve_recipe(fresh, {"training": {**training, "start": str(tmp_path / "nowhere")}})


def test_recipe_for_training_from_scratch_is_rejected(fresh, trained):
    start = {"start": str(trained)}
    with pytest.raises(SaccadeError, match=r"learning-rate 0\.003.* inverse-sqrt.*max-steps 4") as caught:
        resolve_recipe(fresh, {"training": start, "data": {"tokenizer": "char"}})
    assert (
        "--training.learning-rate 5e-05 --training.schedule constant --training.warmup-steps 100" in caught.value.hint
    )
    with pytest.raises(SaccadeError, match=r"learning-rate 0\.003\n"):
        explicit = {name: value for name, value in EXPLICIT.items() if name != "learning_rate"}
        resolve_recipe(fresh, {"training": {**start, **explicit}, "data": {"tokenizer": "char"}})
    made = resolve_recipe(fresh, {"training": {**start, **EXPLICIT}, "data": {"tokenizer": "char"}})
    assert (made.training.learning_rate, made.training.max_steps) == (1e-4, 2)


def test_recipe_with_a_start_model_keeps_its_settings(data, trained, tmp_path):
    values = settings(data, "x", training={"start": str(trained), "learning_rate": 2e-3})
    (tmp_path / "tuned.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert resolve_recipe(tmp_path / "tuned.yaml").training.learning_rate == 2e-3
    again = resolve_recipe(tmp_path / "tuned.yaml", {"training": {"start": str(trained / "model-best")}})
    assert (again.training.learning_rate, again.data.tokenizer) == (2e-3, "char")


def test_saved_config_resolves_without_start_folder(uninterrupted, trained):
    with away(trained):
        assert resolve_config(read_yaml(uninterrupted / "config.yaml"), where="test").data.tokenizer == "char"


@pytest.fixture
def recommended(monkeypatch):
    """The transformer family with a recipe."""
    family = registry.load_family("transformer")
    recipe = {"training": {"learning-rate": 7e-4, "clip_norm": 5.0}, "data": {"tokenizer": "char"}}
    changed = family._replace(recipe=MappingProxyType(recipe), preset_recipes={})
    monkeypatch.setattr("saccade.training.config_resolution.load_family", lambda name: changed)


def test_given_settings_override_the_family_recipe(recommended):
    model = {"preset": "transformer-tiny"}
    plain = resolve_config({"model": model}, where="test")
    assert (plain.training.learning_rate, plain.training.clip_norm, plain.data.tokenizer) == (7e-4, 5.0, "char")
    given = resolve_config({"model": model, "training": {"clip-norm": 2.0}, "data": {"tokenizer": "bpe"}}, where="test")
    assert (given.training.learning_rate, given.training.clip_norm, given.data.tokenizer) == (7e-4, 2.0, "bpe")
    for config in (plain, given):
        assert resolve_config(config.model_dump(), where="again") == config
        assert resolve_config(config.model_dump(exclude_unset=True), where="again") == config


def test_preset_recipe_applies_only_with_its_optimizer():
    def training(**given):
        return resolve_config({"model": {"preset": "transformer-tiny"}, "training": given}, where="test").training

    assert (training().optimizer, training().learning_rate, training().warmup_steps) == ("muon", 1e-2, 300)
    assert (training(learning_rate=3e-3).optimizer, training(learning_rate=3e-3).learning_rate) == ("muon", 3e-3)
    adam = training(optimizer="adam")
    assert (adam.optimizer, adam.learning_rate, adam.warmup_steps) == ("adam", None, 1000)
    other = resolve_config({"model": {"preset": "transformer-small"}}, where="test").training
    assert (other.optimizer, other.learning_rate) == ("adam", None)


def test_config_built_in_python_gets_the_recipe_and_a_saved_one_does_not(recommended, data, tmp_path):
    model = {"preset": "transformer-tiny", "width": 16, "heads": 2, "feed_forward": 16}
    values = settings(data, tmp_path / "run", model=model, training={"max_steps": 1, "validate_every": 9})
    saccade.train(RunConfig(**merge(values, {"data": {"hold_out": 0}})))
    path = tmp_path / "run" / "config.yaml"
    saved = read_yaml(path)
    assert (saved["training"]["clip_norm"], saved["data"]["tokenizer"]) == (5.0, "char")
    del saved["training"]["clip_norm"]  # as an older version may have written it
    path.write_text(yaml.safe_dump(saved), encoding="utf-8")
    assert load_saved_config(path).training.clip_norm == 1.0


def test_fine_tuning_ignores_the_learning_rate_of_the_family_recipe(recommended, data, trained):
    made = resolve_config(settings(data, "x", training={"start": str(trained), **RISK}), where="test")
    assert (made.training.learning_rate, made.training.clip_norm) == (5e-5, 5.0)

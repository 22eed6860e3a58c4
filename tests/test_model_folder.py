from __future__ import annotations

import json
import random
import shutil

import pytest
import torch

from contracts.registered_models import build_model, choice_of
from saccade import model_folder
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.errors import SaccadeError
from saccade.folder import atomic_folder, describe_file, write_json
from saccade.model_folder import (
    ModelFolder,
    find_model_folder,
    load_model_folder,
    load_weights,
    save_model_folder,
    save_tensors,
    weights_of,
)
from saccade.training.checkpoints.averaging import average_weights

SUBJECT = ("transformer", {})
PAIRS = [Pair("ein kleiner Hund", "a small dog"), Pair("eine große Katze", "a big cat")] * 4


@pytest.fixture
def folder():
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="char", target_tokenizer="word", min_frequency=1))
    sizes = model_folder.vocabulary_sizes(tokenizers)
    return ModelFolder(build_model(SUBJECT, sizes), choice_of(SUBJECT), tokenizers, {"beam": 2}, "# a card\n")


@pytest.fixture
def saved(folder, tmp_path):
    save_model_folder(tmp_path / "model", folder)
    return tmp_path / "model"


def test_separate_vocabularies_are_saved_in_two_files(saved, folder):
    assert (saved / "tokenizer.source.json").is_file()
    loaded = load_model_folder(saved)
    assert loaded.generation == {"beam": 2}
    assert loaded.card == "# a card\n"
    for name, tensor in weights_of(folder.model).items():
        assert torch.equal(weights_of(loaded.model)[name], tensor)


def test_saving_twice_replaces_the_folder_and_leaves_no_other_folder(saved, folder):
    save_model_folder(saved, folder)
    assert [path.name for path in saved.parent.iterdir()] == ["model"]
    load_model_folder(saved)


def test_every_flipped_bit_is_detected_and_its_file_named(saved):
    chooser = random.Random(0)
    for file in sorted(saved.iterdir()):
        original = file.read_bytes()
        for _ in range(5):
            position = chooser.randrange(len(original))
            damaged = bytearray(original)
            damaged[position] ^= 1 << chooser.randrange(8)
            file.write_bytes(damaged)
            with pytest.raises(SaccadeError) as caught:
                load_model_folder(saved)
            if file.name != "manifest.json":
                assert file.name in str(caught.value)
        file.write_bytes(original)
    load_model_folder(saved)


def test_a_truncated_or_missing_file_is_named(saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(SaccadeError, match=r"model\.safetensors"):
        load_model_folder(saved)
    weights.unlink()
    with pytest.raises(SaccadeError, match=r"model\.safetensors"):
        load_model_folder(saved)


def test_weights_of_another_model_are_an_error(folder, tmp_path):
    tensors = weights_of(folder.model)
    first = next(iter(tensors))
    save_tensors(tmp_path / "lacks.safetensors", {name: t for name, t in tensors.items() if name != first})
    with pytest.raises(SaccadeError, match="another model"):
        load_weights(folder.model, tmp_path / "lacks.safetensors")
    save_tensors(tmp_path / "shape.safetensors", {**tensors, first: torch.zeros(3)})
    with pytest.raises(SaccadeError, match=f"'{first}' is"):
        load_weights(folder.model, tmp_path / "shape.safetensors")


def test_a_folder_is_complete_or_absent(tmp_path):
    with pytest.raises(RuntimeError), atomic_folder(tmp_path / "new") as folder:
        (folder / "half").write_text("half", encoding="utf-8")
        raise RuntimeError("killed")
    assert list(tmp_path.iterdir()) == []


def test_an_old_folder_survives_a_failed_save(saved, folder, monkeypatch):
    before = (saved / "manifest.json").read_bytes()

    def full(path, tensors):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_folder, "save_tensors", full)
    with pytest.raises(SaccadeError, match="No space left on device"):
        save_model_folder(saved, folder)
    assert (saved / "manifest.json").read_bytes() == before
    load_model_folder(saved)


def test_the_best_model_of_a_run_directory_is_found(saved, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(saved, run / "model-last")
    assert find_model_folder(run).name == "model-last"
    shutil.copytree(saved, run / "model-best")
    assert find_model_folder(run).name == "model-best"
    assert find_model_folder(run / "model-last").name == "model-last"


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_a_model_is_an_error(tmp_path, name):
    with pytest.raises(SaccadeError, match=r"no such run|no model"):
        find_model_folder(tmp_path / name)


def test_an_unknown_family_in_the_config_is_an_error(saved):
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    config["model"]["family"] = "os.system"
    (saved / "config.json").write_text(json.dumps(config), encoding="utf-8")
    manifest = json.loads((saved / "manifest.json").read_text(encoding="utf-8"))
    manifest["files"]["config.json"] = describe_file(saved / "config.json")
    write_json(saved / "manifest.json", manifest)
    with pytest.raises(SaccadeError, match=r"'os\.system'"):
        load_model_folder(saved)


def test_the_average_of_folders_is_the_mean_of_their_weights(folder, tmp_path):
    torch.manual_seed(3)
    all_weights = []
    for number in range(3):
        with torch.no_grad():
            for parameter in folder.model.parameters():
                parameter.add_(torch.randn_like(parameter))
        save_model_folder(tmp_path / str(number), folder)
        all_weights.append({name: tensor.clone() for name, tensor in weights_of(folder.model).items()})
    for name, tensor in average_weights([tmp_path / str(number) for number in range(3)]).items():
        expected = torch.stack([weights[name] for weights in all_weights]).double().mean(0).float()
        assert torch.equal(tensor, expected)


def test_averaging_models_of_different_shapes_is_an_error(saved, tmp_path, folder):
    tokenizers = train_tokenizers(PAIRS, DataConfig(tokenizer="byte"))
    model = build_model(SUBJECT, model_folder.vocabulary_sizes(tokenizers))
    save_model_folder(tmp_path / "other", ModelFolder(model, choice_of(SUBJECT), tokenizers))
    with pytest.raises(SaccadeError, match="first"):
        average_weights([saved, tmp_path / "other"])

from __future__ import annotations

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.small_models import best_tokens, save_model
from saccade.errors import SaccadeError
from saccade.inference import loading
from saccade.inference.engines import ctranslate2_cache, ctranslate2_export
from saccade.inference.engines.ctranslate2_cache import CACHE, PARITY
from saccade.inference.loading import load
from saccade.interop import ctranslate2 as interop

pytestmark = pytest.mark.usefixtures("without_compiler")


def test_a_model_is_exported_once(folder, monkeypatch):
    expected = best_tokens(load(folder, "cpu"), beam=1)
    before = (folder / CACHE / PARITY).read_text()
    assert '"passed": true' in before

    def fail(*_: object) -> None:
        raise AssertionError("the torch model was built")

    monkeypatch.setattr(loading, "load_model_folder", fail)
    assert best_tokens(load(folder, "cpu"), beam=1) == expected
    assert (folder / CACHE / PARITY).read_text() == before


def test_new_weights_are_exported_again(folder, tmp_path):
    best_tokens(load(folder, "cpu"), beam=1)
    before = (folder / CACHE / PARITY).read_text()
    shutil.copytree(folder / CACHE, tmp_path / "kept")
    save_model(folder, {"norm": "pre"}, seed=1)
    shutil.move(tmp_path / "kept", folder / CACHE)  # the export of the old weights
    expected = best_tokens(load(folder, "cpu", engine="torch"), beam=1)
    assert best_tokens(load(folder, "cpu"), beam=1) == expected
    assert (folder / CACHE / PARITY).read_text() != before


def test_copied_and_damaged_exports_are_replaced(folder, tmp_path):
    expected = best_tokens(load(folder, "cpu"), beam=1)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert best_tokens(load(copy, "cpu"), beam=1) == expected
    assert (copy / CACHE / PARITY).read_text() != (folder / CACHE / PARITY).read_text()
    for name in (interop.MODEL, PARITY, "shared_vocabulary.json"):
        (folder / CACHE / name).write_bytes(b"{}")
        assert best_tokens(load(folder, "cpu"), beam=1) == expected
    shutil.rmtree(folder / CACHE)
    (folder / f".{CACHE}.partial").mkdir()  # left by a killed writer
    assert best_tokens(load(folder, "cpu"), beam=1) == expected
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [CACHE]


def test_a_read_only_model_folder_is_exported_elsewhere(folder, monkeypatch):
    def refuse(path: Path) -> None:
        raise SaccadeError("cannot be written: Read-only file system", where=str(path))

    monkeypatch.setattr(ctranslate2_cache, "atomic_folder", refuse)
    expected = best_tokens(load(folder, "cpu", engine="torch"), beam=1)
    assert best_tokens(load(folder, "cpu", engine="ctranslate2"), beam=1) == expected
    assert not (folder / CACHE).exists()


def test_auto_is_torch_if_no_folder_is_writable(folder, monkeypatch, capsys):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(ctranslate2_cache, "atomic_folder", refuse)
    monkeypatch.setattr(ctranslate2_cache.tempfile, "TemporaryDirectory", refuse)
    assert best_tokens(load(folder, "cpu"), beam=1) == best_tokens(load(folder, "cpu", engine="torch"), beam=1)
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(OSError, match="Read-only"):
        best_tokens(load(folder, "cpu", engine="ctranslate2"), beam=1)


def test_a_deleted_model_folder_is_not_recreated(folder):
    translator = load(folder, "cpu")
    assert translator.model is not None
    shutil.rmtree(folder)
    best_tokens(translator, beam=1)
    assert not folder.exists()


def test_an_export_without_parity_is_not_used(folder, monkeypatch, capsys):
    save = ctranslate2_export.save_ctranslate2

    def save_wrong_weights(path, model, config):
        model.decoder[0].feed_forward.contract.bias.data[0] += 0.5
        save(path, model, config)
        model.decoder[0].feed_forward.contract.bias.data[0] -= 0.5

    monkeypatch.setattr(ctranslate2_export, "save_ctranslate2", save_wrong_weights)
    translator = load(folder, "cpu")
    assert best_tokens(translator, beam=1) == best_tokens(load(folder, "cpu", engine="torch"), beam=1)
    best_tokens(translator)
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(ctranslate2_export, "save_ctranslate2", None)  # the failed check is cached too
    with pytest.raises(SaccadeError) as caught:
        best_tokens(load(folder, "cpu", engine="ctranslate2"))
    assert caught.value.where == str(folder)


def test_a_model_folder_that_was_replaced_after_loading_is_an_error(folder):
    best_tokens(load(folder, "cpu"), beam=1)
    translator = load(folder, "cpu")
    save_model(folder, {"norm": "pre"}, seed=1)
    with pytest.raises(SaccadeError) as caught:
        translator.explain("ab")
    assert caught.value.where == str(folder)


def test_concurrent_exports_wait_for_the_first(folder, monkeypatch):
    paths, save = [], ctranslate2_export.save_ctranslate2

    def counted(path, model, config):
        paths.append(path)
        save(path, model, config)

    monkeypatch.setattr(ctranslate2_export, "save_ctranslate2", counted)
    translators = [load(folder, "cpu", engine="ctranslate2") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        outputs = list(pool.map(lambda translator: best_tokens(translator, beam=1), translators))
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(paths) == 1

from __future__ import annotations

import shutil
import sys

import pytest

from inference.small_models import best_tokens, engine_name, save_model
from saccade.errors import UsageError
from saccade.inference import loading
from saccade.inference.engines.ctranslate2_cache import CACHE
from saccade.inference.loading import load

pytestmark = pytest.mark.usefixtures("without_compiler")


def test_settings_that_only_torch_supports(folder):
    auto, required = load(folder, "cpu"), load(folder, "cpu", engine="ctranslate2")
    assert engine_name(auto, beam=1) == engine_name(required, beam=3) == "ctranslate2"
    for changes in ({"sample": True}, {"coverage_beta": 0.2}, {"beam": 20}):
        assert engine_name(auto, **changes) == "torch"
        with pytest.raises(UsageError):
            engine_name(required, **changes)
    assert next(auto.stream(["ab"], prefixes=["GH"])).text.startswith("GH")
    with pytest.raises(UsageError):
        next(required.stream(["ab"], prefixes=["GH"]))


def test_models_that_only_torch_supports(tmp_path):
    for family, changes in (("bahdanau", {}), ("transformer", {"radius": 2})):
        folder = save_model(tmp_path / family, changes, family=family)
        assert engine_name(load(folder, "cpu")) == "torch"
        assert not (folder / CACHE).exists()
        with pytest.raises(UsageError):
            load(folder, "cpu", engine="ctranslate2")


def test_unknown_names_and_ensembles_are_usage_errors(folder):
    with pytest.raises(UsageError) as caught:
        load(folder, "cpu", engine="ctranslate")  # type: ignore[arg-type]
    assert "'ctranslate2'" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        load(folder, "cpu", engine="ctranslate2", precision="int4")  # type: ignore[arg-type]
    assert "int8" in caught.value.hint
    with pytest.raises(UsageError):
        load([folder, folder], "cpu", engine="ctranslate2")
    assert engine_name(load([folder, folder], "cpu")) == "torch"


@pytest.mark.parametrize("beam", [1, 3])
def test_auto_is_torch_with_kernels(folder, monkeypatch, beam):
    assert engine_name(load(folder, "cpu"), beam=beam) == "ctranslate2"
    expected = best_tokens(load(folder, "cpu", engine="torch"), beam=beam)
    monkeypatch.setattr(loading, "kernels_in_use", lambda: True)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # an import would fail
    translator = load(folder, "cpu")
    shutil.rmtree(folder)  # the loaded model needs no files
    assert engine_name(translator, beam=beam) == "torch"
    assert best_tokens(translator, beam=beam) == expected


def test_auto_is_torch_without_the_ctranslate2_package(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # as if it were not installed
    assert engine_name(load(folder, "cpu")) == "torch"
    with pytest.raises(UsageError):
        load(folder, "cpu", engine="ctranslate2")
    assert capsys.readouterr().err == ""

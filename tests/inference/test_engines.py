from __future__ import annotations

import errno
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from inference.small_models import TEXTS, save_model
from saccade.errors import SaccadeError, UsageError
from saccade.inference import ctranslate2_cache, engines, loading, opening
from saccade.inference.ctranslate2_cache import NAME, PROOF
from saccade.inference.loading import load
from saccade.inference.translator import Translator
from saccade.interop import ctranslate2 as interop
from saccade.ops.int8_linear import int8_available, quantized_form


@pytest.fixture(autouse=True)
def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where no kernels were built: there CTranslate2 is the engine of choice."""
    monkeypatch.setattr(loading, "library", lambda: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", {"norm": "pre"})


def best(translator: Translator, **changes) -> list[tuple[int, ...]]:
    found = translator.stream(TEXTS, translator.settings(changes), scores=False)
    return [translation.candidates[0].tokens for translation in found]


def used(translator: Translator, **changes) -> str:
    return translator.engines.choose(translator.settings(changes).for_search).name


@pytest.mark.parametrize(
    "changes",
    [
        {"beam": 1, "max_length": 3},
        {"beam": 1, "min_length": 6},
        {"beam": 1, "min_length": 5, "max_length": 5},
        {"beam": 1, "allow_unknown": True},
        {"beam": 1, "batch_tokens": 1},
        {"beam": 3, "max_length": 3},
        {"beam": 3, "min_length": 5, "max_length": 5},
        {"beam": 3, "length_penalty": "none", "batch_tokens": 1},
    ],
    ids=str,
)
def test_limits_are_those_of_the_torch_engine(folder, changes):
    expected = best(load(folder, "cpu", engine="torch"), **changes)
    assert best(load(folder, "cpu", engine="ctranslate2"), **changes) == expected


def test_beams_are_ranked_by_the_scores_of_forced_decoding(folder):
    translator = load(folder, "cpu", engine="ctranslate2")
    for translation in translator.stream(TEXTS, translator.settings({"nbest": 3})):
        scores = [candidate.score for candidate in translation.candidates]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == (3 if translation.source.strip() else 1)
        for candidate in translation.candidates:
            assert candidate.log_probability == pytest.approx(sum(candidate.token_log_probabilities), abs=1e-5)
    unasked = next(translator.stream(["ab cd"], translator.settings({"beam": 1}), scores=False))
    assert unasked.candidates[0].token_log_probabilities == ()


@pytest.mark.parametrize("beam", [1, 3])
def test_what_is_longer_than_the_table_of_positions_is_done_by_torch(folder, monkeypatch, beam):
    monkeypatch.setattr(interop, "LONGEST", 6)
    expected = best(load(folder, "cpu", engine="torch"), beam=beam)
    assert max(map(len, expected)) > 6
    assert best(load(folder, "cpu", engine="ctranslate2"), beam=beam) == expected


def test_a_sequence_longer_than_the_learned_positions_is_refused_alike(tmp_path):
    folder = save_model(tmp_path / "model", {"positions": "learned", "max_positions": 12})
    for engine in ("torch", "ctranslate2"):
        translator = load(folder, "cpu", engine=engine)
        assert translator.translate("ab cd", beam=1) == load(folder, "cpu", engine="torch").translate("ab cd", beam=1)
        with pytest.raises(SaccadeError, match="learned positions"):
            translator.translate("ab cd ef gh ij")


def test_settings_that_only_torch_can_do(folder):
    auto, fast = load(folder, "cpu"), load(folder, "cpu", engine="ctranslate2")
    assert used(auto, beam=1) == used(fast, beam=3) == "ctranslate2"
    for changes, said in (
        ({"sample": True}, "random numbers"),
        ({"coverage_beta": 0.2}, "coverage"),
        ({"beam": 20}, "too wide"),
    ):
        assert used(auto, **changes) == "torch"
        with pytest.raises(UsageError, match=said):
            used(fast, **changes)
    assert next(auto.stream(["ab"], prefixes=["GH"])).text.startswith("GH")
    with pytest.raises(UsageError, match="prefixes"):
        next(fast.stream(["ab"], prefixes=["GH"]))


def test_models_that_only_torch_can_do(tmp_path):
    for family, changes, said in (("bahdanau", {}, "this model is none"), ("transformer", {"radius": 2}, "radius")):
        folder = save_model(tmp_path / family, changes, family=family)
        assert used(load(folder, "cpu")) == "torch"
        assert not (folder / NAME).exists()
        with pytest.raises(UsageError, match=said):
            load(folder, "cpu", engine="ctranslate2")


def test_careless_options(folder):
    with pytest.raises(UsageError, match="did you mean 'ctranslate2'"):
        load(folder, "cpu", engine="ctranslate")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown precision"):
        load(folder, "cpu", engine="ctranslate2", precision="int4")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one model"):
        load([folder, folder], "cpu", engine="ctranslate2")
    assert used(load([folder, folder], "cpu")) == "torch"
    assert any(best(load(folder, "cpu", engine="ctranslate2", precision="int8"), beam=1))


def test_int8_is_never_something_else_in_silence(folder, tmp_path, monkeypatch):
    assert used(load(folder, "cpu", precision="int8"), beam=1) == "ctranslate2"
    with pytest.raises(UsageError, match="random numbers"):
        used(load(folder, "cpu", precision="int8"), sample=True)
    monkeypatch.setattr(engines, "int8_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        used(load(folder, "cpu", precision="int8"), sample=True)
    assert caught.value.do == "leave the precision to float32"
    with pytest.raises(UsageError, match="cannot run this model"):
        load(save_model(tmp_path / "bahdanau", {}, family="bahdanau"), "cpu", precision="int8")
    monkeypatch.setattr(loading, "int8_available", lambda: False)
    with pytest.raises(UsageError, match="products of bytes"):
        load(folder, "cpu", engine="torch", precision="int8")
    monkeypatch.setattr(loading, "library", lambda: object())  # kernels, but none of bytes: an old processor
    assert used(load(folder, "cpu", precision="int8"), beam=1) == "ctranslate2"
    with pytest.raises(UsageError, match=r"need AVX2\n"):
        load(folder, "cpu", engine="torch", precision="int8")
    with pytest.raises(UsageError, match="device is meta"):
        loading.check_bytes(torch.device("meta"))


@pytest.mark.skipif(not int8_available(), reason="no products of bytes: no C compiler, or an old processor")
@pytest.mark.parametrize("beam", [1, 3])
def test_int8_on_torch(folder, beam):
    exact, rough = (load(folder, "cpu", engine="torch", precision=kind) for kind in ("float32", "int8"))
    weights = [quantized_form(weight) for weight in rough.model.parameters() if weight.dim() == 2]
    assert weights
    assert all(weights)
    assert not any(quantized_form(weight) for weight in exact.model.parameters())
    together = best(rough, beam=beam)
    assert together == [best_of_one(rough, text, beam) for text in TEXTS]
    assert sum(map(len, together)) > 0


def best_of_one(translator: Translator, text: str, beam: int) -> tuple[int, ...]:
    found = translator.stream([text], translator.settings({"beam": beam}), scores=False)
    return next(found).candidates[0].tokens


def test_an_export_is_made_once_and_then_enough(folder, monkeypatch):
    expected = best(load(folder, "cpu"), beam=1)
    before = (folder / NAME / PROOF).read_text()
    assert '"passed": true' in before

    def never(*_: object) -> None:
        raise AssertionError("the torch model was built")

    monkeypatch.setattr(opening, "load_model_folder", never)
    assert best(load(folder, "cpu"), beam=1) == expected
    assert (folder / NAME / PROOF).read_text() == before


@pytest.mark.parametrize("beam", [1, 3])
def test_torch_does_all_where_it_has_kernels(folder, monkeypatch, beam):
    assert used(load(folder, "cpu"), beam=beam) == "ctranslate2"
    expected = best(load(folder, "cpu", engine="torch"), beam=beam)
    monkeypatch.setattr(loading, "library", lambda: object())
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # nobody asks for it
    translator = load(folder, "cpu")
    shutil.rmtree(folder)  # nor for anything beside the model, once that is loaded
    assert used(translator, beam=beam) == "torch"
    assert best(translator, beam=beam) == expected


def test_the_threads_of_torch_stay_as_they_are(folder, monkeypatch):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        best(load(folder, "cpu", engine="ctranslate2"), beam=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_new_weights_make_a_new_export(folder, tmp_path):
    best(load(folder, "cpu"), beam=1)
    before = (folder / NAME / PROOF).read_text()
    shutil.copytree(folder / NAME, tmp_path / "kept")
    save_model(folder, {"norm": "pre"}, seed=1)
    shutil.move(tmp_path / "kept", folder / NAME)  # as if it had stayed
    expected = best(load(folder, "cpu", engine="torch"), beam=1)
    assert best(load(folder, "cpu"), beam=1) == expected
    assert (folder / NAME / PROOF).read_text() != before


def test_an_export_that_was_copied_or_damaged_is_made_again(folder, tmp_path):
    expected = best(load(folder, "cpu"), beam=1)
    copy = shutil.copytree(folder, tmp_path / "copy")
    assert best(load(copy, "cpu"), beam=1) == expected
    assert (copy / NAME / PROOF).read_text() != (folder / NAME / PROOF).read_text()
    for name in (interop.MODEL, PROOF, "shared_vocabulary.json"):
        (folder / NAME / name).write_bytes(b"{}")
        assert best(load(folder, "cpu"), beam=1) == expected
    shutil.rmtree(folder / NAME)
    (folder / f".{NAME}.partial").mkdir()  # a writer was killed
    assert best(load(folder, "cpu"), beam=1) == expected
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [NAME]


def test_a_folder_that_cannot_be_written_is_no_hindrance(folder, monkeypatch):
    def refuse(path: Path) -> None:
        raise SaccadeError("cannot be written: Read-only file system", where=str(path))

    monkeypatch.setattr(ctranslate2_cache, "atomic_folder", refuse)
    expected = best(load(folder, "cpu", engine="torch"), beam=1)
    assert best(load(folder, "cpu", engine="ctranslate2"), beam=1) == expected
    assert not (folder / NAME).exists()


def test_without_any_place_to_write_auto_is_torch(folder, monkeypatch, capsys):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(ctranslate2_cache, "atomic_folder", refuse)
    monkeypatch.setattr(ctranslate2_cache.tempfile, "TemporaryDirectory", refuse)
    assert best(load(folder, "cpu"), beam=1) == best(load(folder, "cpu", engine="torch"), beam=1)
    assert capsys.readouterr().err == "saccade: using torch: Read-only file system\n"
    with pytest.raises(OSError, match="Read-only"):
        best(load(folder, "cpu", engine="ctranslate2"), beam=1)


def test_a_model_that_was_deleted_stays_deleted(folder):
    translator = load(folder, "cpu")
    assert translator.model is not None
    shutil.rmtree(folder)
    best(translator, beam=1)
    assert not folder.exists()


def test_an_export_that_is_not_the_same_model_is_not_used(folder, monkeypatch, capsys):
    save = engines.save_ctranslate2

    def wrong(place, model, config):
        model.decoder[0].feed_forward.contract.bias.data[0] += 0.5
        save(place, model, config)
        model.decoder[0].feed_forward.contract.bias.data[0] -= 0.5

    monkeypatch.setattr(engines, "save_ctranslate2", wrong)
    translator = load(folder, "cpu")
    assert best(translator, beam=1) == best(load(folder, "cpu", engine="torch"), beam=1)
    best(translator)
    assert capsys.readouterr().err.count("does not give the same outputs") == 1
    monkeypatch.setattr(engines, "save_ctranslate2", None)  # the verdict is kept too
    with pytest.raises(SaccadeError, match="does not give the same outputs"):
        best(load(folder, "cpu", engine="ctranslate2"))


def test_without_the_runtime_auto_is_torch(folder, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)  # as if it were not installed
    assert used(load(folder, "cpu")) == "torch"
    with pytest.raises(UsageError, match="not installed"):
        load(folder, "cpu", engine="ctranslate2")
    assert capsys.readouterr().err == ""


def test_a_model_that_is_replaced_meanwhile_is_noticed(folder):
    best(load(folder, "cpu"), beam=1)
    translator = load(folder, "cpu")
    save_model(folder, {"norm": "pre"}, seed=1)
    with pytest.raises(SaccadeError, match="replaced"):
        translator.explain("ab")


def test_two_that_export_at_once_do_not_disturb_each_other(folder, monkeypatch):
    saves, save = [], engines.save_ctranslate2

    def noted(place, model, config):
        saves.append(place)
        save(place, model, config)

    monkeypatch.setattr(engines, "save_ctranslate2", noted)
    translators = [load(folder, "cpu", engine="ctranslate2") for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda translator: best(translator, beam=1), translators))
    assert found[0] == found[1] == found[2]
    assert len(saves) == 1

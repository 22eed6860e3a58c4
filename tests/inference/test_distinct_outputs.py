"""N-best lists have one output for each text, the best-scored one."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from inference.small_models import TEXTS, save_model
from saccade import messages
from saccade.decoding.config import DecodingConfig
from saccade.inference.distinct_outputs import merge_duplicates, merges_duplicates, wider_search_settings
from saccade.inference.loading import load
from saccade.inference.translation import Candidate
from saccade.inference.translator import Translator
from saccade.ops.dispatch import without_kernels

TEXT = ["ab cd", "gh", "", "ab ab cd ef gh"]
Loads = Callable[[Path, Path], Translator]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path = tmp_path_factory.mktemp("models")
    return save_model(path / "one", {"norm": "pre"}), save_model(path / "other", {"norm": "pre"}, seed=1)


def merging(translator: Translator) -> Translator:
    """Let several tokens spell one text, as other segmentations of a string do."""
    target = translator.tokenizers.target
    decode = target.decode
    target.decode = lambda tokens: re.sub("[a-z]", "x", re.sub("[A-Z]", "Y", decode(tokens)))  # type: ignore[method-assign]
    return translator


ENGINES: dict[str, Loads] = {
    "compiled": lambda one, other: merging(load(one, "cpu", engine="torch")),
    "ctranslate2": lambda one, other: merging(load(one, "cpu", engine="ctranslate2")),
    "ensemble": lambda one, other: merging(load([one, other], "cpu")),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("beam", "nbest"), [(8, 2), (8, 4), (4, 4)])
@pytest.mark.parametrize("scores", [True, False])
def test_texts_differ_and_the_best_scored_is_kept(
    engine: str, beam: int, nbest: int, scores: bool, folders: tuple[Path, Path]
) -> None:
    translator = ENGINES[engine](*folders)
    changes = {"beam": beam, "nbest": nbest}
    all_settings = translator.settings({"beam": beam, "nbest": beam, "keep_duplicates": True})
    every = list(translator.stream(TEXT, all_settings, scores=scores))
    texts = [[one.text for one in translation.candidates] for translation in every]
    assert any(len(set(own)) < len(own) for own in texts), "the model must have duplicates for this test"
    found = list(translator.stream(TEXT, translator.settings(changes), scores=scores))
    for translation, reference in zip(found, every, strict=True):
        own = [one.text for one in translation.candidates]
        assert len(own) == len(set(own)) <= nbest
        ranks = [(one.finished, one.score) for one in translation.candidates]
        assert ranks == sorted(ranks, reverse=True)
        merged = merge_duplicates(reference.candidates)
        if len(merged) >= nbest and engine != "ctranslate2":  # no wider search was needed
            expected = merged[:nbest]
            assert [one.text for one in expected] == own
            assert [one.score for one in expected] == pytest.approx([one.score for one in translation.candidates])


def test_duplicates_are_kept_on_request(folders: tuple[Path, Path]) -> None:
    translator = merging(load(folders[0], "cpu"))
    found = translator.translate(TEXT[0], beam=8, nbest=8, keep_duplicates=True)
    assert len(found) == 8 > len(set(found))


@pytest.mark.parametrize("kernels", [True, False])
def test_a_wider_search_finds_more(kernels: bool, folders: tuple[Path, Path]) -> None:
    with nullcontext() if kernels else without_kernels():
        translator = merging(load(folders[0], "cpu", engine="torch"))
        merged = set(translator.translate(TEXT[0], beam=6, nbest=6, keep_duplicates=True))
        found = translator.translate(TEXT[0], beam=6, nbest=6)
    assert len(merged) < 6
    assert merged < set(found)


def test_a_note_explains_a_shorter_list(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(messages, "note", notes.append)
    translator = merging(load(folders[0], "cpu"))
    assert len(translator.translate(["", "ab"], beam=6, nbest=6, max_length=1)[1]) <= 6
    notes.clear()
    found = translator.translate(["", "ab", "cd"], beam=30, nbest=30, max_length=1)
    assert 0 < len(found[1]) < 30
    assert found[0] == [""]
    assert len(notes) == 1
    assert "line 2" in notes[0]


def test_samples_are_not_merged(folders: tuple[Path, Path]) -> None:
    found = merging(load(folders[0], "cpu")).translate("gh", sample=True, nbest=40, top_k=2, max_length=3)
    assert len(found) == 40 > len(set(found))


def test_long_inputs_have_distinct_outputs(folders: tuple[Path, Path]) -> None:
    for outputs in merging(load(folders[0], "cpu")).translate(TEXTS, beam=6, nbest=3, max_source=4):
        assert len(outputs) == len(set(outputs)) <= 3


def test_which_settings_merge() -> None:
    assert merges_duplicates(DecodingConfig(nbest=2))
    for settings in ({}, {"nbest": 2, "sample": True}, {"nbest": 2, "keep_duplicates": True}):
        assert not merges_duplicates(DecodingConfig(**settings))


def test_widening_first_uses_all_of_the_beam() -> None:
    wider = wider_search_settings(DecodingConfig(beam=5, nbest=2))
    assert (wider.beam, wider.nbest) == (5, 5)
    assert (wider_search_settings(wider).beam, wider_search_settings(wider).nbest) == (10, 10)
    assert wider_search_settings(DecodingConfig(beam=10_000, nbest=10_000)).beam == 10_000


def test_the_best_of_equal_texts_is_kept() -> None:
    def candidate(text: str, score: float, finished: bool = True) -> Candidate:
        return Candidate(text, (), score, score, (), (), finished=finished)

    given = [
        candidate("a", -1),
        candidate("a", -3),
        candidate("b", -2),
        candidate("c", -1, False),
        candidate("b", -1.5),
    ]
    assert [(one.text, one.score) for one in merge_duplicates(given)] == [("a", -1), ("b", -1.5), ("c", -1)]
    assert merge_duplicates([]) == ()

from __future__ import annotations

import pytest
import torch

from inference.small_models import TEXTS, best_tokens, save_model
from saccade.errors import SaccadeError
from saccade.inference.loading import load
from saccade.interop import ctranslate2 as interop

pytestmark = pytest.mark.usefixtures("without_compiler")


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
def test_length_limits_are_those_of_the_torch_engine(folder, changes):
    expected = best_tokens(load(folder, "cpu", engine="torch"), **changes)
    assert best_tokens(load(folder, "cpu", engine="ctranslate2"), **changes) == expected


def test_beams_are_ranked_by_the_scores_of_forced_decoding(folder):
    translator = load(folder, "cpu", engine="ctranslate2")
    for translation in translator.stream(TEXTS, translator.settings({"nbest": 3})):
        scores = [candidate.score for candidate in translation.candidates]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == (3 if translation.source.strip() else 1)
        for candidate in translation.candidates:
            assert candidate.log_probability == pytest.approx(sum(candidate.token_log_probabilities), abs=1e-5)
    without_scores = next(translator.stream(["ab cd"], translator.settings({"beam": 1}), scores=False))
    assert without_scores.candidates[0].token_log_probabilities == ()


@pytest.mark.parametrize("beam", [1, 3])
def test_outputs_longer_than_the_position_table_come_from_torch(folder, monkeypatch, beam):
    monkeypatch.setattr(interop, "MAX_POSITIONS", 6)
    expected = best_tokens(load(folder, "cpu", engine="torch"), beam=beam)
    assert max(map(len, expected)) > 6
    assert best_tokens(load(folder, "cpu", engine="ctranslate2"), beam=beam) == expected


def test_sequences_longer_than_the_learned_positions_are_split_or_errors(tmp_path):
    folder = save_model(tmp_path / "model", {"positions": "learned", "max_positions": 12})
    for engine in ("torch", "ctranslate2"):
        translator = load(folder, "cpu", engine=engine)
        assert translator.translate("ab cd", beam=1) == load(folder, "cpu", engine="torch").translate("ab cd", beam=1)
        parts = translator.translate(["ab cd ef gh", "ij"], beam=1)
        assert translator.translate("ab cd ef gh ij", beam=1) == " ".join(parts)
        with pytest.raises(SaccadeError):
            translator.translate("ab cd ef gh ij", max_source=0)


def test_int8_gives_outputs(folder):
    assert any(best_tokens(load(folder, "cpu", engine="ctranslate2", precision="int8"), beam=1))


def test_the_thread_count_of_torch_does_not_change(folder):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        best_tokens(load(folder, "cpu", engine="ctranslate2"), beam=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)

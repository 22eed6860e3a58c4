from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from inference.small_models import TEXTS, save_model
from saccade.errors import SaccadeError
from saccade.inference.loading import load
from saccade.interop import ctranslate2 as interop
from saccade.model_folder import load_model_folder
from saccade.models.registry import load_family, presets

VARIANTS = [
    {},
    {"norm": "pre"},
    {"tie_output": False},
    {"norm": "pre", "tie_output": False},
    {"positions": "learned", "max_positions": 40},
    {"positions": "none", "norm": "pre"},
    {"encoder_layers": 1, "decoder_layers": 3, "width": 24, "heads": 3},
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_greedy_search_gives_equal_tokens_and_log_probabilities(tmp_path, changes, joint):
    folder = save_model(tmp_path / "model", changes, joint=joint)
    torch_engine, fast = (load(folder, "cpu", engine=name) for name in ("torch", "ctranslate2"))
    settings = torch_engine.settings({"beam": 1})
    for expected, translation in zip(torch_engine.stream(TEXTS, settings), fast.stream(TEXTS, settings), strict=True):
        [reference], [found] = expected.candidates, translation.candidates
        assert found.tokens == reference.tokens
        assert found.token_log_probabilities == pytest.approx(reference.token_log_probabilities, abs=1e-4)
        assert found.score == pytest.approx(reference.score, abs=1e-4)


def test_every_vocabulary_row_is_kept(tmp_path):
    folder = load_model_folder(save_model(tmp_path / "model", joint=False))
    (tmp_path / "out").mkdir()
    interop.save_ctranslate2(tmp_path / "out", folder.model, folder.choice.config, folder.tokenizers)
    for side, tokenizer in zip(("source", "target"), folder.tokenizers, strict=True):
        names = json.loads((tmp_path / "out" / f"{side}_vocabulary.json").read_text(encoding="utf-8"))
        assert names == tokenizer.pieces(range(tokenizer.size))
    runtime = interop.import_runtime().Translator(str(tmp_path / "out"))
    [result] = runtime.translate_batch([["a", "b", "</s>"]], beam_size=1, max_decoding_length=5)
    expected = load(tmp_path / "model", "cpu", engine="torch").translate("ab", beam=1, max_length=5, allow_unknown=True)
    assert "".join(result.hypotheses[0]) == expected


@pytest.mark.parametrize("joint", [True, False])
def test_export_runs_without_saccade(tmp_path, joint):
    """Run the example of docs/guide/exporting.md."""
    folder = load_model_folder(save_model(tmp_path / "model", joint=joint))
    (tmp_path / "out").mkdir()
    interop.save_ctranslate2(tmp_path / "out", folder.model, folder.choice.config, folder.tokenizers)
    source_tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    target_tokenizer = source_tokenizer
    if not joint:
        target_tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "target" / "tokenizer.json"))
    runtime = interop.import_runtime().Translator(str(tmp_path / "out"))
    expected = load(tmp_path / "model", "cpu", engine="torch")
    for text in filter(str.strip, TEXTS):
        options = {"disable_unk": True, "suppress_sequences": [["<pad>"], ["<s>"]], "min_decoding_length": 0}
        source = source_tokenizer.encode(text).tokens
        [result] = runtime.translate_batch([source], beam_size=1, max_decoding_length=7, **options)
        output = target_tokenizer.decode([target_tokenizer.token_to_id(piece) for piece in result.hypotheses[0]])
        assert output == expected.translate(text, beam=1, max_length=7)


def test_unsupported_models_are_errors(tmp_path):
    reasons = {name: interop.unsupported_reason(choice.config) for name, choice in presets().items()}
    assert {name for name, reason in reasons.items() if reason is None} == {
        name
        for name in load_family("transformer").presets
        if name not in ("transformer-local-tiny", "transformer-moe-tiny")
    }
    for changes in ({"radius": 2}, {"experts": 4}, {"position_use": "concatenate", "position_width": 4}):
        folder = load_model_folder(save_model(tmp_path / "model", changes))
        with pytest.raises(SaccadeError):
            interop.save_ctranslate2(Path(tmp_path), folder.model, folder.choice.config)

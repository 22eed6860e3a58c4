"""int8: quantized weights where kernels exist, an error instead of silent float32 elsewhere."""

from __future__ import annotations

import pytest
import torch

from inference.small_models import TEXTS, best_tokens, engine_name, save_model
from saccade.errors import UsageError
from saccade.inference import loading
from saccade.inference.engines import selection
from saccade.inference.engines.selection import USE_FLOAT32
from saccade.inference.loading import load
from saccade.inference.translator import Translator
from saccade.ops.int8_linear import int8_available, int8_copy

pytestmark = pytest.mark.usefixtures("without_compiler")


def test_int8_without_support_is_an_error(folder, tmp_path, monkeypatch):
    assert engine_name(load(folder, "cpu", precision="int8"), beam=1) == "ctranslate2"
    with pytest.raises(UsageError):
        engine_name(load(folder, "cpu", precision="int8"), sample=True)
    monkeypatch.setattr(selection, "int8_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        engine_name(load(folder, "cpu", precision="int8"), sample=True)
    assert caught.value.hint == USE_FLOAT32
    with pytest.raises(UsageError):
        load(save_model(tmp_path / "bahdanau", {}, family="bahdanau"), "cpu", precision="int8")
    monkeypatch.setattr(loading, "int8_available", lambda: False)
    with pytest.raises(UsageError) as caught:
        load(folder, "cpu", engine="torch", precision="int8")
    assert "C compiler" in caught.value.what
    monkeypatch.setattr(loading, "kernels_in_use", lambda: True)  # kernels, but a processor without AVX2
    assert engine_name(load(folder, "cpu", precision="int8"), beam=1) == "ctranslate2"
    with pytest.raises(UsageError) as caught:
        load(folder, "cpu", engine="torch", precision="int8")
    assert "C compiler" not in caught.value.what
    with pytest.raises(UsageError) as caught:
        loading.check_int8(torch.device("meta"))
    assert "meta" in caught.value.what


@pytest.mark.skipif(not int8_available(), reason="no int8 kernels: no C compiler, or an old processor")
@pytest.mark.parametrize("beam", [1, 3])
def test_int8_on_torch(folder, beam):
    exact, quantized = (load(folder, "cpu", engine="torch", precision=kind) for kind in ("float32", "int8"))
    weights = [int8_copy(weight) for weight in quantized.plan.compiled.model.parameters() if weight.dim() == 2]
    assert weights
    assert all(weights)
    for model in (exact.plan.compiled.model, exact.model, quantized.model):
        assert not any(int8_copy(weight) for weight in model.parameters())
    batched = best_tokens(quantized, beam=beam)
    assert batched == [best_alone(quantized, text, beam) for text in TEXTS]
    assert sum(map(len, batched)) > 0


def best_alone(translator: Translator, text: str, beam: int) -> tuple[int, ...]:
    translations = translator.stream([text], translator.settings({"beam": beam}), scores=False)
    return next(translations).candidates[0].tokens

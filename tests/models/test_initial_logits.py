from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from contracts.registered_models import make_batch
from saccade.interface import VocabularySizes
from saccade.models.registry import presets


@pytest.mark.parametrize(
    ("preset", "vocabulary", "sentences", "length", "tolerance"),
    [
        ("transformer-tiny", 500, 8, 9, 0.15),
        ("convs2s-tiny", 500, 8, 9, 0.1),
        ("lstmn-tiny", 500, 8, 9, 0.05),
        ("bytenet-tiny", 100, 4, 30, 0.2),
    ],
)
def test_initial_logits_are_near_uniform(
    preset: str, vocabulary: int, sentences: int, length: int, tolerance: float
) -> None:
    torch.manual_seed(0)
    sizes = VocabularySizes(vocabulary, vocabulary, True)
    model = presets()[preset].make(sizes).eval()
    batch = make_batch([length] * sentences, [length] * sentences, sizes)
    logits = model.logits(model.decode(batch.prefix, model.encode(batch.source)).outputs)
    loss = F.cross_entropy(logits.flatten(0, 1), batch.target.flatten())
    assert loss.item() == pytest.approx(math.log(vocabulary), rel=tolerance)

from __future__ import annotations

import pytest

from saccade.evaluation.default_metrics import default_metrics


@pytest.mark.parametrize(
    ("references", "first"),
    [
        (["dreihundert", "sieben", "zwei und"], "exact-match"),
        (["ein Mann schläft", "eine Frau singt"], "bleu"),
        (["一个男人在睡觉。", "她唱歌。"], "chrf"),
        (["ผู้ชายกำลังนอน"], "chrf"),
    ],
)
def test_the_first_metric_depends_on_the_kind_of_references(references: list[str], first: str) -> None:
    metrics = default_metrics([[reference] for reference in references])
    assert metrics[0] == first
    assert sorted(metrics) == ["bleu", "chrf", "exact-match", "ter"]

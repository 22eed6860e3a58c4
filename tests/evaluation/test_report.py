from __future__ import annotations

import json

import pytest

import saccade
from saccade.errors import SaccadeError
from saccade.evaluation.metrics import score
from saccade.evaluation.report import evaluate_outputs

HYPOTHESES, REFERENCES = ["a b c d", "e f g h"], [["a b c d"], ["e f x h"]]


def test_a_report_has_the_scores_in_the_order_of_the_metrics() -> None:
    report = evaluate_outputs(HYPOTHESES, REFERENCES, ["word-error", "bleu"])
    assert report.count == 2
    assert report.scores == [score("word-error", HYPOTHESES, REFERENCES), score("bleu", HYPOTHESES, REFERENCES)]


def test_json_is_deterministic_and_complete() -> None:
    texts = [json.dumps(evaluate_outputs(HYPOTHESES, REFERENCES, ["bleu", "exact-match"]).to_json()) for _ in range(2)]
    assert texts[0] == texts[1]
    data = json.loads(texts[0])
    assert data["saccade_version"] == saccade.__version__
    assert data["count"] == 2
    assert [entry["name"] for entry in data["scores"]] == ["BLEU", "exact-match"]
    assert data["scores"][1]["value"] == 50


def test_the_table_is_aligned() -> None:
    lines = str(evaluate_outputs(HYPOTHESES, REFERENCES, ["exact-match", "word-error"])).splitlines()
    assert lines[0].startswith("exact-match  50.00  ↑  nrefs:1")
    assert lines[1].startswith("word-error   12.50  ↓  nrefs:1")
    assert lines[2] == "2 sentences"


def test_an_unknown_metric_is_refused_before_the_data_is_read() -> None:
    with pytest.raises(SaccadeError, match="'chrf'"):
        evaluate_outputs([], [], ["bleu", "chrff"])

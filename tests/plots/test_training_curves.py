from __future__ import annotations

from pathlib import Path

import pytest

from saccade.plots.training_curves import Points, Row, lower_is_better, panels_for, plot_curves, points_of

ROWS: list[Row] = [
    {"step": "100", "loss": "6.5", "learning_rate": "1e-4", "tokens_per_second": "5000", "valid_loss": ""},
    {"step": "200", "loss": "5.5", "learning_rate": "2e-4", "tokens_per_second": "5100", "valid_loss": "5.7"}
    | {"valid_perplexity": "298.9", "valid_bleu": "3.1"},
    {"step": "300", "loss": "nan", "learning_rate": "3e-4", "tokens_per_second": "5050", "valid_loss": ""},
    {"step": "400", "loss": "4.5", "learning_rate": "4e-4", "tokens_per_second": "4900", "valid_loss": "4.8"}
    | {"valid_perplexity": "inf", "valid_bleu": "8.4"},
]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        ROWS[1:2],
        [],
        [{"step": "1", "loss": "nan", "valid_perplexity": "inf", "valid_bleu": "", "learning_rate": "0"}],
        [{"loss": 3.0}, {"loss": 2.0}],
    ],
    ids=["usual", "single", "empty", "not finite", "without steps"],
)
def test_any_rows_can_be_plotted(rows: list[Row], tmp_path: Path) -> None:
    plot_curves(rows, tmp_path / "results.png")
    data = (tmp_path / "results.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) > 5000


def test_points_leave_out_what_is_missing_or_not_finite() -> None:
    assert points_of(ROWS, "loss") == Points([100, 200, 400], [6.5, 5.5, 4.5])
    assert points_of(ROWS, "valid_perplexity") == Points([200], [298.9])
    assert points_of(ROWS, "valid_bleu") == Points([200, 400], [3.1, 8.4])
    assert points_of([{"loss": 3.0}, {"loss": "2"}], "loss") == Points([0, 1], [3, 2])
    assert points_of([{"step": 1, "valid_perplexity": 0.0}], "valid_perplexity", positive=True) == Points([], [])


def test_every_validation_score_has_a_panel() -> None:
    titles = [panel.title for panel in panels_for(ROWS)]
    assert titles == ["loss", "validation perplexity", "validation BLEU", "learning rate", "tokens per second"]
    assert [panel.title for panel in panels_for([])][1] == "validation score"


def test_training_and_validation_loss_are_both_without_label_smoothing() -> None:
    rows: list[Row] = [{"step": "1", "loss": "6.0", "nll": "5.5"}, {"step": "1", "valid_loss": "5.4"}]
    loss, objective, *_ = panels_for(rows)
    assert [curve.column for curve in loss.curves] == ["nll", "valid_loss"]
    assert [curve.column for curve in objective.curves] == ["loss"]
    equal: list[Row] = [{"step": "1", "loss": "5.5", "nll": "5.5"}, {"step": "1", "valid_loss": "5.4"}]
    assert not [panel for panel in panels_for(equal) if "objective" in panel.title]


def test_the_best_error_is_the_lowest() -> None:
    assert all(lower_is_better(f"valid_{name}") for name in ("loss", "perplexity", "ter", "word_error", "word-error"))
    assert not any(lower_is_better(f"valid_{name}") for name in ("bleu", "chrf", "exact_match", "accuracy"))

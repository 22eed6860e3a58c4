from __future__ import annotations

import pytest
import torch

from saccade.errors import SaccadeError
from saccade.training.checkpoints.resume_checks import (
    check_resumable,
    environment_changes,
    numeric_environment,
    result_changing_settings,
)
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_config


def make(**training) -> RunConfig:
    model = {"preset": "transformer-tiny"}
    return resolve_config({"model": model, "data": {"source": "a.tsv"}, "training": training}, where="test")


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"accumulate": 2},
        {"r_drop": 1.0},
        {"metrics": ["chrf"]},
        {"metrics": ["bleu", "chrf"], "criterion": "chrf"},
    ],
    ids=str,
)
def test_fixed_settings_cannot_change(change):
    with pytest.raises(SaccadeError, match=r"training\."):
        check_resumable(make(), make(**change))


def test_data_settings_cannot_change_but_the_cache_can():
    before = make()
    for change, refused in ({"max_length": 9}, True), ({"cache": "elsewhere"}, False), ({"workers": 3}, False):
        after = before.model_copy(update={"data": before.data.model_copy(update=change)})
        if refused:
            with pytest.raises(SaccadeError, match=r"data\.max-length"):
                check_resumable(before, after)
        else:
            check_resumable(before, after)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"max_minutes": 5}, []),
        ({"max_steps": 50}, []),
        ({"patience": 3, "keep_checkpoints": 9}, []),
        ({"learning_rate": 0.1}, ["training.learning-rate 0.01 -> 0.1"]),
        ({"log_every": 7}, ["training.log-every None -> 7"]),
    ],
    ids=str,
)
def test_result_changing_settings_are_reported(change, expected):
    assert result_changing_settings(make(), make(**change)) == expected


def test_new_length_is_reported_if_the_schedule_depends_on_it():
    before, after = make(schedule="linear", max_steps=10), make(schedule="linear", max_steps=20)
    assert result_changing_settings(before, after) == ["training.max-steps 10 -> 20"]


def test_environment_changes_are_reported():
    before = numeric_environment(torch.device("cpu"), 1, "float32")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        after = numeric_environment(torch.device("cpu"), 1, "float32")
    finally:
        torch.set_num_threads(threads)
    assert environment_changes(before, after) == [f"threads {threads} -> {threads + 1}"]
    assert environment_changes(before, dict(before)) == []

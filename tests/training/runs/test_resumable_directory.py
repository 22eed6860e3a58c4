"""Resuming a run directory that has lost some of its files: nothing that is left is replaced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from crash_safety.kill_runs import differences
from saccade.config import merge
from saccade.errors import SaccadeError
from saccade.training.config_resolution import resolve_config
from saccade.training.run import resume, train
from training.small_runs import STEPS, log_of, run_settings, write_pairs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 12 updates with three checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    write_pairs(folder, 200, 5)
    settings = run_settings(folder, hold_out=20, **STEPS)
    others = {"data": {"cache": str(folder / "cache")}, "output": str(folder / "run")}
    train(resolve_config(merge(settings, others), where="test"))
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def contents(run: Path) -> dict[Path, bytes]:
    """Return the contents of all results of a run."""
    results = [run / "metrics.csv", *(run / "model-last").rglob("*"), *(run / "model-best").rglob("*")]
    return {path: path.read_bytes() for path in results if path.is_file()}


def delete_folder(run: Path) -> None:
    """Delete the folder of checkpoints."""
    shutil.rmtree(run / "checkpoints")


def empty_folder(run: Path) -> None:
    """Delete all checkpoints but not their folder."""
    delete_folder(run)
    (run / "checkpoints").mkdir()


def empty_folder_of_a_killed_run(run: Path) -> None:
    """Delete all checkpoints of a run that was killed, so that it has no model-last."""
    empty_folder(run)
    shutil.rmtree(run / "model-last")


def keep_only_a_damaged_checkpoint(run: Path) -> None:
    """Delete all checkpoints except a damaged one."""
    shutil.rmtree(run / "model-last")
    (run / "checkpoints" / "step-4").rename(run / "checkpoints" / "damaged-step-4")
    for name in ("step-8", "step-12"):
        shutil.rmtree(run / "checkpoints" / name)


@pytest.mark.parametrize(
    "lose", [delete_folder, empty_folder, empty_folder_of_a_killed_run, keep_only_a_damaged_checkpoint]
)
def test_lost_checkpoints_are_refused_and_results_kept(run: Path, lose: Callable[[Path], None]) -> None:
    lose(run)
    before = contents(run)
    assert before
    config = (run / "config.yaml").read_bytes()
    with pytest.raises(SaccadeError) as refused:
        resume(run, {"training": {"max_steps": 20}})
    assert refused.value.exit_code == 1
    assert refused.value.where == str(run / "checkpoints")
    assert "metrics.csv" in refused.value.what
    assert "--from" in (refused.value.hint or "")
    assert contents(run) == before
    assert (run / "config.yaml").read_bytes() == config


@pytest.mark.parametrize("name", ["config.yaml", "data.json", "tokenizers"])
def test_missing_files_are_refused_and_results_kept(run: Path, name: str) -> None:
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = contents(run)
    with pytest.raises(SaccadeError, match=name) as refused:
        resume(run, {"training": {"max_steps": 20}})
    assert "--from" in (refused.value.hint or "")
    assert contents(run) == before
    assert not path.exists()


def test_missing_metrics_do_not_stop_a_run(run: Path) -> None:
    (run / "metrics.csv").unlink()
    assert resume(run, {"training": {"max_steps": 14}}).step == 14
    assert "some of its rows are lost" in log_of(run)
    assert (run / "metrics.csv").read_text(encoding="utf-8").startswith("step,")


def test_missing_models_are_written_again(run: Path, finished: Path) -> None:
    shutil.rmtree(run / "model-last")
    assert resume(run).step == 12
    assert differences(finished, run) == []


def test_a_model_folder_is_not_a_run(run: Path) -> None:
    with pytest.raises(SaccadeError) as refused:
        resume(run / "model-best")
    assert str(run) in (refused.value.hint or "")

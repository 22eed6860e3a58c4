"""Repeating a comparison: which settings may change, which phases run again, which errors are reported."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from small_comparison import in_this_process, interrupt_training, request_of

from saccade.config import merge, read_yaml
from saccade.errors import SaccadeError
from saccade.inference.translator import Translator
from saccade.studies.comparison import phases
from saccade.studies.comparison.compare import compare
from saccade.studies.comparison.phases import PhaseEnd, run_in_worker
from saccade.studies.comparison.results import (
    alignment_path,
    outputs_path,
    read_alignment,
    read_result,
    result_path,
    run_path,
)
from saccade.training.runs.lock import run_lock

pytestmark = pytest.mark.usefixtures("quick", "no_plots")


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a finished comparison of one model."""
    output = tmp_path_factory.mktemp("comparison") / "out"
    compare(request_of(corpus, output, "transformer"), "saccade compare", in_this_process)
    return output


@pytest.fixture
def done(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished comparison."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


class RecordedPhases:
    """Runs phases in this process and records their names."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, phase: str, job: Path) -> PhaseEnd:
        self.seen.append(phase)
        return in_this_process(phase, job)


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_incomplete_outputs_are_translated_again(damage: str, done: Path, corpus: Path) -> None:
    path = outputs_path(done, "transformer")
    before = path.read_text(encoding="utf-8")
    if damage == "missing":
        path.unlink()
    else:
        path.write_text("".join(before.splitlines(keepends=True)[:-1]), encoding="utf-8")
    steps = read_result(done, "transformer").trained
    recorded = RecordedPhases()
    found = compare(request_of(corpus, done, "transformer"), "saccade compare", recorded)
    assert recorded.seen == ["train"]
    assert not found.failed
    assert path.read_text(encoding="utf-8") == before
    assert read_result(done, "transformer").trained == steps


def test_another_sentence_repeats_the_alignments_and_nothing_else(done: Path, corpus: Path) -> None:
    recorded = RecordedPhases()
    request = request_of(corpus, done, "transformer", sentence="red cat")
    found = compare(request, "saccade compare", recorded)
    assert recorded.seen == ["align"]
    assert not found.failed
    drawn = read_alignment(done, "transformer", "red cat")
    assert drawn is not None
    assert len(drawn.source_pieces) == 3
    compare(request, "saccade compare", recorded)
    assert recorded.seen == ["align"]
    alignment_path(done, "transformer").unlink()
    compare(request, "saccade compare", run_in_worker)
    assert read_alignment(done, "transformer", "red cat") == drawn


def test_scores_do_not_depend_on_the_alignment(done: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Translator, text: str) -> NoReturn:
        raise SaccadeError("it is too long")

    monkeypatch.setattr(Translator, "explain", refuse)
    request = request_of(corpus, done, "transformer", sentence="red dog")
    found = compare(request, "saccade compare", in_this_process)
    assert not found.failed
    assert "transformer has no alignment: it is too long" in found.scores.notes
    killed = compare(
        replace(request, sentence="one"),
        "saccade compare",
        lambda *_: PhaseEnd(failure="its process was killed by signal 9"),
    )
    assert not killed.failed
    assert any("has no alignment: its process was killed" in note for note in killed.scores.notes)


def test_settings_are_compared_by_value(done: Path, corpus: Path) -> None:
    request = request_of(corpus, done, "transformer")
    as_text = merge(request.settings, {"data": {"batch-tokens": "512"}, "decoding": {"beam": "2"}})
    del as_text["data"]["batch_tokens"]
    recorded = RecordedPhases()
    compare(replace(request, settings=as_text), "saccade compare", recorded)
    assert recorded.seen == []
    # compare.json may contain settings as strings.
    path = done / "compare.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["settings"]["data"]["batch_tokens"] == 512
    assert kept["machines"]["transformer"]["threads"] == "1"
    kept["settings"]["data"]["batch_tokens"] = "512"
    kept["settings"]["sentence"] = None
    path.write_text(json.dumps(kept), encoding="utf-8")
    compare(request, "saccade compare", recorded)
    assert recorded.seen == []
    with pytest.raises(SaccadeError, match=r"data\.batch-tokens .*512.*256"):
        compare(
            replace(request, settings=merge(request.settings, {"data": {"batch_tokens": "256"}})),
            "saccade compare",
            recorded,
        )


def test_settings_may_change_until_a_model_has_a_plan(corpus: Path, tmp_path: Path) -> None:
    request = request_of(corpus, tmp_path / "out", "transformer")
    stopped = compare(request, "saccade compare", lambda *_: PhaseEnd(interrupted=130))
    assert stopped.interrupted == 130
    changed = replace(request, settings=merge(request.settings, {"training": {"seed": 2}}))
    assert compare(changed, "saccade compare", lambda *_: PhaseEnd(interrupted=130)).interrupted == 130
    kept = json.loads((tmp_path / "out" / "compare.json").read_text(encoding="utf-8"))
    assert kept["settings"]["training"]["seed"] == 2


def test_invalid_settings_are_an_error_before_anything_is_written(corpus: Path, tmp_path: Path) -> None:
    request = request_of(corpus, tmp_path / "out", "transformer")
    few = merge(request.settings, {"training": {"keep_checkpoints": 3}})
    with pytest.raises(SaccadeError, match="keep-checkpoints"):
        compare(replace(request, settings=few), "saccade compare", in_this_process)
    assert not (tmp_path / "out").exists()


def test_files_may_be_moved_between_two_calls(
    corpus: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(corpus, first)
    with monkeypatch.context() as patch:
        interrupt_training(patch)
        stopped = compare(request_of(first, tmp_path / "out", "transformer"), "saccade compare", in_this_process)
    assert stopped.interrupted == 130
    first.rename(second)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    found = compare(request_of(second, tmp_path / "elsewhere", "transformer"), "saccade compare", in_this_process)
    assert not found.failed
    outputs = outputs_path(tmp_path / "elsewhere", "transformer").read_bytes()
    assert outputs == outputs_path(finished, "transformer").read_bytes()
    config = read_yaml(run_path(tmp_path / "elsewhere", "transformer") / "config.yaml")
    assert config["data"]["source"] == [str(second / "train.en")]


def test_a_plan_takes_the_current_paths_of_the_files(corpus: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(corpus, first)

    def only_plan(phase: str, job: Path) -> PhaseEnd:
        return in_this_process(phase, job) if phase == "plan" else PhaseEnd(interrupted=130)

    compare(request_of(first, tmp_path / "out", "transformer"), "saccade compare", only_plan)
    first.rename(second)
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    found = compare(request_of(second, tmp_path / "elsewhere", "transformer"), "saccade compare", in_this_process)
    assert not found.failed
    assert not (tmp_path / "out").exists()


def test_a_worker_that_is_still_running_stops_the_comparison(done: Path, corpus: Path) -> None:
    outputs_path(done, "transformer").unlink()
    with run_lock(run_path(done, "transformer")), pytest.raises(SaccadeError, match=r"runs.transformer"):
        compare(request_of(corpus, done, "transformer"), "saccade compare", in_this_process)
    assert read_result(done, "transformer").status == "trained"


def test_a_test_sentence_that_is_too_long_is_an_error_before_training(corpus: Path, tmp_path: Path) -> None:
    lines = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    lines[4] = "red " * 40
    (tmp_path / "test.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
    request = request_of(corpus, tmp_path / "out", "transformer", test_source=tmp_path / "test.en")
    learned = {"model": {"positions": "learned", "max_positions": 32}}
    recorded = RecordedPhases()
    found = compare(replace(request, settings=merge(request.settings, learned)), "saccade compare", recorded)
    assert recorded.seen == ["plan"]
    assert "line 5 has 41 tokens, the model 32 positions" in found.scores.rows[0].result.reason


def test_a_full_disk_is_the_reason(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", "results/transformer.json")

    def run_phase(phase: str, job: Path) -> PhaseEnd:
        with monkeypatch.context() as patch:
            patch.setattr(phases, "load_data", full)
            return in_this_process(phase, job)

    found = compare(request_of(corpus, tmp_path / "out", "transformer"), "saccade compare", run_phase)
    assert found.failed
    note = "transformer failed: results/transformer.json: No space left on device"
    assert note in found.scores.notes
    assert result_path(tmp_path / "out", "transformer").exists()

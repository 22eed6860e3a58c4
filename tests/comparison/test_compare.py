from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from small_comparison import in_this_process, interrupt_training, request_of

from saccade.config import merge, read_yaml
from saccade.errors import SaccadeError, UsageError
from saccade.evaluation.metrics import bleu
from saccade.studies.comparison.budget import make_plan, read_budget
from saccade.studies.comparison.compare import Outcome, compare
from saccade.studies.comparison.phases import ModelJob, PhaseEnd, read_job, run_in_worker, write_job
from saccade.studies.comparison.results import outputs_path, read_result, result_path, run_path

COMMAND = "saccade compare --sentence 'a <b> & c'"


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison") / "out"


@pytest.fixture(scope="module")
def outcome(corpus: Path, output: Path) -> Outcome:
    return compare(request_of(corpus, output), COMMAND, in_this_process)


def test_every_model_trains_as_planned_and_is_scored(outcome: Outcome, corpus: Path, output: Path) -> None:
    assert outcome.scores is not None
    assert not outcome.failed
    references = [[line] for line in (corpus / "test.de").read_text(encoding="utf-8").splitlines()]
    for row in outcome.scores.rows:
        config = read_yaml(run_path(output, row.entry.name) / "config.yaml")
        trained = row.result.trained
        assert trained is not None
        assert row.result.plan is not None
        assert config["training"]["max_steps"] == trained.updates == row.result.plan.updates
        assert config["training"]["schedule"] == "linear"
        assert abs(trained.target_tokens - 3000) < 2 * row.result.plan.tokens_an_update
        assert trained.flops > 0
        assert row.result.parameters > 0
        assert row.result.machine["threads"] == "1"
        assert row.result.peak_memory > 10**7
        outputs = outputs_path(output, row.entry.name).read_text(encoding="utf-8").splitlines()
        assert row.bleu is not None
        assert row.bleu.value == pytest.approx(bleu(outputs, references).value)
        assert len(row.by_length) == len(outcome.scores.buckets)
        assert row.result.decoded is not None
        assert row.result.decoded.sentences == 40
    assert outcome.scores.baseline in ("transformer", "transformer-small")
    assert len(outcome.scores.differences) == 1
    assert outcome.scores.differences[0].name != outcome.scores.baseline


def test_the_report_is_complete(outcome: Outcome, output: Path) -> None:
    page = ElementTree.fromstring((output / "compare.html").read_text(encoding="utf-8").removeprefix("<!DOCTYPE html>"))
    sources = [image.attrib["src"] for image in page.iter("img")]
    assert len(sources) == 3
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    assert [pre.text for pre in page.iter("pre")] == [COMMAND]
    assert "transformer-small" in {cell.text for cell in page.iter("td")}
    assert not [tag for tag in ("script", "link", "iframe") if list(page.iter(tag))]
    markdown = (output / "compare.md").read_text(encoding="utf-8")
    assert f"    {COMMAND}\n" in markdown
    assert "(by-length.png)" in markdown
    for plot in ("by-length.png", "by-minutes.png", "alignments.png"):
        assert (output / plot).read_bytes().startswith(b"\x89PNG")
    with (output / "compare.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["preset"] for row in rows] == ["transformer-tiny", "transformer-small"]
    assert float(rows[0]["bleu_low"]) <= float(rows[0]["bleu_high"])
    stored = json.loads((output / "compare.json").read_text(encoding="utf-8"))
    assert stored["rows"][0]["bleu"] == pytest.approx(float(rows[0]["bleu"]))
    for name in ("compare.html", "compare.md", "compare.csv"):
        assert str(output.parent) not in (output / name).read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_plots")
def test_finished_models_run_no_phase_again(outcome: Outcome, corpus: Path, output: Path) -> None:
    def refuse(phase: str, job: Path) -> PhaseEnd:
        raise AssertionError(f"{phase} of {job}")

    before = (output / "compare.csv").read_bytes()
    again = compare(request_of(corpus, output), COMMAND, refuse)
    assert (output / "compare.csv").read_bytes() == before
    assert again.scores == outcome.scores
    alone = compare(request_of(corpus, output, "transformer-small"), COMMAND, refuse)
    assert alone.scores is not None
    assert alone.scores.baseline is None
    compare(request_of(corpus, output), COMMAND, refuse)


def test_other_settings_are_an_error(outcome: Outcome, corpus: Path, output: Path, tmp_path: Path) -> None:
    request = request_of(corpus, output)
    changed = replace(request, settings=merge(request.settings, {"training": {"seed": 2}}))
    with pytest.raises(SaccadeError, match=r"training\.seed .*2"):
        compare(changed, COMMAND, in_this_process)
    (tmp_path / "test.de").write_text((corpus / "test.de").read_text(encoding="utf-8").upper(), encoding="utf-8")
    with pytest.raises(SaccadeError, match="--test-reference"):
        compare(replace(request, test_references=(tmp_path / "test.de",)), COMMAND, in_this_process)
    with pytest.raises(SaccadeError, match=tmp_path.name):
        compare(replace(request, output=tmp_path), COMMAND, in_this_process)


@pytest.mark.usefixtures("no_plots")
def test_an_interrupted_model_resumes_with_equal_weights(
    outcome: Outcome, corpus: Path, output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "out"
    with monkeypatch.context() as patch:
        interrupt_training(patch)
        stopped = compare(request_of(corpus, other), COMMAND, in_this_process)
    assert stopped.interrupted == 130
    assert stopped.scores is None
    found = read_result(other, "transformer")
    assert found is not None
    assert found.trained is None
    assert not result_path(other, "transformer-small").exists()
    compare(request_of(corpus, other, "transformer"), COMMAND, in_this_process)
    weights = Path("model-last") / "model.safetensors"
    for path in ("outputs/transformer.txt", f"runs/transformer/{weights}", "runs/transformer/metrics.csv"):
        assert (other / path).read_bytes() == (output / path).read_bytes()


@pytest.mark.usefixtures("no_plots")
def test_a_model_that_fails_does_not_stop_the_others(outcome: Outcome, corpus: Path, tmp_path: Path) -> None:
    def run_phase(phase: str, job: Path) -> PhaseEnd:
        if phase == "train" and job.name == "transformer.json":
            return PhaseEnd(failure="its process was killed by signal 9")
        return in_this_process(phase, job)

    found = compare(request_of(corpus, tmp_path / "out", "transformer,transformer-small"), COMMAND, run_phase)
    assert found.failed
    assert found.scores is not None
    assert [row.bleu is None for row in found.scores.rows] == [True, False]
    assert any("transformer failed: its process was killed" in note for note in found.scores.notes)
    assert "failed" in (tmp_path / "out" / "compare.md").read_text(encoding="utf-8")
    # The second call runs the remaining phases.
    found = compare(request_of(corpus, tmp_path / "out"), COMMAND, in_this_process)
    assert not found.failed


@pytest.mark.usefixtures("no_plots")
def test_an_error_is_the_reason_of_a_failed_model(corpus: Path, tmp_path: Path) -> None:
    request = request_of(corpus, tmp_path / "out", "transformer")
    longest = {"model": {"positions": "learned", "max_positions": 3}}
    found = compare(replace(request, settings=merge(request.settings, longest)), COMMAND, in_this_process)
    assert found.failed
    assert found.scores is not None
    reason = found.scores.rows[0].result.reason
    assert reason is not None
    assert "3 positions" in reason


def test_references_of_another_length_are_an_error_before_anything_is_written(corpus: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.de"
    short.write_text("eins\n", encoding="utf-8")
    with pytest.raises(SaccadeError, match=r"short\.de"):
        compare(request_of(corpus, tmp_path / "out", test_references=(short,)), COMMAND, in_this_process)
    assert not (tmp_path / "out").exists()


def test_a_lexicon_for_unknown_words_is_an_error(corpus: Path, tmp_path: Path) -> None:
    request = request_of(corpus, tmp_path / "out")
    lexicon = merge(request.settings, {"decoding": {"replace_unknown": "lexicon"}})
    with pytest.raises(UsageError, match="replace-unknown"):
        compare(replace(request, settings=lexicon), COMMAND, in_this_process)


def test_a_trial_decides_how_many_updates_fill_the_minutes(corpus: Path, tmp_path: Path) -> None:
    request = request_of(corpus, tmp_path / "out", "transformer", budget=read_budget("30s"))
    job = ModelJob(
        request.entries[0], dict(request.settings), request.budget, str(request.test_source), str(request.output), None
    )
    write_job(tmp_path / "job.json", job)
    assert read_job(tmp_path / "job.json") == job
    assert in_this_process("plan", tmp_path / "job.json") == PhaseEnd()
    found = read_result(request.output, "transformer")
    assert found is not None
    assert found.status == "planned"
    assert found.plan is not None
    assert found.plan.speed is not None
    assert 0 < found.plan.speed.seconds_an_update < 5
    assert found.plan.speed.validation_seconds > 0
    assert found.plan.speed.loss_seconds > 0
    assert found.plan.speed.sentences == 2
    assert found.plan == make_plan(request.budget, found.plan.tokens_an_update, found.plan.speed, fewer_sentences=False)
    assert found.config is not None
    assert found.config["training"]["max_steps"] == found.plan.updates
    assert found.config["training"]["max_minutes"] == 0.5
    assert found.config["training"]["valid_sentences"] == 2
    assert not run_path(request.output, "transformer").exists()


def test_a_worker_that_cannot_start_its_phase_reports_the_error(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}", encoding="utf-8")
    end = run_in_worker("plan", tmp_path / "job.json")
    assert end.interrupted is None
    assert end.failure is not None
    assert "job.json" in end.failure

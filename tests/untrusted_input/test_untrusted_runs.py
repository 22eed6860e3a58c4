"""Every command on crafted files: a result or a user error, without a traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from saccade.training.checkpoints.checkpoint import list_checkpoints
from untrusted_input.case import Case
from untrusted_input.command import check_answer, command
from untrusted_input.crafted_checkpoints import CHECKPOINTS
from untrusted_input.crafted_folders import REJECTED
from untrusted_input.crafted_runs import RUNS
from untrusted_input.guard import guarded, time_limit
from untrusted_input.pristine import copy_of

RESUMED = [case for case in CHECKPOINTS.cases if not case.name.startswith("weights_")][::20] + RUNS.cases[::9]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four updates with two checkpoints."""
    folder = tmp_path_factory.mktemp("run")
    for name, line in (("source", "ein kleiner Hund\n"), ("target", "a small dog\n")):
        (folder / name).write_text(line * 40, encoding="utf-8")
    small = ("--model.width", 16, "--model.heads", 2, "--model.feed-forward", 16, "--data.tokenizer", "byte")
    small += ("--model.encoder-layers", 1, "--model.decoder-layers", 1, "--data.batch-tokens", 256)
    steps = ("--training.max-steps", 4, "--training.checkpoint-every", 2, "--training.log-every", 1)
    arguments = ("--source", folder / "source", "--target", folder / "target", "--output", folder / "run")
    answer = command("train", *arguments, *small, *steps, "--data.workers", 1, "--data.cache", folder / "cache")
    assert answer.code == 0, answer.err
    return folder / "run"


def resume(directory: Path) -> tuple[int, str]:
    """Resume a run; return the exit code and the messages."""
    with time_limit(60):
        answer = command("train", "--resume", directory, "--training.max-steps", 5)
    assert "Traceback" not in answer.err
    assert "internal error" not in answer.err
    if answer.code:
        check_answer(answer)
    return answer.code, answer.err


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in RESUMED])
def test_resuming_from_invalid_files_is_an_error_or_ignores_them(run: Path, tmp_path: Path, case: Case) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    if case in RUNS.cases:
        case.make(copy)
        code, messages = resume(copy)
        assert code == 0 or case.file in messages
        return
    newest = list_checkpoints(copy / "checkpoints")[-1]
    case.make(newest)
    code, messages = resume(copy)
    assert case.file in messages
    if code == 0:  # resumed from an older checkpoint
        assert f"damaged checkpoint: {newest / case.file}" in messages


@pytest.mark.slow
@pytest.mark.parametrize("case", RUNS.parameters())
def test_invalid_content_of_any_file_of_a_run_is_an_error_or_ignored(run: Path, tmp_path: Path, case: Case) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    case.make(copy)
    code, messages = resume(copy)
    assert code == 0 or case.file in messages


@pytest.mark.parametrize("case", RUNS.parameters())
def test_info_of_a_run_with_invalid_files_is_a_result_or_an_error(run: Path, tmp_path: Path, case: Case) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    case.make(copy)
    with guarded(tmp_path):
        answer = command("info", copy)
    check_answer(answer)
    assert answer.code == 0 or case.file in answer.err


SOME = [pytest.param(*row, id=f"{row[0]}-{row[1].name}") for row in REJECTED[::12]]


@pytest.mark.parametrize(("kind", "case"), SOME)
def test_every_command_rejects_a_crafted_folder(
    pristine: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, case: Case
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = copy_of(pristine[kind], tmp_path)
    case.make(folder)
    (tmp_path / "lines").write_text("ein Hund\n", encoding="utf-8")
    for arguments in (
        ("average", folder, pristine[kind], "--output", tmp_path / "average"),
        ("translate", folder, "--input", "lines"),
        ("evaluate", folder, "--source", "lines", "--reference", "lines"),
        ("attention", folder, "ein Hund"),
        ("verify", folder),
    ):
        with guarded(tmp_path):
            answer = command(*arguments)
        check_answer(answer)
        assert answer.code == 1
        assert case.file in answer.err or str(folder) in answer.err
    assert not (tmp_path / "average").exists()

"""Commands on files and folders without permission."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import pytest
from table import Try, read_table
from test_user_errors_commands import check_error
from workspace import contents

from saccade.cli.main import main


@pytest.fixture(scope="module")
def pristine(workspace: Path) -> dict[str, str]:
    """The contents of the workspace, to which files without permission are added."""
    for name in ("unreadable.en", "unreadable.yaml", "unreadable.model"):
        (workspace / name).write_text("one\n")
        (workspace / name).chmod(0)
    if os.access(workspace / "unreadable.en", os.R_OK):
        pytest.skip("this user may read every file: run the tests without root's capability CAP_DAC_OVERRIDE")
    (workspace / "readonly.txt").write_text("results of last week\n")
    (workspace / "readonly.txt").chmod(0o444)
    shutil.copytree(workspace / "model", workspace / "unreadable-model")
    (workspace / "unreadable-model/model.safetensors").chmod(0)
    shutil.copytree(workspace / "run", workspace / "readonly-run")
    for name, mode in (("readonly", 0o555), ("closed", 0), ("readonly-run", 0o555)):
        (workspace / name).mkdir(exist_ok=True)
        (workspace / name).chmod(mode)
    return contents(workspace)


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(one, id=one.text, marks=() if one.fast else pytest.mark.slow)
        for one in read_table("permissions.txt")
    ],
)
def test_command_without_permission(
    one: Try, workspace: Path, unchanged: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    code = main(list(one.words))
    captured = capsys.readouterr()
    check_error(code, captured.out, captured.err, one.code)

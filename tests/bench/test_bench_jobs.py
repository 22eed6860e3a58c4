"""Jobs and results between processes, and environments that cannot be installed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from bench.environments import Environment, Recipe, environment, find_reason
from bench.peers.job import UpdateTimer, find_result, print_result, read_ids, read_job, read_lines, write_lines
from bench.processes import run_job

from bench import environments, processes


def test_job_and_result_round_trip(capsys):
    job = {"task": "training", "size": {"width": 128, "length": None}, "folder": "a b/ü"}
    assert read_job([json.dumps(job)]) == job
    print("something else")
    print_result({"seconds": [0.5], "tokens": [7]})
    print("and more")
    result = find_result(capsys.readouterr().out)
    assert result is not None
    assert (result["seconds"], result["tokens"]) == ([0.5], [7])
    assert result["megabytes"] > 1
    assert find_result("nothing\n") is None


@pytest.mark.parametrize("arguments", [[], ["{}", "{}"], ["[1]"]])
def test_invalid_jobs_are_errors(arguments):
    with pytest.raises(SystemExit):
        read_job(arguments)


def test_warmup_updates_are_not_measured():
    updates = UpdateTimer(warmup=2, updates=3)
    assert [updates.record(number) for number in (10, 20, 30, 40, 50)] == [False, False, False, False, True]
    assert updates.result()["tokens"] == [30, 40, 50]
    assert len(updates.result()["seconds"]) == 3
    assert all(seconds >= 0 for seconds in updates.result()["seconds"])


def test_first_update_is_not_measured():
    updates = UpdateTimer(warmup=0, updates=1)
    assert [updates.record(10), updates.record(20)] == [False, True]
    assert updates.result()["tokens"] == [20]
    assert updates.result()["seconds"][0] < 10


def test_files_of_lines_and_ids(tmp_path):
    write_lines(tmp_path / "new" / "x", ["a\u2028b", "", "c"])
    assert read_lines(tmp_path / "new" / "x") == ["a\u2028b", "", "c"]
    (tmp_path / "ids").write_text("4 5 3\n3\n")
    assert read_ids(tmp_path / "ids") == [[4, 5, 3], [3]]


def test_failed_installation_is_recorded(tmp_path, monkeypatch):
    recipe, folder = Recipe(("fakepeer",), ("fakepeer",), torch=False), tmp_path / "environments"
    monkeypatch.setattr(environments.venv, "create", lambda path, with_pip: fake_python(path))
    first = environment("fakepeer", recipe=recipe, folder=folder)
    assert not first.ready
    assert first.reason is not None
    assert first.reason.startswith("does not install: ")
    assert str(tmp_path) not in first.reason
    assert not (folder / "fakepeer").exists()

    monkeypatch.setattr(environments, "make", lambda *_: Environment("fakepeer"))
    assert environment("fakepeer", recipe=recipe, folder=folder) == first
    assert environment("fakepeer", recipe=recipe, folder=folder, again=True).ready
    changed = replace(recipe, packages=("another",))
    assert environment("fakepeer", recipe=changed, folder=folder).ready


def fake_python(path):
    """An interpreter whose pip fails, so that nothing is downloaded."""
    (path / "bin").mkdir(parents=True)
    python = path / "bin" / "python"
    python.write_text(f"#!/bin/sh\necho 'ERROR: Could not build {path}/x: no compiler' >&2\nexit 1\n")
    python.chmod(0o755)


def test_reason_of_a_failure():
    conflict = (
        "ERROR: no\n\nThe conflict is caused by:\n    x 1 depends on torch<2\n    we want torch 3\nTo fix this …\n"
    )
    assert find_reason(conflict) == "x 1 depends on torch<2; we want torch 3"
    trace = "Traceback …\n  File x\nTypeError: '>' not supported\nlast line"
    assert find_reason(trace) == "TypeError: '>' not supported"
    assert find_reason("saccade: error: no such command\n  try --help") == "saccade: error: no such command"
    pip_error = "ERROR: No matching distribution for /home/me/here/x.whl"
    assert find_reason(pip_error) == "No matching distribution for x.whl"
    assert find_reason("") == "no output"


@pytest.fixture
def peer_script(tmp_path, monkeypatch):
    """The script of a fake peer, run by this interpreter."""
    folder = tmp_path / "bench" / "peers"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").write_text("")
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    monkeypatch.setattr(processes, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(processes, "interpreter", lambda peer: sys.executable)
    return folder / "fake.py"


def test_result_of_a_peer(peer_script):
    peer_script.write_text('import sys\nprint("noise")\nprint("bench-result " + sys.argv[1])\n')
    assert run_job("fake", {"name": "x", "value": 3}).result == {"name": "x", "value": 3}


def test_failing_peer_has_a_reason(peer_script):
    peer_script.write_text('raise ValueError("no such thing")\n')
    outcome = run_job("fake", {"name": "x"})
    assert outcome.result is None
    assert outcome.reason == "ValueError: no such thing"


def test_hanging_peer_is_killed(peer_script):
    peer_script.write_text("import time\ntime.sleep(60)\n")
    assert run_job("fake", {"name": "x"}, most_seconds=0.5).reason == "not done after 0.5 seconds"

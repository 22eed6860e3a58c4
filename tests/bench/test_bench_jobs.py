"""Jobs and results between processes, and environments that cannot be made."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from bench.environments import Environment, Recipe, environment, reason_in
from bench.peers.job import Updates, find_result, read_ids, read_job, read_lines, tell, write_lines
from bench.processes import run_job

from bench import environments, processes


def test_a_job_and_its_result_survive_the_way(capsys):
    job = {"task": "training", "size": {"width": 128, "length": None}, "folder": "a b/ü"}
    assert read_job([json.dumps(job)]) == job
    print("something else")
    tell({"seconds": [0.5], "tokens": [7]})
    print("and more")
    result = find_result(capsys.readouterr().out)
    assert result is not None
    assert (result["seconds"], result["tokens"]) == ([0.5], [7])
    assert result["megabytes"] > 1
    assert find_result("nothing\n") is None


@pytest.mark.parametrize("arguments", [[], ["{}", "{}"], ["[1]"]])
def test_no_job_is_no_job(arguments):
    with pytest.raises(SystemExit):
        read_job(arguments)


def test_the_clock_leaves_the_warm_up_out():
    updates = Updates(warmup=2, updates=3)
    assert [updates.tick(number) for number in (10, 20, 30, 40, 50)] == [False, False, False, False, True]
    assert updates.result()["tokens"] == [30, 40, 50]
    assert len(updates.result()["seconds"]) == 3
    assert all(seconds >= 0 for seconds in updates.result()["seconds"])


def test_the_first_update_is_never_measured():
    updates = Updates(warmup=0, updates=1)
    assert [updates.tick(10), updates.tick(20)] == [False, True]
    assert updates.result()["tokens"] == [20]
    assert updates.result()["seconds"][0] < 10


def test_files_of_lines_and_ids(tmp_path):
    write_lines(tmp_path / "new" / "x", ["a\u2028b", "", "c"])
    assert read_lines(tmp_path / "new" / "x") == ["a\u2028b", "", "c"]
    (tmp_path / "ids").write_text("4 5 3\n3\n")
    assert read_ids(tmp_path / "ids") == [[4, 5, 3], [3]]


def test_what_does_not_install_is_reported_and_remembered(tmp_path, monkeypatch):
    recipe, folder = Recipe(("fakepeer",), ("fakepeer",), torch=False), tmp_path / "environments"
    monkeypatch.setattr(environments.venv, "create", lambda place, with_pip: fake_python(place))
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


def fake_python(place):
    """An interpreter whose pip fails, so that no registry is asked."""
    (place / "bin").mkdir(parents=True)
    python = place / "bin" / "python"
    python.write_text(f"#!/bin/sh\necho 'ERROR: Could not build {place}/x: no compiler' >&2\nexit 1\n")
    python.chmod(0o755)


def test_the_telling_line_is_found():
    conflict = (
        "ERROR: no\n\nThe conflict is caused by:\n    x 1 depends on torch<2\n    we want torch 3\nTo fix this …\n"
    )
    assert reason_in(conflict) == "x 1 depends on torch<2; we want torch 3"
    trace = "Traceback …\n  File x\nTypeError: '>' not supported\nsome last word"
    assert reason_in(trace) == "TypeError: '>' not supported"
    assert reason_in("saccade: error: no such verb\n  try --help") == "saccade: error: no such verb"
    assert reason_in("ERROR: No matching distribution for /home/me/here/x.whl") == "No matching distribution for x.whl"
    assert reason_in("") == "it said nothing"


@pytest.fixture
def peer_script(tmp_path, monkeypatch):
    """A peer of this test's own, run by our own interpreter."""
    folder = tmp_path / "bench" / "peers"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent):
        (place / "__init__.py").write_text("")
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    monkeypatch.setattr(processes, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(processes, "python_of", lambda peer: sys.executable)
    return folder / "fake.py"


def test_a_peer_answers(peer_script):
    peer_script.write_text('import sys\nprint("noise")\nprint("bench-result " + sys.argv[1])\n')
    assert run_job("fake", {"name": "x", "value": 3}).result == {"name": "x", "value": 3}


def test_a_peer_that_fails_says_why(peer_script):
    peer_script.write_text('raise ValueError("no such thing")\n')
    outcome = run_job("fake", {"name": "x"})
    assert outcome.result is None
    assert outcome.reason == "ValueError: no such thing"


def test_a_peer_that_hangs_is_ended(peer_script):
    peer_script.write_text("import time\ntime.sleep(60)\n")
    assert run_job("fake", {"name": "x"}, most_seconds=0.5).reason == "not done after 0.5 seconds"

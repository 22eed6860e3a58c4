"""The contest of decoding: what a peer with a model of its own is asked for."""

from __future__ import annotations

import pytest
from bench.decoding import PEERS, Bench, own_model
from bench.models import SaccadeModel
from bench.peers.job import write_lines
from bench.processes import Outcome
from bench.series import Contest, Series
from bench.sizes import SIZES
from bench.work import Work

from bench import decoding


@pytest.mark.parametrize("size_name", SIZES)
@pytest.mark.parametrize("entry", PEERS[1:], ids=lambda entry: entry.peer)
def test_outputs_of_a_given_length_and_no_score(entry, size_name, tmp_path, monkeypatch):
    write_lines(tmp_path / "test.source", ["ein Satz"] * 200)
    asked, size, output = [], SIZES[size_name], tmp_path / "output"

    def run_job(peer, job):
        asked.append(job)
        write_lines(output, ["a sentence"] * 100)
        return Outcome({"decoded": [{"beam": beam, "seconds": 2.0, "output": str(output)} for beam in (1, 5)]})

    monkeypatch.setattr(decoding, "run_job", run_job)
    monkeypatch.setattr(decoding, "peer_model", lambda *_: tmp_path / "model")
    contest = Contest("decoding", [Series(f"beam {beam}", "", "sentences/s") for beam in (1, 5)])
    work = Work(folder=tmp_path, data="sentences", real=True)
    bench = Bench(size_name, work, SaccadeModel(tmp_path), 200, contest)
    (contestant,) = own_model(bench, entry)
    assert contestant.measure().values == {"beam 1": 50.0, "beam 5": 50.0}
    assert asked[0]["size"]["length"] == size.own_length
    assert SIZES[size_name].length == size.length  # of the others
    for series in contest.series:
        assert not series.scores
        assert "untrained" in series.notes[entry.name]

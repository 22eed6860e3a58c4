"""Decoding jobs of peers that use their own model."""

from __future__ import annotations

import pytest
from bench.comparison import Comparison, Series
from bench.decoding import PEERS, DecodingSetup, own_model
from bench.models import SaccadeModel
from bench.peers.job import write_lines
from bench.prepared_data import PreparedData
from bench.processes import Outcome
from bench.sizes import SIZES

from bench import decoding


@pytest.mark.parametrize("size_name", SIZES)
@pytest.mark.parametrize("entry", PEERS[1:], ids=lambda entry: entry.peer)
def test_own_model_has_fixed_output_length_and_no_score(entry, size_name, tmp_path, monkeypatch):
    write_lines(tmp_path / "test.source", ["ein Satz"] * 200)
    jobs, size, output = [], SIZES[size_name], tmp_path / "output"

    def run_job(peer, job):
        jobs.append(job)
        write_lines(output, ["a sentence"] * 100)
        return Outcome({"decoded": [{"beam": beam, "seconds": 2.0, "output": str(output)} for beam in (1, 5)]})

    monkeypatch.setattr(decoding, "run_job", run_job)
    monkeypatch.setattr(decoding, "peer_model", lambda *_: tmp_path / "model")
    comparison = Comparison("decoding", [Series(f"beam {beam}", "", "sentences/s") for beam in (1, 5)])
    work = PreparedData(folder=tmp_path, data="sentences", real=True)
    setup = DecodingSetup(size_name, work, SaccadeModel(tmp_path), 200, comparison)
    (system,) = own_model(setup, entry)
    assert system.measure().values == {"beam 1": 50.0, "beam 5": 50.0}
    assert jobs[0]["size"]["length"] == size.own_length
    assert SIZES[size_name].length == size.length  # unchanged for other systems
    for series in comparison.series:
        assert not series.scores
        assert "untrained" in series.notes[entry.name]

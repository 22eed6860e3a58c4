"""Experiment trackers, with modules that have the public functions of the packages and record the calls."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from saccade.config import merge
from saccade.errors import SaccadeError
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_config
from saccade.training.loop import Loop
from saccade.training.run import resume, train
from saccade.training.runs import metric_streams
from saccade.training.runs.log_files import LogFailures
from saccade.training.runs.metric_streams import MetricStream
from training.small_runs import MODEL, interrupted_after, write_pairs

UPDATE = Loop.update


class Server:
    """The runs that the packages have received: settings, metrics by step, and how each run ended."""

    def __init__(self) -> None:
        self.settings: dict[str, dict[str, Any]] = {}
        self.metrics: dict[str, list[dict[str, float]]] = {}
        self.ends: dict[str, list[object]] = {}

    def start(self, run: str, settings: dict[str, Any]) -> None:
        self.settings.setdefault(run, settings)
        self.metrics.setdefault(run, [])
        self.ends.setdefault(run, [])


def wandb_module(server: Server) -> ModuleType:
    module = ModuleType("wandb")

    def init(**options: Any) -> Any:
        assert (options["project"], options["resume"], options["settings"].console) == ("saccade", "allow", "off")
        assert Path(options["dir"]).is_dir()
        run = options["id"]
        server.start(run, options["config"])
        return SimpleNamespace(
            define_metric=lambda name, step_metric=None: None,
            log=lambda values: server.metrics[run].append(values),
            finish=lambda exit_code: server.ends[run].append(exit_code),
        )

    module.init = init  # type: ignore[attr-defined]
    module.Settings = lambda console: SimpleNamespace(console=console)  # type: ignore[attr-defined]
    return module


def trackio_module(server: Server) -> ModuleType:
    module = ModuleType("trackio")

    def init(*, project: str, name: str, config: dict[str, Any], resume: str) -> Any:
        assert (project, resume) == ("saccade", "allow")
        server.start(name, config)
        return SimpleNamespace(
            log=lambda values, step: server.metrics[name].append({"step": step, **values}),
            finish=lambda: server.ends[name].append(0),
        )

    module.init = init  # type: ignore[attr-defined]
    return module


class MlflowClient:
    """The client of MLflow as the tracker uses it; parameters cannot change, as on a real server."""

    server: Server

    def get_experiment_by_name(self, name: str) -> None:
        assert name == "saccade"

    def create_experiment(self, name: str) -> str:
        return "7"

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        assert experiment_id == "7"
        run = f"{run_name}-{len(self.server.settings)}"
        self.server.start(run, {})
        return SimpleNamespace(info=SimpleNamespace(run_id=run))

    def update_run(self, run_id: str, status: str) -> None:
        assert status == "RUNNING"
        assert run_id in self.server.settings

    def log_batch(self, run_id: str, metrics: list[Any] = (), params: list[Any] = ()) -> None:  # type: ignore[assignment]
        assert len(params) <= 100
        for key, value in params:
            assert self.server.settings[run_id].setdefault(key, value) == value
        if metrics:
            steps = {step for *_, step in metrics}
            self.server.metrics[run_id].append({"step": steps.pop(), **{key: value for key, value, *_ in metrics}})
            assert not steps

    def set_terminated(self, run_id: str, status: str) -> None:
        self.server.ends[run_id].append({"FINISHED": 0, "KILLED": 0, "FAILED": 1}[status])


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Server]:
    """Install the three packages."""
    found = {name: Server() for name in ("wandb", "mlflow", "trackio")}
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    client = type("Client", (MlflowClient,), {"server": found["mlflow"]})
    entities = ModuleType("mlflow.entities")
    entities.Metric = lambda key, value, timestamp, step: (key, value, timestamp, step)  # type: ignore[attr-defined]
    entities.Param = lambda key, value: (key, value)  # type: ignore[attr-defined]
    mlflow = ModuleType("mlflow")
    mlflow.MlflowClient = client  # type: ignore[attr-defined]
    mlflow.entities = entities  # type: ignore[attr-defined]
    modules = {
        "wandb": wandb_module(found["wandb"]),
        "trackio": trackio_module(found["trackio"]),
        "mlflow": mlflow,
        "mlflow.entities": entities,
    }
    for name, module in modules.items():
        module.__spec__ = SimpleNamespace(name=name)  # type: ignore[assignment]
        monkeypatch.setitem(sys.modules, name, module)
    return found


def make_config(folder: Path, *log_to: str, **changes: Any) -> RunConfig:
    write_pairs(folder, 100, 4)
    settings = {
        "model": MODEL,
        "data": {"source": str(folder / "train.src"), "target": str(folder / "train.tgt"), "hold_out": 10},
        "training": {
            "max_steps": 8,
            "validate_every": 4,
            "checkpoint_every": 4,
            "log_every": 2,
            "warmup_steps": 4,
            "device": "cpu",
            "log_to": list(log_to),
        },
        "output": str(folder / "run"),
    }
    data = {"tokenizer": "char", "batch_tokens": 400}
    return resolve_config(merge(merge(settings, {"data": data}), changes), where="test")


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_resumed_run_continues_the_run_in_the_tracker(
    name: str, servers: dict[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_after(5, monkeypatch)
    assert train(make_config(tmp_path, name, name)).interrupted == "SIGTERM"
    monkeypatch.setattr(Loop, "update", UPDATE)
    resume(tmp_path / "run", {"training": {"max_steps": 10}})
    server = servers[name]
    (run,) = server.settings
    assert float(server.settings[run]["training.max_steps"]) == 8
    assert server.ends[run] == [0, 0]
    logged = server.metrics[run]
    steps = [values["step"] for values in logged if "loss" in values]
    assert steps == [2, 4, 6, 8, 10]
    assert {values["step"] for values in logged if "valid/bleu" in values} == {4, 8, 10}
    assert all(values["tokens_per_second"] >= 0 for values in logged if set(values) == {"step", "tokens_per_second"})
    assert json.loads((tmp_path / "run" / "trackers.json").read_text(encoding="utf-8")) == {name: run}


def test_several_trackers_get_the_same_metrics(servers: dict[str, Server], tmp_path: Path) -> None:
    train(make_config(tmp_path, "wandb", "mlflow", "trackio"))
    found = [next(iter(server.metrics.values())) for server in servers.values()]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 6


def test_missing_package_is_an_error_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SaccadeError, match="wandb") as refused:
        train(make_config(tmp_path, "wandb"))
    assert refused.value.hint == "pip install 'saccade[wandb]'"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_failing_tracker_never_stops_the_run(
    broken: str, servers: dict[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host")

    works = sys.modules["wandb"].init

    def init(**options: Any) -> Any:
        run = works(**options)
        setattr(run, broken, fail)
        return run

    monkeypatch.setattr(sys.modules["wandb"], "init", fail if broken == "init" else init)
    result = train(make_config(tmp_path, "wandb", "trackio"))
    assert result.step == 8
    warnings = [line for line in capsys.readouterr().err.splitlines() if "no route to host" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: wandb ")
    assert next(iter(servers["trackio"].ends.values())) == [0]


def test_slow_tracker_delays_nothing_but_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    warnings: list[str] = []
    monkeypatch.setattr(metric_streams, "CLOSE_SECONDS", 0.05)
    monkeypatch.setattr(metric_streams, "MAX_WAITING", 3)
    slow = SimpleNamespace(log=lambda step, metrics: released.wait(), close=lambda status: None)
    stream = MetricStream("slow", slow, LogFailures(warnings.append))
    for step in range(100):
        stream.log(step, {"loss": 1.0})
    stream.close("finished")
    released.set()
    assert len(warnings) == 1


def test_failed_run_is_marked_as_failed(
    servers: dict[str, Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise SaccadeError("broken")

    monkeypatch.setattr("saccade.training.run.run_updates", fail)
    with pytest.raises(SaccadeError, match="broken"):
        train(make_config(tmp_path, "mlflow"))
    assert list(servers["mlflow"].ends.values()) == [[1]]

"""ONNX export of every family: ONNX Runtime gives the same logits for all sizes and for long decodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import SOURCES, Subject, padded, subject

from saccade.errors import SaccadeError
from saccade.interop.onnx import save_onnx
from saccade.interop.output_folder import output_folder
from saccade.models.registry import FAMILIES, load_family
from saccade.symbols import Symbols

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: nothing to compare with")

UNROLLED = {"bytenet", "lstmn"}
"""Families whose number of encoder operations depends on the input length (docs/guide/exporting.md)."""

ALL = [(name, dict(changes)) for name in FAMILIES for changes in ({}, *load_family(name).variants)]
EXPORTED = [case for case in ALL if case[0] not in UNROLLED]
TEXTS = ["two", "A man sleeps on a green couch and two dogs run across the street in the green", *SOURCES]
STEPS = 30


def label(case: tuple[str, dict[str, Any]]) -> str:
    return f"{case[0]}[{','.join(f'{key}={value}' for key, value in case[1].items())}]"


class Runtime:
    """Runs an exported folder using only its saccade.json."""

    def __init__(self, folder: Path) -> None:
        self.description = json.loads((folder / "saccade.json").read_text())
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / self.description[part]["file"], providers=["CPUExecutionProvider"])
            for part in ("encoder", "decoder")
        )

    def start(self, source: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        names = self.description["encoder"]["outputs"]
        found = dict(zip(names, self.encoder.run(names, {"source": source, "mask": mask}), strict=True))
        return {name: found[name] for name in self.description["decoder"]["inputs"] if name != "token"}

    def step(self, token: np.ndarray, state: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        names = self.description["decoder"]["outputs"]
        found = dict(zip(names, self.decoder.run(names, {"token": token, **state}), strict=True))
        carried = {name: found[output] for output, name in self.description["decoder"]["carried"].items()}
        return found["logits"], {**state, **carried}


@torch.no_grad()
def largest_difference(made: Subject, runtime: Runtime, texts: list[str]) -> float:
    """Return the largest difference of logits in greedy decoding, relative to the largest logit if that is above 1."""
    source = padded(made.tokenizers.source.encode_batch(texts))
    assert isinstance(source.values, torch.Tensor)
    theirs = runtime.start(source.values.numpy(), source.mask.numpy())
    memory = made.model.encode(source)
    state = made.model.start(memory)
    token, worst = torch.full((len(texts),), Symbols.begin), 0.0
    for _ in range(STEPS):
        step = made.model.step(token, state, memory)
        state, logits = step.state, made.model.logits(step.output)
        found, theirs = runtime.step(token.numpy(), theirs)
        scale = max(1.0, float(logits.abs().max()))
        worst = max(worst, float(np.abs(found - logits.numpy()).max()) / scale)
        assert (found.argmax(-1) == logits.argmax(-1).numpy()).all()
        token = logits.argmax(-1)
    return worst


@pytest.mark.parametrize("case", EXPORTED, ids=label)
def test_logits_are_equal(case: tuple[str, dict[str, Any]], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name, changes = case
    made = subject(name, **changes)
    save_onnx(tmp_path, made.model, name, made.tokenizers)
    assert capfd.readouterr() == ("", "")  # the output of the exporter is suppressed
    runtime = Runtime(tmp_path)
    worst = max(largest_difference(made, runtime, texts) for texts in (TEXTS[:1], TEXTS[1:3], TEXTS))
    print("largest difference of a logit:", worst)
    assert worst < 1e-4


@pytest.mark.parametrize("name", sorted(UNROLLED))
def test_untraceable_models_are_errors(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = subject(name)
    with (
        pytest.raises(SaccadeError, match="docs/guide/exporting") as caught,
        output_folder(tmp_path / "x") as folder,
    ):
        save_onnx(folder, made.model, name, made.tokenizers)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr() == ("", "")


def test_graphs_are_valid_and_have_no_unused_inputs(tmp_path: Path) -> None:
    import onnx

    made = subject(joint=False)
    save_onnx(tmp_path, made.model, "transformer", made.tokenizers)
    for name in ("encoder.onnx", "decoder.onnx"):
        onnx.checker.check_model(tmp_path / name, full_check=True)
    description = json.loads((tmp_path / "saccade.json").read_text())
    assert "memory.states" not in description["decoder"]["inputs"]  # the state has its keys and values
    assert description["symbols"] == {"pad": 0, "begin": 1, "end": 2, "unknown": 3}
    assert (tmp_path / description["tokenizers"]["source"]).is_file()
    assert (tmp_path / description["tokenizers"]["target"]).is_file()


def test_long_inputs_and_long_outputs(tmp_path: Path) -> None:
    made = subject()
    save_onnx(tmp_path, made.model, "transformer", made.tokenizers)
    assert largest_difference(made, Runtime(tmp_path), ["A green man " * 150]) < 1e-5


def test_missing_onnx_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    made = subject()
    with pytest.raises(SaccadeError, match="onnx"):
        save_onnx(tmp_path, made.model, "transformer", made.tokenizers)


def test_export_does_not_change_the_model(tmp_path: Path) -> None:
    import saccade.layers.recurrent as module

    made = subject(radius=2, experts=4)
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    save_onnx(tmp_path, made.model, "transformer", made.tokenizers)
    assert "len" not in vars(module)
    assert not any("forward" in vars(part) for part in made.model.modules())
    torch.testing.assert_close(dict(made.model.state_dict()), before)

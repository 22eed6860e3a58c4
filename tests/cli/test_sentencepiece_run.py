"""A run with SentencePiece models through all commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ctranslate2
import pytest
from command_line import TINY, Saccade

from saccade import load
from saccade.folder import verify

package = pytest.importorskip("sentencepiece", reason="pip install 'saccade[sentencepiece]' to run these tests")

LIMITS = ("--training.max-steps", 6, "--training.checkpoint-every", 3)


@pytest.fixture(scope="module")
def models(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models joint.model (unigram) and target.model (BPE)."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    english, german = (str(data / name) for name in ("train.en", "train.de"))
    for name, files, kind in (("joint", [english, german], "unigram"), ("target", [german], "bpe")):
        package.SentencePieceTrainer.train(
            input=files, model_prefix=str(folder / name), vocab_size=60, model_type=kind, minloglevel=2
        )
    return folder


def options(data: Path, *tokenizers: object) -> list[object]:
    """The options of `saccade train` and `saccade check`."""
    files = ("--source", data / "train.en", "--target", data / "train.de")
    valid = ("--valid-source", data / "valid.en", "--valid-target", data / "valid.de")
    return [*files, *valid, *TINY, *LIMITS, "--data.tokenizer", *tokenizers]


@pytest.fixture(scope="module")
def run(data: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one model for both sides; the model file was deleted after training."""
    from saccade.cli.main import main

    output = tmp_path_factory.mktemp("runs") / "joint"
    copy = shutil.copy(models / "joint.model", output.with_suffix(".model"))
    assert main([str(option) for option in ["train", "--output", output, *options(data, copy)]]) == 0
    Path(copy).unlink()
    return output


def test_model_folder_contains_the_model(run: Path, models: Path) -> None:
    assert (run / "model-best" / "tokenizer.model").read_bytes() == (models / "joint.model").read_bytes()
    assert "tokenizer.model" in verify(run / "model-best")


def test_two_models(data: Path, models: Path, tmp_path: Path, saccade: Saccade) -> None:
    two = options(data, models / "joint.model", "--data.target-tokenizer", models / "target.model")
    assert saccade("train", "--output", tmp_path / "run", *two).code == 0
    folder = tmp_path / "run" / "model-best"
    assert {file.name for file in folder.glob("tokenizer.*")} == {
        *("tokenizer.source.json", "tokenizer.source.model", "tokenizer.target.json", "tokenizer.target.model")
    }
    assert saccade("translate", folder, stdin="one\n").code == 0


def test_translate_evaluate_and_attention(run: Path, data: Path, saccade: Saccade) -> None:
    translated = saccade("translate", run, stdin=(data / "test.en").read_text())
    assert (translated.code, len(translated.out.splitlines())) == (0, 8)
    evaluated = saccade("evaluate", run, "--source", data / "test.en", "--reference", data / "test.de", "--no-save")
    assert evaluated.code == 0
    assert saccade("attention", run, "seventy one").code == 0
    assert "sentencepiece" in saccade("info", run, "--json").out


def test_explanation_has_the_pieces(run: Path) -> None:
    explanation = load(run).explain("seventy one")
    pieces = explanation.source_pieces[:-1]
    assert "".join(pieces).replace("▁", " ").strip() == "seventy one"
    assert explanation.alignment.shape == (len(explanation.target_pieces), len(explanation.source_pieces))


def test_check(data: Path, models: Path, saccade: Saccade) -> None:
    result = saccade("check", *options(data, models / "joint.model"))
    assert result.code == 0
    assert "sentencepiece" in result.out


def test_resumed_run_is_bitwise_equal(run: Path, data: Path, models: Path, tmp_path: Path, saccade: Saccade) -> None:
    resumed = tmp_path / "resumed"
    shutil.copytree(run, resumed)
    assert saccade("train", "--resume", resumed, "--training.max-steps", 9).code == 0
    more = [*options(data, models / "joint.model"), "--training.max-steps", 9]
    assert saccade("train", "--output", tmp_path / "uninterrupted", *more).code == 0
    weights = "model-last/model.safetensors"
    assert (resumed / weights).read_bytes() == (tmp_path / "uninterrupted" / weights).read_bytes()


def test_fine_tuning_keeps_the_tokenizer(run: Path, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    files = ("--source", data / "train.en", "--target", data / "train.de")
    result = saccade("train", "--from", run, *files, "--output", tmp_path / "tuned", "--training.max-steps", 2)
    assert result.code == 0
    saved = tmp_path / "tuned" / "model-last" / "tokenizer.model"
    assert saved.read_bytes() == (run / "model-best" / "tokenizer.model").read_bytes()
    assert saccade("train", "--resume", tmp_path / "tuned", "--training.max-steps", 3).code == 0


def test_changed_model_file_is_tokenized_again(
    data: Path, models: Path, tmp_path: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "one.model"
    for number, name in enumerate(("joint.model", "target.model", "joint.model")):
        shutil.copy(models / name, model)
        result = saccade("train", "--output", tmp_path / str(number), *options(data, model), "--training.max-steps", 1)
        assert result.code == 0
        assert ("reused" in result.err) == (number == 2)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("missing.model", None, 1),
        ("text.model", b"a small dog\n", 1),
        ("empty.model", b"", 1),
        ("truncated.model", "half", 1),
        ("sentencepiece", None, 2),
        ("model.spm", b"", 2),
    ],
)
def test_invalid_models(
    data: Path, models: Path, tmp_path: Path, saccade: Saccade, name: str, content: bytes | str | None, code: int
) -> None:
    path = tmp_path / name if "." in name else Path(name)
    if content is not None:
        half = (models / "joint.model").read_bytes()[:1000]
        path.write_bytes(half if isinstance(content, str) else content)
    result = saccade("train", "--output", tmp_path / "run", *options(data, path))
    assert (result.code, result.out) == (code, "")
    assert result.err.splitlines()[-2].startswith("saccade: error: ")
    assert not (tmp_path / "run" / "model-best").exists()


def test_ctranslate2_export_runs_with_the_package(
    run: Path, data: Path, models: Path, tmp_path: Path, saccade: Saccade
) -> None:
    """Run the example of docs/guide/exporting.md, with another tokenizer on each side."""
    two = options(data, models / "joint.model", "--data.target-tokenizer", models / "target.model")
    assert saccade("train", "--output", tmp_path / "run", *two).code == 0
    for name, path, target in (("joint", run, ""), ("two", tmp_path / "run", "target")):
        folder = tmp_path / name
        assert saccade("export", path, "--format", "ctranslate2", "--output", folder).code == 0
        source, output = (
            package.SentencePieceProcessor(model_file=str(file / "tokenizer.model"))
            for file in (folder, folder / target)
        )
        runtime = ctranslate2.Translator(str(folder))
        lines = (data / "test.en").read_text().splitlines()
        batch = [[*source.encode(line, return_type=str), "</s>"] for line in lines]
        suppressed = [["<pad>"], ["<s>"], ["<unk>"]]
        found = runtime.translate_batch(batch, beam_size=1, max_decoding_length=12, suppress_sequences=suppressed)
        expected = load(path, "cpu", engine="torch").translate(lines, beam=1, max_length=12)
        assert [output.decode(one.hypotheses[0]) for one in found] == expected
        assert any(expected)


def test_onnx_export_contains_the_model(run: Path, models: Path, tmp_path: Path, saccade: Saccade) -> None:
    pytest.importorskip("onnx")
    folder = tmp_path / "onnx"
    assert saccade("export", run, "--format", "onnx", "--output", folder).code == 0
    about = json.loads((folder / "saccade.json").read_text())
    assert about["tokenizers"] == {"source": "tokenizer.model", "target": "tokenizer.model"}
    assert (folder / "tokenizer.model").read_bytes() == (models / "joint.model").read_bytes()
    pieces = json.loads((folder / "pieces.json").read_text())
    assert pieces == list(load(run).tokenizers.source.vocabulary)


def test_huggingface_export_is_refused(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    result = saccade("export", run, "--format", "huggingface", "--output", tmp_path / "exported")
    assert result.code == 1
    assert not (tmp_path / "exported").exists()

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Saccade

from saccade.cli.compare import command_line

TINY = (
    *("--model.width", "8", "--model.heads", "2", "--model.feed-forward", "16"),
    *("--model.encoder-layers", "1", "--model.decoder-layers", "1"),
    *("--data.vocabulary", "80", "--data.batch-tokens", "2048", "--training.threads", "1"),
    *("--training.valid-sentences", "2"),
)


def arguments(data: Path, output: Path, *more: object, models: str = "transformer,transformer-small") -> list[object]:
    files = ["--source", data / "train.en", "--target", data / "train.de"]
    files += ["--test-source", data / "test.en", "--test-reference", data / "test.de"]
    return ["compare", *files, "--models", models, "--output", output, *TINY, *more]


def test_one_model_and_a_repeated_command(data: Path, tmp_path: Path, saccade: Saccade) -> None:
    output = tmp_path / "out"
    call = arguments(data, output, "--budget", "2ktok", "--sentence", "two hundred & <one>", models="transformer")
    result = saccade(*call)
    assert result.code == 0, result.err
    assert "transformer-tiny" in result.out
    assert "95 % interval" in result.out
    assert max(len(line) for line in result.out.splitlines()) <= 120
    page = (output / "compare.html").read_text(encoding="utf-8")
    assert "two hundred &amp; &lt;one&gt;" in page
    assert "--source train.en" in page
    assert str(tmp_path) not in page
    assert (output / "alignments.png").exists()
    again = saccade(*call)
    assert again.code == 0
    assert again.out == result.out
    assert "transformer: " in again.err
    other = saccade(*call, "--training.seed", 7)
    assert other.code == 1
    assert "training.seed None -> 7" in other.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--models", "transfomer"), "did you mean 'transformer'?"),
        (("--models", "transformer,transformer-tiny"), "transformer"),
        (("--models", ","), "models"),
        (("--budget", "10"), "'10'"),
        (("--training.max-steps", "9"), "--budget"),
        (("--model.preset", "transformer-base"), "--models"),
        (("--trainin.seed", "9"), "did you mean 'training'?"),
        (("--data.vocabulry", "9"), "did you mean 'vocabulary'?"),
        (("--sentence", " "), "--sentence is empty"),
        (("--decoding.nbest", "3"), "nbest"),
        (("--training.start", "x"), "start"),
        (("--training.keep-checkpoints", "3"), "keep-checkpoints"),
        (("--training.metrics", "blue"), "bleu"),
    ],
)
def test_invalid_arguments(more: tuple[str, ...], message: str, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    result = saccade(*arguments(data, tmp_path / "out", *more))
    assert result.code in (1, 2)
    assert message in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--source", "--valid-source", "--test-source", "--test-reference"])
def test_missing_files_are_reported_before_training(option: str, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    call = arguments(data, tmp_path / "out")
    if option == "--source":
        call[call.index("--source") + 1] = tmp_path / "nowhere"
    else:
        call += [option, tmp_path / "nowhere"]
        if option == "--valid-source":
            call += ["--valid-target", data / "valid.de"]
    result = saccade(*call)
    assert result.code == 1
    assert "nowhere" in result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--source", "--valid-source"])
def test_empty_files_are_reported_before_training(option: str, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    call = arguments(data, tmp_path / "out", "--valid-source", data / "valid.en", "--valid-target", data / "valid.de")
    call[call.index(option) + 1] = empty
    result = saccade(*call)
    assert result.code == 1
    assert "empty: " in result.err
    assert not (tmp_path / "out").exists()


def test_recipe_provides_only_data_and_decoding(
    data: Path, tmp_path: Path, saccade: Saccade, monkeypatch: pytest.MonkeyPatch
) -> None:
    from saccade.studies.comparison import compare

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model: {preset: transformer-base}\n"
        f"data: {{source: {data / 'train.en'}, target: {data / 'train.de'}, vocabulary: 90}}\n"
        "training: {max-steps: 3, learning-rate: 5}\ndecoding: {beam: 3}\n",
        encoding="utf-8",
    )
    seen = []

    def record(request, command):
        seen.append((request, command))
        return compare.Outcome(None, [], 130)

    monkeypatch.setattr(compare, "compare", record)
    test = ["--test-source", data / "test.en", "--test-reference", data / "test.de"]
    result = saccade("compare", recipe, *test, "--models", "transformer", "--data.min-frequency", 1)
    assert result.code == 130
    request, command = seen[0]
    config = request.config(request.entries[0])
    assert (config.data.vocabulary, config.data.min_frequency, config.decoding.beam) == (90, 1, 3)
    assert config.training.learning_rate != 5
    assert config.model["width"] == 128
    assert command.startswith("saccade compare recipe.yaml \\\n  --test-source test.en \\\n")


def test_printed_command_has_no_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"source": [tmp_path / "data" / "a b.en"], "target": None, "output": Path("runs/x"), "budget": "10m"}
    found = command_line(None, given, ["--data.cache", "/var/cache/x", "--data.joint", "--training.seed=3"])
    assert found == (
        "saccade compare \\\n  --source 'data/a b.en' \\\n  --output runs/x \\\n  --budget 10m \\\n"
        "  --data.cache x \\\n  --data.joint \\\n  --training.seed=3"
    )


def test_help_explains_the_budget(saccade: Saccade) -> None:
    words = " ".join(saccade("compare", "--help").out.split())
    assert "5Mtok" in words
    assert "--data.vocabulary" in words
    assert "--training.max-steps" not in words

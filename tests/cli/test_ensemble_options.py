from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import TINY, Saccade

from saccade.cli.main import main
from saccade.inference.loading import load

TEXT = "seven\n\none hundred and twenty-one\nfive\n"


pytestmark = pytest.mark.usefixtures("one_thread")


def train(data: Path, path: Path, *changes: object) -> Path:
    """Train on the data of the fixture `run`, so that both share a vocabulary by default."""
    arguments = ["train", "--output", path, "--source", data / "train.en", "--target", data / "train.de"]
    assert main([str(word) for word in [*arguments, "--training.max-steps", 4, *TINY, *changes]]) == 0
    return path


@pytest.fixture(scope="module")
def other(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another architecture with the vocabulary of `run`."""
    path = tmp_path_factory.mktemp("runs") / "other"
    return train(data, path, "--training.seed", 5, "--model.decoder-layers", 3, "--model.width", 24, "--model.heads", 3)


def test_command_and_python_translate_equally(run: Path, other: Path, saccade: Saccade) -> None:
    options = ["--ensemble", other, "--ensemble-mean", "geometric", "--ensemble-weights", "2,1"]
    result = saccade("translate", run, *options, "--scores", "--format", "jsonl", stdin=TEXT)
    assert (result.code, result.err) == (0, "")
    translator = load([run, other], mean="geometric", weights=[2, 1])
    expected = list(translator.stream(TEXT.splitlines()))
    records = [json.loads(line) for line in result.out.splitlines()]
    assert [record["text"] for record in records] == [found.text for found in expected]
    scores = [found.candidates[0].score for found in expected]
    assert [record["score"] for record in records] == pytest.approx(scores, abs=1e-4)
    alone = saccade("translate", run, "--scores", "--format", "jsonl", stdin=TEXT).out
    assert [json.loads(line)["score"] for line in alone.splitlines()] != pytest.approx(scores, abs=1e-3)


def test_ensemble_of_a_model_with_itself_changes_nothing(run: Path, saccade: Saccade) -> None:
    for options in (["--beam", 1], ["--beam", 4], ["--sample", "--seed", 3]):
        alone = saccade("translate", run, *options, stdin=TEXT)
        assert saccade("translate", run, "--ensemble", run, *options, stdin=TEXT) == alone


def test_alignment_and_attention(run: Path, other: Path, tmp_path: Path, saccade: Saccade) -> None:
    result = saccade("translate", run, "--ensemble", other, "--alignment", stdin="seven\n")
    assert result.code == 0
    values = json.loads(saccade("attention", run, "seven", "--ensemble", other, "--target", "sieben", "--json").out)
    one, two = (
        json.loads(saccade("attention", model, "seven", "--target", "sieben", "--json").out) for model in (run, other)
    )
    assert values["source_pieces"] == one["source_pieces"]
    # `run` has 2 layers of 2 heads, `other` 3 layers of 3: each head counts once.
    mixed = (4 * one["alignment"][0][0] + 9 * two["alignment"][0][0]) / 13
    assert values["alignment"][0][0] == pytest.approx(mixed, abs=1e-5)
    png = tmp_path / "heads.png"
    assert saccade("attention", run, "seven", "--ensemble", other, "--plot", png, "--heads").code == 0
    assert png.is_file()


def test_evaluation_is_not_saved_in_a_run(run: Path, other: Path, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    kept = run / "eval" / "ensemble-test.json"
    test_set = ["--source", data / "test.en", "--reference", data / "test.de", "--metric", "chrf"]
    before = sorted(run.rglob("*.json"))
    options = ["--ensemble", other, "--ensemble-weights", "1,3"]
    result = saccade("evaluate", run, *test_set, *options, "--json", tmp_path / "scores.json", "--baseline", run)
    assert (result.code, result.err) == (0, "")
    assert "p = " in result.out
    assert sorted(run.rglob("*.json")) == before
    values = json.loads((tmp_path / "scores.json").read_text())
    assert values["model"] == str(run)
    assert values["ensemble"] == [str(other)]
    assert values["ensemble_mean"] == "arithmetic"
    assert values["ensemble_weights"] == [1, 3]
    refused = saccade("evaluate", run, *test_set, *options, "--name", "ensemble-test")
    assert refused.code == 2
    assert "--name" in refused.err
    assert not kept.exists()


def test_perplexity_of_an_ensemble(run: Path, other: Path, data: Path, saccade: Saccade) -> None:
    test_set = ["--source", data / "test.en", "--reference", data / "test.de", "--metric", "perplexity"]

    def perplexity(*options: object) -> float:
        return float(json.loads(saccade("evaluate", run, *test_set, *options, "--json").out)["scores"][0]["value"])

    assert perplexity("--ensemble", run) == pytest.approx(perplexity(), rel=1e-4)
    assert perplexity("--ensemble", other) != pytest.approx(perplexity(), rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ensemble-mean", "geometric"], "--ensemble-mean needs several models"),
        (["--ensemble-weights", "1,2"], "--ensemble-weights needs several models"),
        (["--ensemble", "OTHER", "--ensemble-weights", "1"], "1 weights for 2 models"),
        (["--ensemble", "OTHER", "--ensemble-weights", "1,0"], "above 0"),
        (["--ensemble", "OTHER", "--ensemble-weights", "1;2"], "numbers separated by commas"),
        (["--ensemble", "OTHER", "--ensemble-mean", "median"], "median"),
    ],
)
def test_invalid_options(options: list[str], message: str, run: Path, saccade: Saccade) -> None:
    options = [str(run) if word == "OTHER" else word for word in options]
    for command, rest in (("translate", []), ("attention", ["seven"])):
        result = saccade(command, run, *rest, *options, stdin=TEXT)
        assert (result.code, result.out) == (2, "")
        assert message in result.err


def test_ensemble_cannot_be_used_with_hypotheses(run: Path, data: Path, saccade: Saccade) -> None:
    files = ["--hypotheses", data / "test.de", "--reference", data / "test.de"]
    for options in (["--ensemble", run], ["--ensemble-mean", "geometric"]):
        result = saccade("evaluate", *files, *options)
        assert result.code == 2
        assert "adds models to a RUN" in result.err


def test_vocabulary_mismatch_names_both_folders(run: Path, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    mismatched = train(data, tmp_path / "mismatched", "--data.vocabulary", 70)
    result = saccade("translate", run, "--ensemble", mismatched, stdin=TEXT)
    assert (result.code, result.out) == (1, "")
    assert f"{mismatched}: " in result.err
    assert str(run) in result.err


def test_alignment_with_different_source_tokenizers_is_an_error(data: Path, tmp_path: Path, saccade: Saccade) -> None:
    separate = ["--data.joint", "false", "--data.target-vocabulary", 60]
    one = train(data, tmp_path / "one", *separate)
    two = train(data, tmp_path / "two", *separate, "--data.vocabulary", 50)
    assert saccade("translate", one, "--ensemble", two, stdin=TEXT).code == 0
    for result in (
        saccade("translate", one, "--ensemble", two, "--alignment", stdin=TEXT),
        saccade("attention", one, "seven", "--ensemble", two),
    ):
        assert (result.code, result.out) == (1, "")

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Saccade

from saccade.cli.output.output_paths import check_outputs
from saccade.errors import SaccadeError, UsageError

WRITERS = {
    "translate": ("translate", "{run}", "two", "--output", "{out}"),
    "evaluate": ("evaluate", "{run}", "--source", "{en}", "--reference", "{de}", "--no-save", "--output", "{out}"),
    "evaluate-json": ("evaluate", "{run}", "--source", "{en}", "--reference", "{de}", "--no-save", "--json", "{out}"),
    "attention-plot": ("attention", "{run}", "two", "--plot", "{out}"),
    "attention-json": ("attention", "{run}", "two", "--json", "{out}"),
    "lexicon": ("lexicon", "--source", "{en}", "--target", "{de}", "--output", "{out}", "--overwrite"),
    "verify": ("verify", "{run}", "--json", "{out}"),
    "info": ("info", "{run}", "--json", "{out}"),
    "models": ("models", "--json", "{out}"),
    "check": ("check", "--source", "{en}", "--target", "{de}", "--no-model", "--json", "{out}"),
    "complexity": ("complexity", "--layers", "fused", "--csv", "{out}"),
    "average": ("average", "{run}", "{run}", "--output", "{out}"),
    "export": ("export", "{run}", "--format", "huggingface", "--output", "{out}"),
}
PARTS = (
    "model-best/config.json",
    "model-best/new.json",
    "model-best/sub/new.json",
    "checkpoints/new.json",
    "env.json",
    "data.json",
)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("part", PARTS)
def test_no_command_writes_into_a_model_or_over_a_run(
    command: str, part: str, run: Path, data: Path, saccade: Saccade
) -> None:
    before = contents(run)
    names = {"run": run, "en": data / "test.en", "de": data / "test.de", "out": run / part}
    result = saccade(*(word.format(**names) for word in WRITERS[command]))
    assert result.code == 2, result.err
    assert contents(run) == before


def test_a_symbolic_link_does_not_bypass_the_check(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run / "model-best" / "config.json")
    with pytest.raises(UsageError):
        check_outputs({"--output": tmp_path / "link"})


def test_files_beside_the_parts_of_a_run_are_allowed(run: Path, tmp_path: Path) -> None:
    check_outputs({"--output": run / "out.txt", "--plot": None, "--json": "-"})
    (tmp_path / "config.yaml").touch()  # not a run: many projects have such files
    (tmp_path / "manifest.json").touch()
    check_outputs({"--output": tmp_path / "data.json"})


def test_inputs_and_other_outputs_are_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError):
        check_outputs({"--output": file}, [None, file])
    with pytest.raises(UsageError):
        check_outputs({"--plot": "-"})
    with pytest.raises(UsageError):
        check_outputs({"--output": tmp_path / "new", "--json": tmp_path / "new"})


@pytest.mark.parametrize("name", [".", "missing/file", "file/file"])
def test_paths_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaccadeError) as raised:
        check_outputs({"--output": tmp_path / name})
    assert raised.value.hint


def test_translate_does_not_write_over_its_lexicon(run: Path, tmp_path: Path, saccade: Saccade) -> None:
    lexicon = tmp_path / "lexicon.tsv"
    lexicon.write_text("two\tzwei\n")
    assert saccade("translate", run, "two", "--vocabulary-shortlist", lexicon, "--output", lexicon).code == 2
    assert lexicon.read_text() == "two\tzwei\n"


def test_evaluate_does_not_write_over_its_references(run: Path, data: Path, tmp_path: Path, saccade: Saccade) -> None:
    reference = tmp_path / "reference"
    reference.write_bytes((data / "test.de").read_bytes())
    files = ("--source", data / "test.en", "--reference", reference, "--output", reference)
    assert saccade("evaluate", run, *files).code == 2
    assert reference.read_bytes() == (data / "test.de").read_bytes()

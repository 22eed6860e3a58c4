"""Loading mutated inputs: each is rejected, or the loaded object equals the content of its files."""

from __future__ import annotations

import csv
import enum
import gzip
import io
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file

from saccade.config import read_yaml, write_yaml
from saccade.data.reading.pair_files import Pair, read_pairs
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.errors import SaccadeError
from saccade.inference.loading import translator_from
from saccade.model_folder import WEIGHTS, load_model_folder, weights_of
from saccade.training.checkpoints.checkpoint import OPTIMIZER, STATE
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_recipe
from untrusted_input.command import check_answer, command
from untrusted_input.guard import guarded
from untrusted_input.mutator import damage, mutate_bytes, mutate_json, mutate_lines
from untrusted_input.pristine import files_of, resume_from, update_manifest

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
PAIRS = [
    Pair("ein kleiner Hund", "a small dog"),
    Pair("eine „große“ Katze", "a big cat"),
    Pair("漢字", "\U0001f600"),
] * 9


class Outcome(enum.Enum):
    """Result of loading an input."""

    REJECTED = "rejected"
    EQUAL = "loaded, equal to the original"
    OTHER = "loaded, equal to the mutated content"


class Subject(NamedTuple):
    """A kind of input; `attempt` mutates an input in an empty directory and loads it."""

    name: str
    attempt: Callable[[Random, Path], Outcome]


def run_attempts(subject: Subject, numbers: Iterable[int], directory: Path) -> Counter[Outcome]:
    """Load mutated inputs by their numbers; a failure names its number, so that it can be repeated."""
    outcomes: Counter[Outcome] = Counter()
    for number in numbers:
        folder = directory / subject.name.replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            outcomes[subject.attempt(Random(f"{subject.name} {number}"), folder)] += 1
        except BaseException as error:
            error.add_note(f"input {number} of {subject.name}, left in {folder}")
            raise
    return outcomes


def load_or_reject(directory: Path, load: Callable[[], Any]) -> Any:
    """Return the loaded object, or None after a SaccadeError; any other error fails the test."""
    rejection: SaccadeError | None = None
    loaded = None
    with guarded(directory):
        try:
            loaded = load()
        except SaccadeError as error:
            rejection = error
    if rejection is not None:
        assert rejection.hint
        assert len(str(rejection)) < 5000
    return loaded


# Damage without a new manifest: always rejected.


def damaged_folder(folder: Path, load: Callable[[Path], Any]) -> Subject:
    """Flip bits or truncate files of a valid folder, with an unchanged manifest."""

    def attempt(generator: Random, directory: Path) -> Outcome:
        copy = Path(shutil.copytree(folder, directory / folder.name))
        file = generator.choice(files_of(copy))
        file.write_bytes(damage(file.read_bytes(), generator))
        with guarded(directory), pytest.raises(SaccadeError) as caught:
            load(copy)
        assert str(copy) in str(caught.value)
        assert file.name in str(caught.value) or file.name == "manifest.json"
        return Outcome.REJECTED

    return Subject(f"damaged {folder.name}", attempt)


def load_checkpoint_at(path: Path) -> Any:
    """Load a checkpoint by its path, as a resumed run does."""
    return resume_from(path.parent)


# Mutations with a matching manifest: the parsers must detect them.


def mutated_model(folder: Path, kind: str) -> Subject:
    """Mutate one or two files of a model folder."""
    original = load_model_folder(folder)

    def attempt(generator: Random, directory: Path) -> Outcome:
        copy = Path(shutil.copytree(folder, directory / folder.name))
        names = [file.name for file in files_of(copy) if file.name != "manifest.json"]
        for name in generator.sample(names, generator.choice((1, 1, 2))):
            mutate_file(copy / name, generator)
        update_manifest(copy)
        loaded = load_or_reject(directory, lambda: load_for_translation(copy))
        if generator.random() < 0.1:
            with guarded(directory):
                answer = command("info", copy)
            check_answer(answer)
            assert (answer.code == 0) == (loaded is not None)
        if loaded is None:
            return Outcome.REJECTED
        check_model(loaded, copy)
        same = loaded.choice == original.choice and loaded.generation == original.generation
        same = same and equal_tensors(weights_of(loaded.model), weights_of(original.model))
        same = same and all(map(equal_tokenizers, loaded.tokenizers, original.tokenizers))
        return Outcome.EQUAL if same else Outcome.OTHER

    return Subject(f"model folder, {kind}", attempt)


def load_for_translation(folder: Path) -> Any:
    """Load a model folder, with everything that a translation needs."""
    loaded = load_model_folder(folder)
    translator_from(loaded, where=str(folder))
    return loaded


def mutate_file(path: Path, generator: Random) -> None:
    """Mutate a file: usually values of JSON and of safetensors headers, otherwise bytes."""
    raw = path.read_bytes()
    if path.suffix == ".json" and generator.random() < 0.7:
        path.write_text(json.dumps(mutate_json(json.loads(raw), generator), indent=1), encoding="utf-8")
    elif path.suffix == ".safetensors" and generator.random() < 0.7:
        path.write_bytes(mutate_header(raw, generator))
    else:
        path.write_bytes(mutate_bytes(raw, generator))


def mutate_header(raw: bytes, generator: Random) -> bytes:
    """Mutate the header of a safetensors file, and correct its length."""
    length = int.from_bytes(raw[:8], "little")
    header, data = raw[8 : 8 + length], raw[8 + length :]
    if generator.random() < 0.7:
        header = json.dumps(mutate_json(json.loads(header), generator)).encode()
    else:
        header = mutate_bytes(header, generator)
    return len(header).to_bytes(8, "little") + header + data


def check_model(loaded: Any, folder: Path) -> None:
    """Check that a loaded model equals the content of the files, read independently."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    check_values(config["model"], loaded.choice.dump())
    check_values(json.loads((folder / "generation.json").read_text(encoding="utf-8")), loaded.generation)
    assert equal_tensors(weights_of(loaded.model), load_file(folder / WEIGHTS))
    assert loaded.card == (folder / "README.md").read_bytes().decode("utf-8")
    for name, tokenizer in zip(("source", "target"), loaded.tokenizers, strict=True):
        joint = folder / "tokenizer.json"
        check_tokenizer(tokenizer, joint if joint.exists() else folder / f"tokenizer.{name}.json")


def check_values(stored: Mapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """Check that every value in a file was loaded, up to spelling: 16.0 and "16" are equal."""
    for name, value in stored.items():
        assert canonical(value) == canonical(loaded[name.replace("-", "_")]), (name, value)


def canonical(value: Any) -> Any:
    """Convert 16, 16.0 and "16" to one value, and true, "yes" and 1."""
    words = {
        "true": 1.0,
        "t": 1.0,
        "yes": 1.0,
        "y": 1.0,
        "on": 1.0,
        "false": 0.0,
        "f": 0.0,
        "no": 0.0,
        "n": 0.0,
        "off": 0.0,
    }
    if isinstance(value, str):
        if value.strip().lower() in words:
            return words[value.strip().lower()]
        try:
            return float(value)
        except ValueError:
            return value
    return float(value) if isinstance(value, int | float) and abs(value) < 2**64 else value


def equal_tensors(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two sets of weights are bitwise equal."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def equal_tokenizers(first: Tokenizer, second: Tokenizer) -> bool:
    """Return whether two tokenizers are equal."""
    return (first.kind, first.normalization, first._backend.to_str()) == (
        second.kind,
        second.normalization,
        second._backend.to_str(),
    )


def check_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Check that a tokenizer has exactly the vocabulary of its file, and encodes text."""
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (tokenizer.kind, tokenizer.normalization) == (document["kind"], document["normalization"])
    entries = document["tokenizer"]["model"]["vocab"]
    ids = entries if isinstance(entries, dict) else {entry[0]: token for token, entry in enumerate(entries)}
    assert {tokenizer.piece(token): token for token in range(tokenizer.size)} == ids
    kept = json.loads(tokenizer._backend.to_str())
    assert kept["model"].get("merges", []) == document["tokenizer"]["model"].get("merges", [])
    if isinstance(entries, list):
        assert kept["model"]["vocab"] == entries
    text = "ein kleiner Hund und eine große Katze <s>"
    assert set(tokenizer.encode(text).ids) <= set(range(3, tokenizer.size))


def mutated_tokenizer(files: list[Path]) -> Subject:
    """Mutate tokenizer files."""

    def attempt(generator: Random, directory: Path) -> Outcome:
        original = generator.choice(files)
        path = Path(shutil.copy(original, directory / "tokenizer.json"))
        mutate_file(path, generator)
        loaded = load_or_reject(directory, lambda: Tokenizer.load(path))
        if loaded is None:
            return Outcome.REJECTED
        check_tokenizer(loaded, path)
        return Outcome.EQUAL if equal_tokenizers(loaded, Tokenizer.load(original)) else Outcome.OTHER

    return Subject("tokenizer", attempt)


def mutated_recipe() -> Subject:
    """Mutate lines or bytes of the recipes in recipes/."""

    def attempt(generator: Random, directory: Path) -> Outcome:
        original = generator.choice(RECIPES)
        path = directory / "recipe.yaml"
        if generator.random() < 0.7:
            path.write_bytes(
                mutate_lines(original.read_text(encoding="utf-8"), generator).encode("utf-8", "surrogatepass")
            )
        else:
            path.write_bytes(mutate_bytes(original.read_bytes(), generator))
        loaded = load_or_reject(directory, lambda: resolve_recipe(path))
        if loaded is None:
            return Outcome.REJECTED
        for group, values in read_yaml(path).items():
            if isinstance(values, dict):
                check_group(group, values, loaded)
        write_yaml(loaded, directory / "again.yaml")
        assert RunConfig.model_validate(read_yaml(directory / "again.yaml")) == loaded
        return Outcome.EQUAL if loaded == resolve_recipe(original) else Outcome.OTHER

    return Subject("recipe", attempt)


def check_group(group: str, values: Mapping[str, Any], loaded: RunConfig) -> None:
    """Check that the numbers and strings of a settings group are in the config."""
    found = getattr(loaded, group)
    found = found if isinstance(found, dict) else found.model_dump()
    for name, value in values.items():
        if isinstance(value, int | float | str) and not isinstance(found.get(name), tuple | list) and name != "preset":
            path = group == "data" and isinstance(value, str) and str(found[name]).endswith(value.strip("/").strip("."))
            assert path or canonical(value) == canonical(found[name]), (group, name, value, found[name])


def mutated_pairs() -> Subject:
    """Mutate files of pairs in every format."""

    def attempt(generator: Random, directory: Path) -> Outcome:
        name = generator.choice(("pairs.tsv", "pairs.csv", "pairs.jsonl", "pairs.parquet", "pairs.tsv.gz", "lines.txt"))
        path = directory / name
        raw = pairs_as(name, directory)
        mutated = mutate_bytes(raw, generator)
        path.write_bytes(mutated)
        target = directory / "target.txt"
        target.write_text("".join(f"{pair.target}\n" for pair in PAIRS), encoding="utf-8")
        loaded = load_or_reject(directory, lambda: list(read_pairs(path, target if name == "lines.txt" else None)))
        if loaded is None:
            return Outcome.REJECTED
        assert loaded == read_reference(path, target)
        return Outcome.EQUAL if loaded == PAIRS else Outcome.OTHER

    return Subject("data file", attempt)


def pairs_as(name: str, directory: Path) -> bytes:
    """Write the pairs in the format of a file name."""
    if name == "lines.txt":
        return "".join(f"{pair.source}\n" for pair in PAIRS).encode()
    if name == "pairs.jsonl":
        return "".join(json.dumps(pair._asdict()) + "\n" for pair in PAIRS).encode()
    if name == "pairs.parquet":
        columns = {column: [getattr(pair, column) for pair in PAIRS] for column in Pair._fields}
        parquet.write_table(pyarrow.table(columns), directory / "original.parquet")
        return (directory / "original.parquet").read_bytes()
    if name == "pairs.csv":
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(PAIRS)
        return table.getvalue().encode()
    raw = "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS).encode()
    return gzip.compress(raw) if name.endswith(".gz") else raw


def read_reference(path: Path, target: Path) -> list[Pair]:
    """Read the pairs of a file with a simple reference implementation."""
    if path.suffix == ".parquet":
        return [Pair(row["source"], row["target"]) for row in parquet.read_table(path).to_pylist()]
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if path.suffix == ".txt":
        return [Pair(*row) for row in zip(lines, target.read_text(encoding="utf-8").splitlines(), strict=True)]
    if path.suffix == ".jsonl":
        records = [json.loads(line) for line in lines if line.strip()]
        return [Pair(record["source"], record["target"]) for record in records]
    if path.suffix == ".csv":
        table = [f"{line}\n" for line in lines]
        delimiter = max(",;\t", key="".join(lines[0].split('"')[::2]).count)
        return [Pair(*row[:2]) for row in csv.reader(table, delimiter=delimiter, strict=True) if row]
    return [Pair(*line.split("\t")[:2]) for line in lines if line.strip()]


def mutated_checkpoint(folder: Path) -> Subject:
    """Mutate one or two files of a checkpoint."""
    original = resume_from(folder.parent)

    def attempt(generator: Random, directory: Path) -> Outcome:
        copy = Path(shutil.copytree(folder, directory / folder.name))
        for name in generator.sample((STATE, WEIGHTS, OPTIMIZER), generator.choice((1, 1, 2))):
            mutate_file(copy / name, generator)
        update_manifest(copy)
        state = load_or_reject(directory, lambda: load_checkpoint_at(copy))
        if state is None:
            return Outcome.REJECTED
        stored = json.loads((copy / STATE).read_text(encoding="utf-8"))
        for name, value in stored["progress"].items():
            if not isinstance(value, dict | list):
                assert canonical(value) == canonical(getattr(state.progress, name))
        assert stored.get("logged", {}) == state.logged
        same = state == original and all(
            equal_tensors(load_file(copy / name), load_file(folder / name)) for name in (WEIGHTS, OPTIMIZER)
        )
        return Outcome.EQUAL if same else Outcome.OTHER

    return Subject("checkpoint", attempt)


def table_of(rows: Mapping[str, Counter[Outcome]]) -> str:
    """Format the outcomes as a table."""
    lines = ["", f"{'input':28} {'tried':>6} " + " ".join(f"{outcome.value:>40}" for outcome in Outcome)]
    for name, counts in rows.items():
        cells = " ".join(f"{counts[outcome]:>40,}" for outcome in Outcome)
        lines.append(f"{name:28} {counts.total():>6,} {cells}")
    return "\n".join(lines)

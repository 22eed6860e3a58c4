"""The folder in which tries with user errors run: data, models and runs, good ones and damaged ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from pathlib import Path

from saccade.cli.demo import write_numbers
from saccade.cli.main import main
from saccade.data.number_words import number_pairs
from saccade.folder import MANIFEST, describe_file, write_json

TINY = (
    "--model.width=16 --model.heads=2 --model.feed-forward=32 --model.encoder-layers=1 --model.decoder-layers=1 "
    "--data.vocabulary=80 --data.batch-tokens=1024 --training.max-steps=4 --training.checkpoint-every=2"
)


def make_workspace(folder: Path) -> None:
    """Fill an empty folder, which must be the current one."""
    write_numbers(folder, number_pairs(train=200, valid=8, test=6, below=1000, seed=1))
    make_texts(folder)
    make_recipes(folder)
    for run, tokenizer in (("run", "bpe"), ("other", "char")):
        files = "--source train.en --target train.de --valid-source valid.en --valid-target valid.de"
        arguments = f"train {files} --output {run} --data.tokenizer {tokenizer} {TINY}"
        assert main(arguments.split()) == 0
    shutil.copytree(folder / "run/model-best", folder / "model")
    assert main(["export", "model", "--format", "huggingface", "--output", "hf"]) == 0
    assert main(["lexicon", "--source", "train.en", "--target", "train.de", "--output", "lexicon.tsv"]) == 0
    make_damaged_models(folder)
    make_damaged_runs(folder)


def make_texts(folder: Path) -> None:
    """Write text files with every usual fault."""
    english, german = ((folder / f"train.{side}").read_text().splitlines()[:20] for side in ("en", "de"))
    files: dict[str, bytes] = {
        "empty.txt": b"",
        "blank.txt": b"\n" * 20,
        "short.de": "\n".join(german[:5]).encode() + b"\n",
        "latin1.txt": "fünf\nzwölf\n".encode("latin-1"),
        "utf16.txt": "fünf\nzwölf\n".encode("utf-16"),
        "binary.bin": hashlib.sha512(b"x").digest() * 50,
        "nul.txt": b"one\0two\nthree\n",
        "pairs.tsv": "".join(f"{a}\t{b}\n" for a, b in zip(english, german, strict=True)).encode(),
        "pairs.csv": ("source,target\n" + "".join(f"{a},{b}\n" for a, b in zip(english, german, strict=True))).encode(),
        "pairs.jsonl": "".join(
            json.dumps({"source": a, "target": b}) + "\n" for a, b in zip(english, german, strict=True)
        ).encode(),
        "one-column.tsv": "\n".join(english).encode() + b"\n",
        "bad.jsonl": b'{"source": "one"\n',
        "no-target.jsonl": b'{"source": "one"}\n',
        "list.jsonl": b'["one", "eins"]\n',
        "bad.parquet": b"PAR1 this is not Parquet",
        "text.gz": b"this is not gzip\n",
        "truncated.gz": gzip.compress(b"one\ntwo\n" * 1000)[:40],
        "bad.lexicon.tsv": b"one\n",
        "modelfile": b"not a folder\n",
        "text.model": b"not a SentencePiece model\n",
        "output.txt": b"results of last week\n",
        "output.json": b'{"results": "of last week"}\n',
        "output.png": b"a picture of last week",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "folder").mkdir()
    (folder / "full").mkdir()
    (folder / "full/notes.txt").write_text("results of last week\n")
    (folder / "link.en").symlink_to("test.en")
    (folder / "link.txt").symlink_to("output.txt")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")


def make_recipes(folder: Path) -> None:
    """Write recipes, a good one and faulty ones."""
    data = "data: {source: train.en, target: train.de}\n"
    recipes = {
        "good.yaml": data + "output: new\n",
        "syntax.yaml": data + "training: {max-steps: [1\n",
        "unknown.yaml": data + "training: {max-stepz: 3}\n",
        "section.yaml": data + "trainig: {max-steps: 3}\n",
        "list.yaml": "- source\n- target\n",
        "empty.yaml": "",
        "type.yaml": data + "training: {max-steps: many}\n",
        "negative.yaml": data + "training: {max-steps: -3}\n",
        "nan.yaml": data + "training: {learning-rate: .nan}\n",
        "huge.yaml": data + "training: {max-steps: 99999999999999999999}\n",
        "twice.yaml": data + data,
        "preset.yaml": data + "model: {preset: transformer-tinny}\n",
        "missing-data.yaml": "data: {source: missing.en, target: missing.de}\noutput: new\n",
        "tag.yaml": "data: !!python/object/apply:os.system [ls]\n",
        "tab.yaml": "data:\n\tsource: train.en\n",
    }
    for name, text in recipes.items():
        (folder / name).write_text(text)


def make_damaged_models(folder: Path) -> None:
    """Copy the model and damage one file of each copy; `sealed-…` folders have a manifest that agrees with it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder / "model", folder / name))

    def replace(name: str, file: str, content: bytes, *, sealed: bool = False) -> None:
        path = copy(name)
        (path / file).write_bytes(content)
        if sealed:
            files = {item.name: describe_file(item) for item in sorted(path.iterdir()) if item.name != MANIFEST}
            write_json(path / MANIFEST, {"files": files})

    weights = (folder / "model/model.safetensors").read_bytes()
    flipped = weights[:-1] + bytes([weights[-1] ^ 1])
    replace("bit-flip", "model.safetensors", flipped)
    replace("truncated", "model.safetensors", weights[:1000])
    replace("sealed-truncated", "model.safetensors", weights[:1000], sealed=True)
    replace("sealed-empty-weights", "model.safetensors", b"", sealed=True)
    replace("bad-config", "config.json", b"{")
    replace("sealed-bad-config", "config.json", b"{", sealed=True)
    replace("sealed-other-config", "config.json", b'{"model": {}}', sealed=True)
    replace("sealed-bad-tokenizer", "tokenizer.json", b"[]", sealed=True)
    replace("sealed-bad-generation", "generation.json", b'{"beam": 0}', sealed=True)
    replace("bad-manifest", MANIFEST, b"files")
    for name, file in (
        ("no-weights", "model.safetensors"),
        ("no-tokenizer", "tokenizer.json"),
        ("no-manifest", MANIFEST),
    ):
        (copy(name) / file).unlink()
    shutil.copytree(folder / "hf", folder / "hf-bad")
    (folder / "hf-bad/config.json").write_text("{")
    shutil.copytree(folder / "hf", folder / "hf-other")
    (folder / "hf-other/config.json").write_text('{"model_type": "bert"}')


def make_damaged_runs(folder: Path) -> None:
    """Copy the run and damage the copies."""
    for name, file in (("no-config", "config.yaml"), ("no-metrics", "metrics.csv"), ("no-data", "data.json")):
        shutil.copytree(folder / "run", folder / f"run-{name}")
        (folder / f"run-{name}" / file).unlink()
    shutil.copytree(folder / "run", folder / "run-bad-config")
    (folder / "run-bad-config/config.yaml").write_text("model: [\n")
    shutil.copytree(folder / "run", folder / "run-no-checkpoints")
    shutil.rmtree(folder / "run-no-checkpoints/checkpoints")
    shutil.copytree(folder / "run", folder / "run-damaged-checkpoint")
    for weights in (folder / "run-damaged-checkpoint/checkpoints").rglob("*.safetensors"):
        weights.write_bytes(b"damaged")


def contents(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file, the target of every link, and the name of every folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            readable = os.access(path, os.R_OK)
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if readable else "unreadable"
        else:
            found[name] = "folder" if path.is_dir() else "special"
    return found

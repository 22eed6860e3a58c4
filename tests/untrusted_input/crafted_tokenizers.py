"""Model folders with a faulty tokenizer.json, with a matching manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers as rust
from tokenizers import models

from untrusted_input.case import Catalog
from untrusted_input.crafted_configs import NOT_JSON
from untrusted_input.pristine import change_json, sparse_file, update_manifest

TOKENIZERS = {kind: Catalog() for kind in ("bpe", "unigram", "byte", "separate")}
"""Cases by the kind of tokenizer of the folder; with separate vocabularies, the target tokenizer is changed."""


def file_of(kind: str) -> str:
    """Return the name of the changed tokenizer file."""
    return "tokenizer.target.json" if kind == "separate" else "tokenizer.json"


def changed(kind: str, name: str, change: Callable[[Any], object], pattern: str) -> None:
    """Add a case whose document holds one other value."""

    def make(folder: Path) -> None:
        change_json(folder / file_of(kind), change)
        update_manifest(folder)

    TOKENIZERS[kind].add(name, make, file_of(kind), pattern)


def text(kind: str, name: str, content: str | bytes, pattern: str) -> None:
    """Add a case whose file has this content."""
    raw = content if isinstance(content, bytes) else content.encode("utf-8")

    def make(folder: Path) -> None:
        (folder / file_of(kind)).write_bytes(raw)
        update_manifest(folder)

    TOKENIZERS[kind].add(name, make, file_of(kind), pattern)


def label_of(name: str, value: Any) -> str:
    """Return a name for a case with an invalid value."""
    return re.sub(r"\W+", "_", f"{name}_{type(value).__name__}_{json.dumps(value)}")[:70].strip("_")


def part(kind: str, name: str, value: Any) -> None:
    """Add a case with another part of the pipeline."""
    label = label_of(name, value)
    pattern = name
    changed(kind, label, lambda document: document["tokenizer"].update({name: value}), pattern)


def model(kind: str, name: str, value: Any, pattern: str) -> None:
    """Add a case with another part of the model."""
    label = label_of(f"model_{name}", value)
    changed(kind, label, lambda document: document["tokenizer"]["model"].update({name: value}), pattern)


def vocabulary(kind: str, name: str, change: Callable[[Any], object], pattern: str) -> None:
    """Add a case with another vocabulary."""
    changed(kind, f"vocabulary_{name}", lambda document: change(document["tokenizer"]["model"]["vocab"]), pattern)


for label, (content, _) in NOT_JSON.items():
    if label != "many_keys":
        text("bpe", f"tokenizer_{label}", content, "JSON|Saccade")
TOKENIZERS["bpe"].add(
    "tokenizer_of_300_megabytes",
    lambda folder: sparse_file(folder / "tokenizer.json", 300 * 10**6, b'{"format": "') or update_manifest(folder),
    "tokenizer.json",
    "134,217,728",
)
text("bpe", "tokenizer_of_another_library", rust.Tokenizer(models.BPE()).to_str(), "Saccade")
changed("bpe", "tokenizer_of_a_later_version", lambda document: document.update(version=2), "version 2")
changed("bpe", "tokenizer_of_no_version", lambda document: document.update(version=[]), "version")
changed("bpe", "tokenizer_of_no_kind", lambda document: document.update(kind="os.system"), "kind 'os.system'")
changed("bpe", "tokenizer_of_a_list_of_kinds", lambda document: document.update(kind=["bpe"]), r"kind \['bpe'\]")
changed("bpe", "tokenizer_of_no_normalization", lambda document: document.update(normalization={}), "normalization {}")
changed("bpe", "tokenizer_with_more", lambda document: document.update(code="import os"), "'code'")
changed("bpe", "tokenizer_without_tokenizer", lambda document: document.update(tokenizer=None), "")
changed("bpe", "tokenizer_without_model", lambda document: document["tokenizer"].pop("model"), "model")
for other in ("unigram", "char", "word", "byte"):
    changed(
        "bpe",
        f"tokenizer_says_it_is_{other}",
        lambda document, other=other: document.update(kind=other),
        "",
    )

BOMB = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
REPLACE = {"type": "Replace", "pattern": {"String": "good"}, "content": "bad"}
for base in TOKENIZERS:
    part(base, "pre_tokenizer", BOMB)
    part(base, "pre_tokenizer", {"type": "Sequence", "pretokenizers": [BOMB] * 50})
    part(base, "pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True})
    part(base, "normalizer", REPLACE)
    part(base, "normalizer", {"type": "Replace", "pattern": {"Regex": "(x+x+)+y"}, "content": ""})
    part(base, "decoder", REPLACE)
    part(base, "decoder", None)
    part(base, "post_processor", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True})
    part(base, "added_tokens", [{"id": 1, "content": "dog", "special": True}])
    part(base, "truncation", {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"})
    part(base, "padding", {"strategy": {"Fixed": 10**9}, "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"})
    part(base, "surprise", {"type": "Python", "code": "import os"})
    model(base, "type", "WordPiece", " model ")
    model(base, "type", None, " model ")
    model(base, "unk_token", "dog", " model ")
    model(base, "vocab", None, "vocabulary")
    model(base, "vocab", 7, "vocabulary")
    model(base, "vocab", {"a": 0}, "vocabulary|0 to 3|missing")
    model(base, "vocab", [], "vocabulary|0 to 3")

model("bpe", "dropout", 0.5, " model ")
model("bpe", "byte_fallback", True, " model ")
model("bpe", "ignore_merges", True, " model ")
model("bpe", "end_of_word_suffix", "</w>", " model ")
model("bpe", "merges", "a b", "merges")
model("bpe", "merges", ["a b"], "'a b'")
model("bpe", "merges", [["a"]], r"\['a'\]")
model("bpe", "merges", [["a", 1]], r"\['a', 1\]")
model("bpe", "merges", [["a", "b", "c"]], r"\['a', 'b', 'c'\]")
model("bpe", "merges", [["no", "where"]], r"\['no', 'where'\]")
changed(
    "bpe",
    "model_merges_twice",
    lambda document: document["tokenizer"]["model"]["merges"].append(document["tokenizer"]["model"]["merges"][0]),
    "merge",
)
model("byte", "merges", [["<0x41>", "<0x42>"]], "'<0x41>', '<0x42>'")
model("separate", "merges", [], " model ")
model("unigram", "unk_id", 0, " model ")
model("unigram", "unk_id", None, " model ")
model("unigram", "byte_fallback", True, " model ")

vocabulary("bpe", "with_a_gap", lambda ids: ids.update(new=len(ids) + 7), "67 .*'new'")
vocabulary("bpe", "with_an_id_twice", lambda ids: ids.update(new=5), r"\b5\b")
vocabulary("bpe", "with_a_negative_id", lambda ids: ids.update(new=-1), "-1 .*'new'")
vocabulary("bpe", "with_a_huge_id", lambda ids: ids.update(new=2**40), f"{2**40} .*'new'")
vocabulary("bpe", "with_a_true_id", lambda ids: ids.update({"<s>": True}), "True .*'<s>'")
vocabulary("bpe", "with_a_text_id", lambda ids: ids.update(new="60"), "'60' .*'new'")
vocabulary("bpe", "with_half_an_id", lambda ids: ids.update(new=60.5), "60.5 .*'new'")
vocabulary("bpe", "with_an_empty_piece", lambda ids: ids.update({"": len(ids)}), "''")
vocabulary("bpe", "without_symbols", lambda ids: [ids.pop(piece) for piece in ("<pad>", "<s>")], "id 58")
vocabulary("bpe", "with_other_symbols", lambda ids: ids.update({"<s>": 2, "</s>": 1}), "<pad>, <s>, </s>, <unk>")
vocabulary("separate", "of_300000", lambda ids: ids.update({f"w{n}": n for n in range(300_000)}), r"\b0\b")
vocabulary("byte", "with_another_byte", lambda ids: ids.update({"<0x100>": ids.pop("<0xFF>")}), "256")
vocabulary("byte", "with_more_than_bytes", lambda ids: ids.update({"dog": 260}), "256")
text(
    "separate",
    "vocabulary_with_half_a_character",
    json.dumps({"format": "saccade-tokenizer", "version": 1, "kind": "word", "tokenizer": {"\ud800": 1}}),
    "surrogate",
)
vocabulary("unigram", "with_a_text_for_a_score", lambda pieces: pieces.append(["new", "-1"]), r"\['new', '-1'\]")
vocabulary("unigram", "with_a_true_score", lambda pieces: pieces.append(["new", True]), r"\['new', True\]")
vocabulary("unigram", "with_a_huge_score", lambda pieces: pieces.append(["new", 1e300]), r"1e\+300 .*'new'")
vocabulary("unigram", "with_a_piece_twice", lambda pieces: pieces.append(list(pieces[9])), "piece '")
vocabulary("unigram", "with_an_empty_piece", lambda pieces: pieces.append(["", -1.0]), "''")
vocabulary("unigram", "with_a_number_for_a_piece", lambda pieces: pieces.append([7, -1.0]), " 7 ")
vocabulary("unigram", "of_texts", lambda pieces: pieces.append("new"), "'new'")
vocabulary("unigram", "with_a_long_piece", lambda pieces: pieces.append(["a" * 5_000_000, -1.0]), "4,194,304")
vocabulary("unigram", "without_symbols", lambda pieces: pieces.pop(0), "<pad>, <s>, </s>, <unk>")

SIZED = Catalog()
"""Valid tokenizers that do not match the config and the weights of the folder."""


def add_word(folder: Path) -> None:
    def change(document: Any) -> None:
        words = document["tokenizer"]["model"]["vocab"]
        words["zebra"] = len(words)

    change_json(folder / "tokenizer.target.json", change)
    update_manifest(folder)


def drop_word(folder: Path) -> None:
    change_json(folder / "tokenizer.target.json", lambda d: d["tokenizer"]["model"]["vocab"].popitem())
    update_manifest(folder)


def swap(folder: Path) -> None:
    (folder / "tokenizer.source.json").rename(folder / "aside")
    (folder / "tokenizer.target.json").rename(folder / "tokenizer.source.json")
    (folder / "aside").rename(folder / "tokenizer.target.json")
    update_manifest(folder)


SIZED.add("one_word_more", add_word, "config.json", "vocabulary")
SIZED.add("one_word_less", drop_word, "config.json", "vocabulary")
SIZED.add("swapped_tokenizers", swap, "config.json", "vocabulary")

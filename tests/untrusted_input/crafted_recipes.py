"""Recipes that are not plain settings, or whose settings are invalid."""

from __future__ import annotations

import os

from untrusted_input.case import Catalog
from untrusted_input.pristine import sparse_file

RECIPES = Catalog()
"""Each case writes recipe.yaml into an empty folder."""

FILE = "recipe.yaml"
VALID = "model: {preset: transformer-tiny}\n"


def text(name: str, content: str | bytes, pattern: str) -> None:
    """Add a case whose recipe has this content."""
    raw = content if isinstance(content, bytes) else content.encode("utf-8")
    RECIPES.add(name, lambda folder: (folder / FILE).write_bytes(raw), FILE, pattern)


def model(name: str, content: str, pattern: str) -> None:
    """Add a case with these settings of the model."""
    text(f"model_{name}", f"model: {content}\n", pattern)


def training(name: str, content: str, pattern: str) -> None:
    """Add a case with these settings of the training."""
    text(f"training_{name}", f"{VALID}training: {content}\n", pattern)


def data(name: str, content: str, pattern: str) -> None:
    """Add a case with these settings of the data."""
    text(f"data_{name}", f"{VALID}data: {content}\n", pattern)


LAUGHS = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
text("billion_laughs", LAUGHS, r"\*a0")
text("billion_laughs_of_groups", "a: &a {x: 1}\nb: &b {x: *a, y: *a}\nmodel: {x: *b, y: *b}\n", r"\*a")
text("list_in_itself", "model: &a [*a]\n", r"\*a")
text("group_in_itself", "model: &a {preset: *a}\n", r"\*a")
text("merged_group", f"{VALID}x: &x {{seed: 1}}\ntraining: {{<<: *x}}\n", r"\*x")
text("merged_group_without_alias", f"{VALID}training: {{<<: {{seed: 1}}}}\n", "'training.<<'")
text("alias_without_anchor", "model: *missing\n", r"\*missing")

for number, tag in enumerate(
    [
        "!!python/object/apply:os.system ['touch executed']",
        "!!python/object/new:os.system ['touch executed']",
        "!!python/name:os.system",
        "!!python/module:os",
        "!!python/object/apply:subprocess.Popen [[touch, executed]]",
        "!!python/tuple [1, 2]",
        "!!binary aGVsbG8=",
        "!!set {a, b}",
        "!!omap [a: b]",
        "!!timestamp 2020-01-01",
        "!!bool x",
        "!!int ''",
        "!!float x",
        "!!null x",
        "!!str 5",
        "!!map [1]",
        "!!merge x",
        "!custom x",
        "!<tag:example.com,2020:x> y",
    ]
):
    text(f"tag_{number}", f"{VALID}output: {tag}\n", "tag")
text("tag_directive", f"%TAG !e! tag:example.com,2020:\n---\n{VALID}output: !e!x y\n", "tag")
text("tag_at_the_root", f"!!map\n{VALID}", "tag")
text("tag_on_a_key", f"{VALID}!!str output: x\n", "tag")

text("empty", "", "")
text("comments_only", "# nothing\n", "")
text("null", "~\n", "")
text("a_list", "- model\n", "")
text("a_word", "model\n", "")
text("a_number", "7\n", "")
text("nul_byte", f"{VALID}output: a\0b\n".encode(), r"U\+0000")
text("control_character", f"{VALID}output: \x1b[2J\n", r"U\+001B")
text("nul_escape", f'{VALID}output: "a\\0b"\n', "NUL")
text("half_a_character", f'{VALID}output: "\\ud800"\n', "surrogate")
text("binary", bytes(range(256)) * 8, "UTF-8")
text("latin_1", f"{VALID}output: für\n".encode("latin1"), "UTF-8")
text("utf_16", VALID.encode("utf-16"), "UTF-8")
text("tab", "model:\n\tpreset: transformer-tiny\n", "YAML")
text("two_documents", f"{VALID}---\n{VALID}", "YAML")
text("cut_off", "model: {preset: transformer-tiny", "YAML")
text("quote_without_end", 'output: "runs\n', "YAML")
text("version_without_end", "%YAML 99999999999999999999.1\n---\n" + VALID, "YAML")
text("key_without_end", f"{'k' * 5000}: 1\n", "")
text("nested_50000_lists", "a: " + "[" * 50_000, "")
text("nested_20000_groups", "{a: " * 15_000, "")
text("nested_200_lists", "model: " + "[" * 200 + "]" * 200 + "\n", "")
text("nested_by_dashes", "- " * 30_000, "")
text("nested_by_indents", "".join(" " * n + "a:\n" for n in range(300)), "")
text("key_twice", f"{VALID}{VALID}", "'model'")
text("key_twice_within", "model: {preset: transformer-tiny, width: 8, width: 16}\n", "'width'")
text("key_twice_in_two_spellings", f"{VALID}training: {{max-steps: 1, max_steps: 2}}\n", "max.steps")
text("number_for_a_key", f"{VALID}1: 2\n", "key 1")
text("null_for_a_key", f"{VALID}~: 2\n", "key None")
text("true_for_a_key", f"{VALID}true: 2\n", "key True")
text("list_for_a_key", f"{VALID}[a, b]: 2\n", r"\['a', 'b'\]")
text("group_for_a_key", f"{VALID}? {{a: b}}\n: 2\n", "{'a': 'b'}")
text("unknown_group", f"{VALID}trainig: {{}}\n", "'training'")
text("unknown_group_with_commands", f'{VALID}"\\e[2J\\u202e\\ntraining": {{}}\n', "training")
text("many_unknown_settings", VALID + "".join(f"k{n}: 1\n" for n in range(4000)), "'k0'")
RECIPES.add("a_gigabyte", lambda folder: sparse_file(folder / FILE, 2**30, b"a: "), FILE, "262,144")
text("300000_bytes", VALID + "#" * 300_000, "262,144")
RECIPES.add("a_folder", lambda folder: (folder / FILE).mkdir(), FILE, "")
RECIPES.add("a_pipe", lambda folder: os.mkfifo(folder / FILE), FILE, "")
RECIPES.add("a_device", lambda folder: (folder / FILE).symlink_to("/dev/zero"), FILE, "")
RECIPES.add("a_link_to_itself", lambda folder: (folder / FILE).symlink_to(FILE), FILE, "")
RECIPES.add("nothing_at_all", lambda folder: None, FILE, "")

model("is_a_word", "transformer-tiny", "'model' .*'transformer-tiny'")
model("is_a_list", "[preset, transformer-tiny]", "'model'")
model("of_a_list_of_presets", "{preset: [transformer-tiny]}", r"\['transformer-tiny'\]")
model("of_a_group_of_presets", "{preset: {a: b}}", "{'a': 'b'}")
model("of_no_preset", "{preset: os.system}", "'os.system'")
model("of_no_family", "{family: os}", "'os'")
model("of_a_family_by_path", "{family: ../../etc/passwd}", "'../../etc/passwd'")
model("of_true_heads", "{preset: transformer-tiny, heads: true}", "'model.heads' .*True")
model("of_no_norm", "{preset: transformer-tiny, norm: no}", "'model.norm' .*'no'")
model("of_sexagesimal_width", "{preset: transformer-tiny, width: 2:08}", "'model.width' .*'2:08'")
model("of_hexadecimal_width", "{preset: transformer-tiny, width: 0x80}", "'model.width' .*'0x80'")
model("of_many_digits", f"{{preset: transformer-tiny, width: {'9' * 5000}}}", "width|digits")
model("of_infinite_width", "{preset: transformer-tiny, width: .inf}", "'model.width' .*'.inf'")
model("of_half_a_width", "{preset: transformer-tiny, width: 128.5}", "'model.width' .*128.5")
training("of_infinite_rate", "{learning-rate: .inf}", "'training.learning-rate'")
training("of_infinite_rate_in_words", "{learning-rate: inf}", "'training.learning-rate' .*'inf'")
training("of_too_large_a_rate", "{learning-rate: 1.0e+999}", "'training.learning-rate' .*inf")
training("of_no_rate", "{clip-norm: nan}", "'training.clip-norm' .*'nan'")
training("of_true_steps", "{max-steps: true}", "'training.max-steps' .*True")
training("of_a_date", "{max-steps: 2020-01-01}", "'training.max-steps' .*'2020-01-01'")
training("is_a_list", "[1, 2]", "'training'")
training("is_null", "", "'training' .*None")
training("of_an_unknown_device", "{device: /dev/sda}", "'training.device' .*'/dev/sda'")
training("of_three_betas", "{betas: [0.9, 0.98, 0.1]}", "'training.betas'")
training("of_metrics_that_are_none", "{metrics: 7}", "'training.metrics' .*7")
data("of_a_number", "{source: 7}", "'data.source' .*7")
data("of_a_group", "{source: {a: b}}", "'data.source'")
data("of_no_tokenizer", "{tokenizer: os.system}", "'data.tokenizer' .*'os.system'")
data("of_a_negative_vocabulary", "{vocabulary: -1}", "'data.vocabulary' .*-1")

"""Model folders with a faulty config.json, generation.json or README.md, with a matching manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from untrusted_input.case import Catalog
from untrusted_input.pristine import change_json, sparse_file, update_manifest

CONFIGS = Catalog()
"""Each case changes a valid folder with two vocabularies and updates the manifest."""

CONFIG, GENERATION, CARD = "config.json", "generation.json", "README.md"
OTHER_WEIGHTS = "tensor '"


def text(name: str, file: str, content: str | bytes, pattern: str) -> None:
    """Add a case whose file has this content."""
    raw = content if isinstance(content, bytes) else content.encode("utf-8")

    def make(folder: Path) -> None:
        (folder / file).write_bytes(raw)
        update_manifest(folder)

    CONFIGS.add(name, make, file, pattern)


def changed(name: str, file: str, change: Callable[[Any], object], pattern: str) -> None:
    """Add a case whose file holds one other value; the weights tell a model of another shape."""

    def make(folder: Path) -> None:
        change_json(folder / file, change)
        update_manifest(folder)

    CONFIGS.add(name, make, "model.safetensors" if pattern == OTHER_WEIGHTS else file, pattern)


def setting(name: str, key: str, value: Any, pattern: str) -> None:
    """Add a case with another model setting."""
    changed(f"model_{name}", CONFIG, lambda values: values["model"].update({key: value}), pattern)


def size(name: str, value: Any) -> None:
    """Add a case with other vocabulary sizes."""
    changed(f"sizes_{name}", CONFIG, lambda values: values.update(sizes=value), "vocabulary")


def decoding(name: str, pattern: str, **values: Any) -> None:
    """Add a case with other decoding defaults."""
    changed(f"decoding_{name}", GENERATION, lambda old: old.update(values), pattern)


NOT_JSON = {
    "empty": ("", "JSON"),
    "binary": (bytes(range(256)), "UTF-8"),
    "utf_16": ("{}".encode("utf-16"), "UTF-8"),
    "latin_1": ('{"ü": 1}'.encode("latin1"), "UTF-8"),
    "with_a_mark": (b"\xef\xbb\xbf{}", "JSON"),
    "nul_bytes": (b"\0" * 1000, "JSON"),
    "python": ("__import__('os').system('true')", "JSON"),
    "a_list": ("[]", "JSON"),
    "a_text": ('"config"', "JSON"),
    "null": ("null", "JSON"),
    "a_number": ("1e400", "1e400"),
    "not_a_number": ('{"a": NaN}', "NaN"),
    "infinite": ('{"a": -Infinity}', "Infinity"),
    "a_long_number": ('{"a": ' + "9" * 10_000 + "}", "JSON"),
    "twice_the_key": ('{"a": 1, "a": 2}', "'a'"),
    "cut_off": ('{"model": {"fam', "JSON"),
    "two_objects": ("{} {}", "JSON"),
    "a_comment": ("{} // fine", "JSON"),
    "half_a_character": (r'{"a": "\ud83d"}', "surrogate"),
    "nul_in_a_text": (r'{"a": "\u0000"}', "NUL"),
    "nested_100000_lists": ("[" * 100_000, ""),
    "nested_900_groups": ('{"a":' * 900 + "1" + "}" * 900, ""),
    "nested_20_groups": ('{"a":' * 20 + "1" + "}" * 20, r"\b16\b"),
    "many_keys": ("{" + ",".join(f'"k{number}": 0' for number in range(100_000)) + "}", "1,048,576"),
}
for label, (content, expected) in NOT_JSON.items():
    text(f"config_{label}", CONFIG, content, expected)
    text(f"generation_{label}", GENERATION, content, expected)


def large(file: str, start: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        sparse_file(folder / file, 100 * 10**6, start)
        update_manifest(folder)

    return make


for file_name in (CONFIG, GENERATION, CARD):
    CONFIGS.add(f"100_megabytes_of_{file_name}", large(file_name, b'{"a": "'), file_name, "1,048,576")
text("card_in_latin_1", CARD, "# für".encode("latin1"), "UTF-8")

changed("config_without_model", CONFIG, lambda values: values.pop("model"), "model and sizes")
changed("config_without_sizes", CONFIG, lambda values: values.pop("sizes"), "model and sizes")
changed("config_with_code", CONFIG, lambda values: values.update(auto_map="x.py"), "model and sizes")
for label, value in {"a_list": [], "a_text": "transformer", "null": None, "a_number": 7, "true": True}.items():
    changed(
        f"model_is_{label}",
        CONFIG,
        lambda values, value=value: values.update(model=value),
        f" {re.escape(repr(value))}",
    )
changed("model_is_nothing", CONFIG, lambda values: values.update(model={}), "--preset")

FAMILIES = ["os.system", "saccade.cli.main", "../transformer", "transformer\n", "", "__builtins__", 7, [], {}, True]
for number, family in enumerate(FAMILIES):
    setting(f"of_no_family_{number}", "family", family, re.escape(repr(family)))
setting("with_preset_and_family", "preset", "transformer-tiny", "preset .*family")
changed("model_with_a_list_for_preset", CONFIG, lambda values: values.update(model={"preset": [1]}), r"preset \[1\]")
changed("model_of_a_preset", CONFIG, lambda values: values.update(model={"preset": "transformer-tiny"}), OTHER_WEIGHTS)

setting("with_an_unknown_setting", "trust_remote_code", True, "'model.trust-remote-code'")
setting("of_width_1000000000", "width", 10**9, "")
setting("of_width_10_to_the_30", "width", 10**30, "'model.width' .*64")
setting("of_width_10_to_the_4000", "width", 10**4000, "'model.width' .*64")
setting("of_negative_width", "width", -16, "'model.width' .*-16")
setting("of_no_width", "width", 0, "'model.width' .*0")
setting("of_half_a_width", "width", 16.5, "'model.width' .*16.5")
setting("of_true_width", "width", True, "'model.width' .*True")
setting("of_text_width", "width", "16; import os", "'model.width'")
setting("of_null_width", "width", None, "'model.width' .*None")
setting("of_a_list_of_widths", "width", [16], "'model.width'")
setting("of_another_width", "width", 32, OTHER_WEIGHTS)
setting("of_1000000000_layers", "encoder_layers", 10**9, "tensors")
setting("of_two_layers", "encoder_layers", 2, OTHER_WEIGHTS)
setting("of_wide_networks", "feed_forward", 10**12, "GB|tensor")
setting("of_wider_networks", "feed_forward", 10**18, "tensor")
setting("of_three_heads", "heads", 3, "3 heads")
setting("of_no_heads", "heads", 0, "'model.heads' .*0")
setting("of_much_dropout", "dropout", 2, "'model.dropout' .*2")
setting("of_text_dropout", "dropout", "nan", "'model.dropout' .*'nan'")
setting("of_infinite_dropout", "dropout", "inf", "'model.dropout' .*'inf'")
setting("of_false_norm", "norm", False, "'model.norm' .*False")
setting("of_pre_norm", "norm", "pre", OTHER_WEIGHTS)
setting("of_endless_positions", "positions", "learned", OTHER_WEIGHTS)
changed(
    "model_of_too_many_positions",
    CONFIG,
    lambda values: values["model"].update(positions="learned", max_positions=10**15),
    "GB|tensor",
)
setting("of_shared_embeddings", "embeddings", "shared", "joint")
setting("of_untied_output", "tie_output", False, OTHER_WEIGHTS)
setting("of_maybe_tied_output", "tie_output", "maybe", "'model.tie-output' .*'maybe'")

SIZES = {"source": 22, "target": 13, "joint": False}
for label, value in {
    "one_more": {**SIZES, "source": 23},
    "negative": {**SIZES, "target": -1},
    "huge": {**SIZES, "target": 10**12},
    "joint": {**SIZES, "joint": True},
    "texts": {"source": "22", "target": "13", "joint": "no"},
    "incomplete": {"source": 22},
    "more": {**SIZES, "third": 1},
    "a_list": [22, 13, False],
    "null": None,
}.items():
    size(label, value)

decoding("unknown", "'beams'", beams=5)
decoding("of_an_endless_beam", "'beam' .*1000000000", beam=10**9)
decoding("of_no_beam", "'beam' .*0", beam=0)
decoding("of_a_true_beam", "'beam' .*True", beam=True)
decoding("of_a_text_beam", "'beam' .*'five'", beam="five")
decoding("of_half_a_beam", "'beam' .*2.5", beam=2.5)
decoding("of_a_beam_of_many_digits", "'beam'", beam=10**4000)
decoding("of_a_list_for_a_beam", "'beam'", beam=[5])
decoding("of_null_for_a_beam", "'beam' .*None", beam=None)
decoding("of_too_many_best", "beam .*nbest", nbest=9)
decoding("of_endless_samples", "'nbest'", sample=True, nbest=10**9)
decoding("of_endless_length", "'max-length'", max_length=10**12)
decoding("of_endless_least_length", "'min-length'", min_length=10**12)
decoding("of_an_endless_factor", "'max-length-factor'", max_length_factor=1e300)
decoding("of_perhaps_sampling", "'sample' .*'perhaps'", sample="perhaps")
decoding("of_no_temperature", "'temperature' .*0", sample=True, temperature=0)
decoding("of_an_unknown_penalty", "'length-penalty'", length_penalty="import os")
decoding("of_groups", "'a'", a={"b": {"c": 1}})

"""Model folders with a faulty config.json, generation.json or README.md, around which the manifest is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from untrusted_input.case import Catalogue
from untrusted_input.pristine import change_json, seal_again, sparse_file

CONFIGS = Catalogue()
"""Each case spoils a sound folder with two vocabularies and seals it again."""

CONFIG, GENERATION, CARD = "config.json", "generation.json", "README.md"
OTHER_WEIGHTS = "tensor .*(is|: the weights) "


def text(name: str, file: str, content: str | bytes, says: str) -> None:
    """A case whose file has this content."""
    raw = content if isinstance(content, bytes) else content.encode("utf-8")

    def make(folder: Path) -> None:
        (folder / file).write_bytes(raw)
        seal_again(folder)

    CONFIGS.add(name, make, file, says)


def changed(name: str, file: str, change: Callable[[Any], object], says: str) -> None:
    """A case whose file holds something else in one place; a model of other weights is told by the weights."""

    def make(folder: Path) -> None:
        change_json(folder / file, change)
        seal_again(folder)

    CONFIGS.add(name, make, "model.safetensors" if says == OTHER_WEIGHTS else file, says)


def setting(name: str, key: str, value: Any, says: str) -> None:
    """A case with another model setting."""
    changed(f"model_{name}", CONFIG, lambda values: values["model"].update({key: value}), says)


def size(name: str, value: Any) -> None:
    """A case with other vocabulary sizes."""
    changed(f"sizes_{name}", CONFIG, lambda values: values.update(sizes=value), "vocabulary")


def decoding(name: str, says: str, **values: Any) -> None:
    """A case with other decoding defaults."""
    changed(f"decoding_{name}", GENERATION, lambda old: old.update(values), says)


NOT_JSON = {
    "empty": ("", "JSON"),
    "binary": (bytes(range(256)), "not UTF-8"),
    "utf_16": ("{}".encode("utf-16"), "not UTF-8"),
    "latin_1": ('{"ü": 1}'.encode("latin1"), "not UTF-8"),
    "with_a_mark": (b"\xef\xbb\xbf{}", "JSON"),
    "nul_bytes": (b"\0" * 1000, "JSON"),
    "python": ("__import__('os').system('true')", "JSON"),
    "a_list": ("[]", "JSON object"),
    "a_text": ('"config"', "JSON object"),
    "null": ("null", "JSON object"),
    "a_number": ("1e400", "too large"),
    "not_a_number": ('{"a": NaN}', "NaN is no JSON number"),
    "infinite": ('{"a": -Infinity}', "Infinity is no JSON number"),
    "a_long_number": ('{"a": ' + "9" * 10_000 + "}", "JSON"),
    "twice_the_key": ('{"a": 1, "a": 2}', "stands twice|duplicate"),
    "cut_off": ('{"model": {"fam', "JSON"),
    "two_objects": ("{} {}", "JSON"),
    "a_comment": ("{} // fine", "JSON"),
    "half_a_character": (r'{"a": "\ud83d"}', "surrogate"),
    "nul_in_a_text": (r'{"a": "\u0000"}', "NUL character"),
    "nested_100000_lists": ("[" * 100_000, "nested too deep"),
    "nested_900_groups": ('{"a":' * 900 + "1" + "}" * 900, "levels deep|nested too deep"),
    "nested_20_groups": ('{"a":' * 20 + "1" + "}" * 20, "nested more than 16 levels deep"),
    "many_keys": ("{" + ",".join(f'"k{number}": 0' for number in range(100_000)) + "}", "larger than"),
}
for label, (content, expected) in NOT_JSON.items():
    text(f"config_{label}", CONFIG, content, expected)
    text(f"generation_{label}", GENERATION, content, expected)


def large(file: str, start: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        sparse_file(folder / file, 100 * 10**6, start)
        seal_again(folder)

    return make


for file_name in (CONFIG, GENERATION, CARD):
    CONFIGS.add(f"100_megabytes_of_{file_name}", large(file_name, b'{"a": "'), file_name, "larger than")
text("card_in_latin_1", CARD, "# für".encode("latin1"), "not UTF-8")

changed("config_without_model", CONFIG, lambda values: values.pop("model"), "keys")
changed("config_without_sizes", CONFIG, lambda values: values.pop("sizes"), "keys")
changed("config_with_code", CONFIG, lambda values: values.update(auto_map="x.py"), "keys")
for label, value in {"a_list": [], "a_text": "transformer", "null": None, "a_number": 7, "true": True}.items():
    changed(f"model_is_{label}", CONFIG, lambda values, value=value: values.update(model=value), "the model cannot be")
changed("model_is_nothing", CONFIG, lambda values: values.update(model={}), "no model is named")

FAMILIES = ["os.system", "saccade.cli.main", "../transformer", "transformer\n", "", "__builtins__", 7, [], {}, True]
for number, family in enumerate(FAMILIES):
    setting(f"of_no_family_{number}", "family", family, "unknown model family")
setting("with_preset_and_family", "preset", "transformer-tiny", "both preset")
changed("model_with_a_list_for_preset", CONFIG, lambda values: values.update(model={"preset": [1]}), "unknown preset")
changed("model_of_a_preset", CONFIG, lambda values: values.update(model={"preset": "transformer-tiny"}), OTHER_WEIGHTS)

setting("with_an_unknown_setting", "trust_remote_code", True, "unknown setting 'trust-remote-code'")
setting("of_width_1000000000", "width", 10**9, "not match the weights|tensor")
setting("of_width_10_to_the_30", "width", 10**30, "'width' cannot be .*64 bits")
setting("of_width_10_to_the_4000", "width", 10**4000, "'width' cannot be .*64 bits")
setting("of_negative_width", "width", -16, "'width' cannot be -16")
setting("of_no_width", "width", 0, "'width' cannot be 0")
setting("of_half_a_width", "width", 16.5, "'width' cannot be 16.5")
setting("of_true_width", "width", True, "'width' cannot be True")
setting("of_text_width", "width", "16; import os", "'width' cannot be")
setting("of_null_width", "width", None, "'width' cannot be None")
setting("of_a_list_of_widths", "width", [16], "'width' cannot be")
setting("of_another_width", "width", 32, OTHER_WEIGHTS)
setting("of_1000000000_layers", "encoder_layers", 10**9, "not match the weights: .*more than")
setting("of_two_layers", "encoder_layers", 2, OTHER_WEIGHTS)
setting("of_wide_networks", "feed_forward", 10**12, "tensor|not match the weights")
setting("of_wider_networks", "feed_forward", 10**18, "not match the weights")
setting("of_three_heads", "heads", 3, "cannot be shared evenly by 3 heads")
setting("of_no_heads", "heads", 0, "'heads' cannot be 0")
setting("of_much_dropout", "dropout", 2, "'dropout' cannot be 2")
setting("of_text_dropout", "dropout", "nan", "'dropout' cannot be 'nan'")
setting("of_infinite_dropout", "dropout", "inf", "'dropout' cannot be 'inf'")
setting("of_false_norm", "norm", False, "'norm' cannot be False")
setting("of_pre_norm", "norm", "pre", OTHER_WEIGHTS)
setting("of_endless_positions", "positions", "learned", OTHER_WEIGHTS)
changed(
    "model_of_too_many_positions",
    CONFIG,
    lambda values: values["model"].update(positions="learned", max_positions=10**15),
    "not match the weights|unexpected tensor",
)
setting("of_shared_embeddings", "embeddings", "shared", "not match the weights: .*joint vocabulary")
setting("of_untied_output", "tie_output", False, OTHER_WEIGHTS)
setting("of_maybe_tied_output", "tie_output", "maybe", "'tie-output' cannot be 'maybe'")

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

decoding("unknown", "unknown setting 'beams'", beams=5)
decoding("of_an_endless_beam", "'beam' cannot be 1000000000", beam=10**9)
decoding("of_no_beam", "'beam' cannot be 0", beam=0)
decoding("of_a_true_beam", "'beam' cannot be True", beam=True)
decoding("of_a_text_beam", "'beam' cannot be 'five'", beam="five")
decoding("of_half_a_beam", "'beam' cannot be 2.5", beam=2.5)
decoding("of_a_beam_of_many_digits", "'beam' cannot be", beam=10**4000)
decoding("of_a_list_for_a_beam", "'beam' cannot be", beam=[5])
decoding("of_null_for_a_beam", "'beam' cannot be None", beam=None)
decoding("of_too_many_best", "cannot give the 9 best", nbest=9)
decoding("of_endless_samples", "'nbest' cannot be", sample=True, nbest=10**9)
decoding("of_endless_length", "'max-length' cannot be", max_length=10**12)
decoding("of_endless_least_length", "'min-length' cannot be", min_length=10**12)
decoding("of_an_endless_factor", "'max-length-factor' cannot be", max_length_factor=1e300)
decoding("of_perhaps_sampling", "'sample' cannot be 'perhaps'", sample="perhaps")
decoding("of_no_temperature", "'temperature' cannot be 0", sample=True, temperature=0)
decoding("of_an_unknown_penalty", "'length-penalty' cannot be", length_penalty="import os")
decoding("of_groups", "unknown setting 'a'", a={"b": {"c": 1}})

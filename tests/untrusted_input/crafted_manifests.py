"""Model folders with a wrong manifest, or with files that a model folder must not contain."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from saccade.folder import MANIFEST, describe_file, json_text
from untrusted_input.case import Catalog
from untrusted_input.pristine import sparse_file, update_manifest

MANIFESTS = Catalog()
"""Each case changes a valid folder with two vocabularies; the manifest is not updated."""

FILES = ("config.json", "model.safetensors", "generation.json", "README.md", "tokenizer.source.json")
NOWHERE = ("../../../../../../etc/passwd", "/etc/passwd", "sub/config.json", "..", ".", "", "C:\\config.json", "a\\b")


def write_manifest(folder: Path, values: object) -> None:
    (folder / MANIFEST).write_text(json_text(values), encoding="utf-8")


def listed(folder: Path) -> dict[str, object]:
    files: dict[str, object] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    return files


def add_damage(catalog: Catalog, name: str) -> None:
    """Add the cases of one file that is empty, cut off or not in the manifest."""

    def cut(folder: Path) -> None:
        os.truncate(folder / name, (folder / name).stat().st_size // 2)

    def leave_out(folder: Path) -> None:
        write_manifest(folder, {"files": {other: entry for other, entry in listed(folder).items() if other != name}})

    catalog.add(f"empty_{name}", lambda folder: os.truncate(folder / name, 0), name, "manifest")
    catalog.add(f"half_of_{name}", cut, name, "manifest")
    catalog.add(f"manifest_leaves_out_{name}", leave_out, name, "")


for name in FILES:
    file = "model" if name == "config.json" else name
    MANIFESTS.add(f"without_{name}", lambda folder, name=name: (folder / name).unlink(), file, "")
    add_damage(MANIFESTS, name)

for number, name in enumerate(NOWHERE):
    MANIFESTS.add(
        f"manifest_lists_a_file_elsewhere_{number}",
        lambda folder, name=name: write_manifest(
            folder, {"files": {**listed(folder), name: describe_file(Path("/etc/passwd"))}}
        ),
        MANIFEST,
        re.escape(repr(name)),
    )


@MANIFESTS.rejected("manifest.json", "")
def without_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


@MANIFESTS.rejected("manifest.json", "NUL")
def manifest_lists_a_name_with_nul(folder: Path) -> None:
    write_manifest(folder, {"files": {**listed(folder), "README.md\0.exe": describe_file(folder / "README.md")}})


@MANIFESTS.rejected("manifest.json", "surrogate")
def manifest_lists_a_name_with_half_a_character(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"files": {"\\ud800": {}}}', encoding="utf-8")


@MANIFESTS.rejected("manifest.json", "")
def manifest_lists_nothing(folder: Path) -> None:
    write_manifest(folder, {"files": {}})


@MANIFESTS.rejected("manifest.json", "")
def manifest_is_empty(folder: Path) -> None:
    write_manifest(folder, {})


@MANIFESTS.rejected("manifest.json", "JSON")
def manifest_is_a_list(folder: Path) -> None:
    write_manifest(folder, [])


@MANIFESTS.rejected("manifest.json", "")
def manifest_lists_names_only(folder: Path) -> None:
    write_manifest(folder, {"files": list(listed(folder))})


@MANIFESTS.rejected("README.md", "manifest")
def manifest_has_text_for_an_entry(folder: Path) -> None:
    write_manifest(folder, {"files": {**listed(folder), "README.md": "trust me"}})


@MANIFESTS.rejected("README.md", "SHA-256")
def manifest_leaves_out_a_sum(folder: Path) -> None:
    size = (folder / "README.md").stat().st_size
    write_manifest(folder, {"files": {**listed(folder), "README.md": {"bytes": size}}})


@MANIFESTS.rejected("manifest.json", "")
def manifest_says_more(folder: Path) -> None:
    write_manifest(folder, {"files": listed(folder), "run": "rm -rf ~"})


@MANIFESTS.rejected("manifest.json", "README.md")
def manifest_lists_a_file_twice(folder: Path) -> None:
    text = (folder / MANIFEST).read_text(encoding="utf-8")
    (folder / MANIFEST).write_text(text.replace('{\n    "README.md"', '{"README.md": {},\n    "README.md"'), "utf-8")


@MANIFESTS.rejected("manifest.json", "")
def manifest_is_written_otherwise(folder: Path) -> None:
    (folder / MANIFEST).write_text(json.dumps({"files": listed(folder)}), encoding="utf-8")


@MANIFESTS.rejected("manifest.json", "1,048,576")
def manifest_of_a_gigabyte(folder: Path) -> None:
    sparse_file(folder / MANIFEST, 2**30, b'{"files": {')


@MANIFESTS.rejected("manifest.json", "JSON")
def manifest_nested_without_end(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"files": ' * 50_000, encoding="utf-8")


@MANIFESTS.rejected("manifest.json", "UTF-8")
def manifest_in_utf_16(folder: Path) -> None:
    (folder / MANIFEST).write_text(json_text({"files": listed(folder)}), encoding="utf-16")


@MANIFESTS.rejected("README.md", "")
def file_is_a_link_to_a_secret(folder: Path) -> None:
    (folder.parent / "secret").write_text("TOP-SECRET", encoding="utf-8")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to(folder.parent / "secret")


@MANIFESTS.rejected("model.safetensors", "")
def weights_are_a_link_to_a_device(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


@MANIFESTS.rejected("manifest.json", "")
def manifest_is_a_link_to_a_device(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to("/dev/zero")


@MANIFESTS.rejected("manifest.json", "")
def manifest_is_a_pipe(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)


@MANIFESTS.rejected("generation.json", "")
def generation_is_a_pipe(folder: Path) -> None:
    (folder / "generation.json").unlink()
    os.mkfifo(folder / "generation.json")


@MANIFESTS.rejected("model", "")
def config_is_a_link_to_itself(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")


@MANIFESTS.rejected("README.md", "")
def card_is_a_folder(folder: Path) -> None:
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()


@MANIFESTS.rejected("model.safetensors", "manifest")
def weights_of_a_terabyte(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 2**40)


@MANIFESTS.rejected("tokenizer.source.json", "tokenizer.json")
def three_tokenizers(folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes((folder / "tokenizer.source.json").read_bytes())
    update_manifest(folder)


@MANIFESTS.rejected("tokenizer.target.json", "tokenizer.json")
def one_tokenizer_of_two(folder: Path) -> None:
    (folder / "tokenizer.target.json").unlink()
    update_manifest(folder)


HARMLESS = Catalog()
"""Folders that load: files that the manifest does not list are not read."""


@HARMLESS.accepted
def unlisted_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("boo", encoding="utf-8")


@HARMLESS.accepted
def unlisted_python(folder: Path) -> None:
    for name in ("modeling.py", "__init__.py", "conftest.py", "pytorch_model.bin"):
        (folder / name).write_text("raise SystemExit('executed')", encoding="utf-8")


@HARMLESS.accepted
def unlisted_validation(folder: Path) -> None:
    (folder / "validation.json").write_text('{"value": -1e9}', encoding="utf-8")


@HARMLESS.accepted
def card_is_a_link_to_the_same_text(folder: Path) -> None:
    (folder / "README.md").rename(folder.parent / "card")
    (folder / "README.md").symlink_to(folder.parent / "card")


@HARMLESS.accepted
def card_with_commands_for_the_terminal(folder: Path) -> None:
    (folder / "README.md").write_text("\x1b]0;owned\x07 \u202e # card\n", encoding="utf-8")
    update_manifest(folder)

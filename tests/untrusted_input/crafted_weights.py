"""Model folders with a faulty model.safetensors, with a matching manifest."""

from __future__ import annotations

import json
import math
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from untrusted_input.case import Catalog
from untrusted_input.pristine import sparse_file, update_manifest

WEIGHTS = Catalog()
"""Each case changes the weights of a valid folder with two vocabularies and updates the manifest."""

FILE = "model.safetensors"
Header = dict[str, Any]


def read(path: Path) -> tuple[Header, bytes]:
    """Return the header of a safetensors file and the data after it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def write(path: Path, header: Header | bytes, data: bytes, length: int | None = None) -> None:
    """Write a safetensors file with any header, and with a length that may be wrong."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


def changed_weights(pattern: str) -> Callable[[Callable[[Header, bytes], tuple[Header | bytes, bytes]]], None]:
    """Add a case that changes header and data."""

    def add(change: Callable[[Header, bytes], tuple[Header | bytes, bytes]]) -> None:
        def make(folder: Path) -> None:
            write(folder / FILE, *change(*read(folder / FILE)))
            update_manifest(folder)

        WEIGHTS.add(change.__name__, make, FILE, pattern)

    return add


def raw_case(name: str, content: bytes, pattern: str) -> None:
    """Add a case whose file has this content."""

    def make(folder: Path) -> None:
        (folder / FILE).write_bytes(content)
        update_manifest(folder)

    WEIGHTS.add(name, make, FILE, pattern)


def first(header: Header) -> str:
    """Return the name of the first tensor in the data."""
    return min((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][0])


def last(header: Header) -> str:
    """Return the name of the last tensor in the data."""
    return max((name for name in header if name != "__metadata__"), key=lambda name: header[name]["data_offsets"][1])


class Bomb:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('pathlib').Path('executed').touch()",)


raw_case("weights_are_empty", b"", "safetensors")
raw_case("weights_of_7_bytes", b"\x01" * 7, "safetensors")
raw_case("weights_are_a_pickle", pickle.dumps(Bomb()), "safetensors")
raw_case("weights_are_zeros", b"\0" * 4096, "safetensors")
raw_case("head_of_2_to_the_63", struct.pack("<Q", 2**63) + b"{}", "4,194,304")
raw_case("head_of_2_to_the_64_less_1", b"\xff" * 64, "4,194,304")
raw_case("head_beyond_the_file", struct.pack("<Q", 10**6) + b"{}", "safetensors")
raw_case("head_is_no_json", struct.pack("<Q", 6) + b"import", "safetensors")
raw_case("head_is_no_text", struct.pack("<Q", 6) + b"\xff" * 6, "safetensors")
raw_case("head_is_a_list", struct.pack("<Q", 2) + b"[]", "safetensors")
raw_case("head_is_null", struct.pack("<Q", 4) + b"null", "safetensors")
raw_case("head_without_tensors", struct.pack("<Q", 2) + b"{}", "tensor '")
raw_case("head_of_empty_entries", struct.pack("<Q", 8) + b'{"a":{}}', "safetensors")
raw_case("head_of_texts", struct.pack("<Q", 9) + b'{"a":"b"}', "safetensors")
raw_case("head_nested_without_end", struct.pack("<Q", 100_000) + b'{"a":' * 20_000, "safetensors")


def make_zip(folder: Path) -> None:
    torch.save({"weight": torch.zeros(3), "bomb": Bomb()}, folder / FILE)
    update_manifest(folder)


WEIGHTS.add("weights_are_a_pickle_in_a_zip", make_zip, FILE, "safetensors")


def make_large_head(folder: Path) -> None:
    sparse_file(folder / FILE, 90 * 10**6, struct.pack("<Q", 80 * 10**6) + b'{"a": "')
    update_manifest(folder)


WEIGHTS.add("head_of_80_megabytes", make_large_head, FILE, "4,194,304")


@changed_weights("'t0'")
def head_of_20000_tensors(header: Header, data: bytes) -> tuple[Header, bytes]:
    return {**header, **{f"t{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(20_000)}}, data


@changed_weights("decoder.0.attention.output.bias")
def head_with_a_name_twice(header: Header, data: bytes) -> tuple[bytes, bytes]:
    name = json.dumps(first(header))
    again = json.dumps(header[first(header)])
    return json.dumps(header).encode()[:-1] + f", {name}: {again}}}".encode(), data


@changed_weights("tensor '")
def tensor_missing(header: Header, data: bytes) -> tuple[Header, bytes]:
    name = last(header)
    return {other: entry for other, entry in header.items() if other != name}, data[: header[name]["data_offsets"][0]]


@changed_weights("'backdoor'")
def tensor_added(header: Header, data: bytes) -> tuple[Header, bytes]:
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [len(data), len(data) + 8]}
    return {**header, "backdoor": entry}, data + bytes(8)


@changed_weights("tensor '")
def tensor_renamed(header: Header, data: bytes) -> tuple[Header, bytes]:
    return {name.replace("encoder", "\u202eencoder"): entry for name, entry in header.items()}, data


@changed_weights(r"\(16, 48\) F32.*\(48, 16\) F32")
def tensor_transposed(header: Header, data: bytes) -> tuple[Header, bytes]:
    for entry in header.values():
        if len(entry.get("shape", [])) == 2:
            entry["shape"].reverse()
    return header, data


def of_kind(kind: str, width: int) -> None:
    def change(header: Header, data: bytes) -> tuple[Header, bytes]:
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        end = 0
        for entry in sorted(entries, key=lambda entry: entry["data_offsets"][0]):
            length = math.prod(entry["shape"]) * width
            entry.update(dtype=kind, data_offsets=[end, end + length])
            end += length
        return header, bytes(end)

    change.__name__ = f"tensors_of_{kind}"
    changed_weights(f"{kind}.* F32")(change)


OCTETS = {"F64": 8, "F16": 2, "BF16": 2, "I8": 1, "I32": 4, "BOOL": 1, "U8": 1, "F31": 4, "object": 8}
for code, octets in OCTETS.items():
    of_kind(code, octets)


def entry_case(name: str, pattern: str, **changes: Any) -> None:
    """Add a case with another entry for the first tensor."""

    def change(header: Header, data: bytes) -> tuple[Header, bytes]:
        header[first(header)].update(changes)
        return header, data

    change.__name__ = name
    changed_weights(pattern)(change)


entry_case("shape_negative", "tensor", shape=[-1, 16])
entry_case("shape_huge", "tensor", shape=[2**62, 2**62])
entry_case("shape_of_nothing", "tensor", shape=[0, 16])
entry_case("shape_of_fractions", "tensor", shape=[2.5, 16])
entry_case("shape_of_texts", "tensor", shape=["22", "16"])
entry_case("shape_a_text", "tensor", shape="22, 16")
entry_case("shape_null", "safetensors", shape=None)
entry_case("shape_nested", "tensor", shape=[[22], [16]])
entry_case("kind_null", "tensor", dtype=None)
entry_case("kind_a_list", "tensor", dtype=["F32"])
entry_case("offsets_beyond_the_file", "safetensors", data_offsets=[0, 10**15])
entry_case("offsets_negative", "safetensors", data_offsets=[-64, 0])
entry_case("offsets_reversed", "safetensors", data_offsets=[64, 0])
entry_case("offsets_elsewhere", "safetensors", data_offsets=[64, 128])
entry_case("offsets_of_one", "safetensors", data_offsets=[0])
entry_case("offsets_a_text", "safetensors", data_offsets="0, 64")


@changed_weights("safetensors")
def two_tensors_at_one_offset(header: Header, data: bytes) -> tuple[Header, bytes]:
    names = sorted(name for name in header if header[name].get("shape") == [16])
    header[names[0]]["data_offsets"] = header[names[1]]["data_offsets"]
    return header, data


@changed_weights("safetensors")
def data_after_the_last_tensor(header: Header, data: bytes) -> tuple[Header, bytes]:
    return header, data + b"\x7fELF" * 100


@changed_weights("safetensors")
def data_cut_off(header: Header, data: bytes) -> tuple[Header, bytes]:
    return header, data[:-4]


def not_finite(name: str, value: float) -> None:
    def change(header: Header, data: bytes) -> tuple[Header, bytes]:
        return header, data[:-4] + struct.pack("<f", value)

    change.__name__ = name
    changed_weights("NaN")(change)


not_finite("weight_not_a_number", math.nan)
not_finite("weight_infinite", math.inf)
not_finite("weight_infinitely_small", -math.inf)


@changed_weights("safetensors")
def metadata_of_numbers(header: Header, data: bytes) -> tuple[Header, bytes]:
    return {**header, "__metadata__": {"format": 7}}, data

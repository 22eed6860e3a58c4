"""Loader of the compiled C kernels; imported by `ops` and `plans` alone.

The sources in `csrc/` are compiled at installation, once per instruction-set level, if there is a C compiler. The best
library for this processor is loaded through ctypes. Without a library the ops run their PyTorch references, with equal
results up to float32 rounding.

A library contains the SHA-256 of its sources and the layout of its structures, and is refused if one of them differs.
The environment variable `SACCADE_KERNELS` selects another folder of libraries, such as an AddressSanitizer build.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from saccade.errors import SaccadeError
from saccade.ops.kernel_abi import STRUCTURES, c_name, fields_of
from saccade.ops.kernel_prototypes import PROTOTYPES
from saccade.ops.source_hash import source_hash

CSRC = Path(__file__).parent.parent / "csrc"
"""The folder of the C sources and, by default, of the compiled libraries."""

LEVELS = {"AVX512": ("v4", "v3", "v1"), "AVX2": ("v3", "v1")}
"""PyTorch's name of the processor's instruction set, and the libraries that it can run, best first."""

REBUILD = "Rebuild the kernels: pip install --no-deps -e ."

FAILURES: dict[int, tuple[type[Exception], str]] = {
    1: (MemoryError, "out of memory"),
    2: (IndexError, "an index is out of range"),
    3: (RuntimeError, "stopped"),
    4: (RuntimeError, "not available at this instruction-set level"),
}
"""The exception for each status of `status.h` but 0, success."""


class StructureField(ctypes.Structure):
    """One field of a structure of the library; the field "" has the size of the structure (`abi.c`)."""

    _fields_ = (("structure", c_char_p), ("field", c_char_p), ("offset", c_int64), ("size", c_int64))


@cache
def best() -> tuple[str, ctypes.CDLL] | None:
    """The level and the library of the best compiled kernels for this processor, if there are any."""
    loaded = ((level, load(level)) for level in found_levels())
    return next(((level, library) for level, library in loaded if library is not None), None)


def library() -> ctypes.CDLL | None:
    """The library of kernels in use."""
    found = best()
    return None if found is None else found[1]


def level() -> str | None:
    """The instruction-set level of the kernels in use, v1 to v4; None without kernels."""
    found = best()
    return None if found is None else found[0]


def found_levels() -> list[str]:
    """The levels that are compiled and that this processor can run, best first."""
    possible = LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("v1",))
    return [level for level in possible if path_of(level) is not None]


def path_of(level: str) -> Path | None:
    """The path of the library of a level, if it exists."""
    folder = Path(os.environ.get("SACCADE_KERNELS") or CSRC)
    paths = (folder / f"native_{level}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.is_file()), None)


def load(level: str) -> ctypes.CDLL | None:
    """The library of a level, or None if this system cannot load it; an outdated library is an error."""
    path = path_of(level)
    try:
        found = ctypes.CDLL(str(path))
    except OSError:  # built on another system
        return None
    check_source_hash(found, str(path))
    check_structures(found, str(path))
    for name, types in PROTOTYPES.items():
        function = getattr(found, name)
        function.argtypes, function.restype = types, c_int
    return found


def check_source_hash(found: ctypes.CDLL, path: str) -> None:
    """Raise SaccadeError unless a library was built from the C sources of this package."""
    try:
        own = (ctypes.c_char * 65).in_dll(found, "saccade_source_hash").value.decode()
    except (ValueError, UnicodeDecodeError):  # from before libraries had one
        own = ""
    if own != source_hash(CSRC):
        raise SaccadeError("the compiled kernels are older than their C sources", where=path, hint=REBUILD)


def check_structures(found: ctypes.CDLL, path: str) -> None:
    """Raise SaccadeError unless all structures have equal fields, offsets and sizes in C and in `kernel_abi.py`."""
    compiled = structure_fields(found)
    for structure in STRUCTURES:
        name = c_name(structure)
        ours, theirs = fields_of(structure), compiled.pop(name, {})
        for field in (*ours, *theirs):
            if ours.get(field) != theirs.get(field):
                layout = f"offset and size {ours.get(field)} in Python, {theirs.get(field)} in C"
                raise SaccadeError(f"structure {name}, field {field or '(size)'}: {layout}", where=path, hint=REBUILD)
        if list(ours) != list(theirs):
            raise SaccadeError(f"structure {name}: the fields have another order in C", where=path, hint=REBUILD)
    if compiled:
        raise SaccadeError(
            f"kernel_abi.py does not declare the structure {next(iter(compiled))}", where=path, hint=REBUILD
        )


def structure_fields(found: ctypes.CDLL) -> dict[str, dict[str, tuple[int, int]]]:
    """Offset and size of every field of every structure of a library."""
    entries = ctypes.cast(found.saccade_structure_fields, POINTER(StructureField))
    structures: dict[str, dict[str, tuple[int, int]]] = {}
    number = 0
    while (entry := entries[number]).structure is not None:
        structures.setdefault(entry.structure.decode(), {})[entry.field.decode()] = entry.offset, entry.size
        number += 1
    return structures


def kernel(name: str, *arguments: object) -> None:
    """Run a kernel on as many threads as PyTorch uses; tensors are given by address and must stay alive.

    A failure is an exception: MemoryError, IndexError or RuntimeError.
    """
    found = library()
    assert found is not None, "the caller asks ops/dispatch.py first"
    status = getattr(found, "saccade_" + name)(torch.get_num_threads(), *arguments)
    if status:
        error, what = FAILURES[status]
        raise error(f"kernel {name}: {what}")

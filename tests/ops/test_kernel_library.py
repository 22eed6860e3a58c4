"""The loader refuses libraries of other sources, with other structures, or of other systems."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from saccade.errors import SaccadeError
from saccade.ops import kernel_library as kernels
from saccade.ops.kernel_abi import STRUCTURES, c_name, fields_of
from saccade.ops.source_hash import source_hash


def test_the_hash_changes_with_names_and_contents(tmp_path):
    for path in (*kernels.CSRC.glob("*.c"), *kernels.CSRC.glob("*.h")):
        shutil.copy(path, tmp_path)
    assert source_hash(tmp_path) == source_hash(kernels.CSRC)
    (tmp_path / "abi.c").write_text((kernels.CSRC / "abi.c").read_text() + "\n")
    changed = source_hash(tmp_path)
    assert changed != source_hash(kernels.CSRC)
    (tmp_path / "linear.c").rename(tmp_path / "linear2.c")
    assert source_hash(tmp_path) not in (changed, source_hash(kernels.CSRC))


def test_a_library_of_other_sources_is_refused(monkeypatch, kernel_level):
    monkeypatch.setattr(kernels, "source_hash", lambda folder: "0" * 64)
    with pytest.raises(SaccadeError) as error:
        kernels.load(kernel_level)
    assert error.value.hint == kernels.REBUILD


def test_a_library_without_a_hash_is_refused():
    with pytest.raises(SaccadeError):
        kernels.check_source_hash(ctypes.CDLL(None), "libc")


@pytest.mark.parametrize("structure", STRUCTURES, ids=c_name)
def test_a_structure_with_another_layout_is_refused(monkeypatch, kernel_level, structure):
    """One field more, less, or of another size: the error names the structure."""
    found = kernels.load(kernel_level)
    kernels.check_structures(found, "")
    fields = list(structure._fields_)
    for other in ([*fields, ("added", ctypes.c_int64)], fields[:-1], [(fields[0][0], ctypes.c_int16), *fields[1:]]):
        changed = type(structure.__name__, (ctypes.Structure,), {"_fields_": other})
        replaced = [changed if one is structure else one for one in STRUCTURES]
        monkeypatch.setattr(kernels, "STRUCTURES", replaced)
        with pytest.raises(SaccadeError, match=c_name(structure)):
            kernels.check_structures(found, "")


def test_fields_in_another_order_and_undeclared_structures_are_refused(monkeypatch, kernel_level):
    found, first = kernels.load(kernel_level), STRUCTURES[0]
    compiled = kernels.structure_fields(found)
    swapped = dict(reversed(compiled[c_name(first)].items()))
    monkeypatch.setattr(kernels, "structure_fields", lambda _: {**compiled, c_name(first): swapped})
    with pytest.raises(SaccadeError, match=c_name(first)):
        kernels.check_structures(found, "")
    monkeypatch.setattr(kernels, "structure_fields", lambda _: {**compiled, "other": {"": (0, 8)}})
    with pytest.raises(SaccadeError, match="other"):
        kernels.check_structures(found, "")


def test_names_of_fields_and_structures():
    assert {c_name(structure) for structure in STRUCTURES} >= {"kv_cache_view", "int8_weight", "packed_memory"}
    (norm,) = (one for one in STRUCTURES if c_name(one) == "layer_norm_weights")
    assert fields_of(norm) == {"": (0, 24), "weight": (0, 8), "bias": (8, 8), "epsilon": (16, 4)}


def test_libraries_of_another_folder(monkeypatch, tmp_path, kernel_level):
    path = kernels.path_of(kernel_level)
    monkeypatch.setenv("SACCADE_KERNELS", str(tmp_path))
    assert kernels.found_levels() == []
    shutil.copy(path, tmp_path)
    assert kernels.found_levels() == [kernel_level]
    assert kernels.path_of(kernel_level).parent == tmp_path
    (tmp_path / path.name).write_bytes(b"no library")
    assert kernels.load(kernel_level) is None

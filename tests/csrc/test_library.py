"""What the loader checks: the hash of the sources, the fields of the structures, the status of a call."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest
import torch

from csrc.small_transformer import HEADS, LONGEST, VOCABULARY, WIDTH, SmallTransformer
from saccade.csrc import library as kernels
from saccade.csrc.abi import STRUCTURES, c_name, fields_of
from saccade.csrc.library import kernel
from saccade.csrc.source_hash import source_hash
from saccade.errors import SaccadeError

SOURCES = Path(kernels.__file__).parent


def test_the_hash_changes_with_names_and_contents(tmp_path):
    for path in (*SOURCES.glob("*.c"), *SOURCES.glob("*.h")):
        shutil.copy(path, tmp_path)
    assert source_hash(tmp_path) == source_hash(SOURCES)
    (tmp_path / "abi.c").write_text((SOURCES / "abi.c").read_text() + "\n")
    changed = source_hash(tmp_path)
    assert changed != source_hash(SOURCES)
    (tmp_path / "linear.c").rename(tmp_path / "linear2.c")
    assert source_hash(tmp_path) not in (changed, source_hash(SOURCES))


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


@pytest.mark.parametrize("bad", [-1, 7, 2**40, -(2**40)])
@pytest.mark.parametrize("name", ["cross_entropy", "paired_cross_entropy", "top_k"])
def test_targets_and_suppressed_tokens_out_of_range(name, bad):
    logits, losses, ids = torch.randn(4, 7), torch.zeros(3, 4), torch.tensor([0, bad])
    kept, found = logits.clone(), torch.zeros(4, 2, dtype=torch.int64)
    columns = [column.data_ptr() for column in losses]
    arguments = {
        "cross_entropy": (2, 7, logits.data_ptr(), ids.data_ptr(), 0.1, True, *columns[:2]),
        "paired_cross_entropy": (2, 7, logits.data_ptr(), ids.data_ptr(), 0.1, 1.0, True, *columns),
        "top_k": (4, 7, logits.data_ptr(), 2, ids.data_ptr(), 2, columns[0], found.data_ptr()),
    }
    with pytest.raises(IndexError):
        kernel(name, *arguments[name])
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("index", [-1, VOCABULARY])
@pytest.mark.parametrize("beam", [1, 2])
def test_a_source_token_out_of_range(index, beam):
    small = SmallTransformer(beam=beam)
    expected = small.search()
    kept = small.tokens.clone()
    small.tokens[7] = index
    with pytest.raises(IndexError):
        small.search()
    small.tokens = kept
    assert small.search() == expected


@pytest.mark.parametrize(
    ("name", "position", "value"),
    [
        *(("position_ids", 3, -1), ("position_ids", 3, LONGEST), ("limits", 1, 0), ("limits", 1, -5)),
        *(("suppressed", 0, VOCABULARY), ("suppressed", 0, -1), ("cu_seqlens", 0, -1), ("cu_seqlens", 2, 0)),
    ],
)
def test_an_index_of_a_search_out_of_range(name, position, value):
    small = SmallTransformer()
    getattr(small, name)[position] = value
    with pytest.raises(IndexError):
        small.search()


@pytest.mark.parametrize("call", ["search", "step"])
@pytest.mark.parametrize(("name", "value"), [("first", -1), ("first", 1000), ("counts", -1), ("counts", 1000)])
def test_rows_of_the_memory_out_of_range(name, value, call):
    small = SmallTransformer()
    getattr(small, name)[2] = value
    with pytest.raises(IndexError):
        small.step() if call == "step" else small.search(encode=False)


@pytest.mark.parametrize("origin", [-1, 5])
def test_an_origin_out_of_range(origin):
    small = SmallTransformer(sentences=5)
    small.origin[4, 1] = origin
    with pytest.raises(IndexError):
        small.step()


def test_a_memory_with_too_few_sentences():
    small = SmallTransformer()
    small.first = small.first[:-1].contiguous()
    for call in (small.step, lambda: small.search(encode=False)):
        with pytest.raises(IndexError):
            call()


def test_sentence_starts_of_the_encoder_that_fall():
    small = SmallTransformer()
    small.cu_seqlens[1] = 5
    with pytest.raises(IndexError):
        small.encode()


@pytest.mark.parametrize("sentences", [1, 14])
def test_the_stop_flag_ends_a_search(sentences):
    small = SmallTransformer(sentences=sentences, beam=2)
    expected = small.search()
    with pytest.raises(RuntimeError):
        small.search(stop=1)
    assert small.search() == expected


def test_layers_of_one_tensor_or_of_their_own():
    small = SmallTransformer()
    expected = small.step(), small.search(encode=False)
    small.steps, small.kv = [list(torch.stack(step)) for step in small.steps], list(torch.stack(small.kv))
    assert torch.equal(small.step(), expected[0])
    assert small.search(encode=False) == expected[1]


def test_int8_products_are_refused_at_a_level_without_them(kernel_level):
    if kernel_level != "v1":
        pytest.skip("this level has int8 products")
    empty = torch.zeros(WIDTH * HEADS)
    weight = next(one for one in STRUCTURES if c_name(one) == "int8_weight")(1, 1)
    with pytest.raises(RuntimeError):
        kernel("int8_linear", 1, empty.data_ptr(), ctypes.byref(weight), empty.data_ptr())

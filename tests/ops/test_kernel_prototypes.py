"""The ctypes prototypes have the name, number and kinds of arguments of the exported C functions."""

from __future__ import annotations

import ctypes
import re
from ctypes import POINTER, c_float, c_int, c_int32, c_int64, c_uint8, c_uint64, c_void_p
from typing import Any

import pytest

from saccade.ops import kernel_library as kernels
from saccade.ops.kernel_abi import STRUCTURES, c_name
from saccade.ops.kernel_prototypes import PROTOTYPES

SCALARS = {
    "int": c_int,
    "int32_t": c_int32,
    "int64_t": c_int64,
    "uint64_t": c_uint64,
    "uint8_t": c_uint8,
    "float": c_float,
}
STRUCTURES_BY_NAME = {c_name(structure): structure for structure in STRUCTURES}
FUNCTION = re.compile(r"EXPORT (\w+) (saccade_\w+)\(([^)]*)\)\s*\{")


def exported_functions(source: str) -> dict[str, tuple[str, list[str]]]:
    """The result type and the parameters of each exported function of a C source."""
    found = {}
    for result, name, parameters in FUNCTION.findall(source):
        found[name] = result, [" ".join(parameter.split()) for parameter in parameters.split(",")]
    return found


EXPORTED = exported_functions("\n".join(path.read_text() for path in sorted(kernels.CSRC.glob("*.c"))))


def fits(parameter: str, kind: Any) -> bool:
    """Whether a C parameter may be declared as this ctypes type."""
    pointers = parameter.count("*")
    base, _name = re.sub(r"\bconst\b|\*", " ", parameter).split()
    if base in STRUCTURES_BY_NAME:
        structure = STRUCTURES_BY_NAME[base]
        return pointers < 2 and kind is (POINTER(structure) if pointers else structure)
    scalar = SCALARS[base]
    if pointers == 0:
        return kind is scalar
    return kind is c_void_p or (pointers == 1 and kind is POINTER(scalar))


def test_all_exported_functions_are_declared():
    assert set(EXPORTED) == set(PROTOTYPES)
    names = set(re.findall(r"EXPORT int (\w+)", "".join(path.read_text() for path in kernels.CSRC.glob("*.[ch]"))))
    assert names == set(PROTOTYPES), "a function that the regular expression does not read, or one in a header"


@pytest.mark.parametrize("name", PROTOTYPES)
def test_the_arguments_are_those_of_the_c_function(name):
    result, parameters = EXPORTED[name]
    assert result == "int"
    assert parameters[0] == "int threads"
    assert len(parameters) == len(PROTOTYPES[name])
    for parameter, kind in zip(parameters, PROTOTYPES[name], strict=True):
        assert fits(parameter, kind), f"{parameter} is declared as {kind.__name__}"


def test_the_loader_declares_them(kernel_level):
    for name, types in PROTOTYPES.items():
        function = getattr(kernels.library(), name)
        assert tuple(function.argtypes) == types
        assert function.restype is c_int


@pytest.mark.parametrize(
    ("parameter", "wrong"),
    [
        ("int64_t rows", c_int),
        ("int causal", c_int64),
        ("float scale", ctypes.c_double),
        ("const float *x", c_int64),
        ("const float *x", POINTER(c_int64)),
        ("projected_column query", c_void_p),
        ("const int8_weight *w", c_void_p),
        ("const float *const *steps", POINTER(c_float)),
    ],
)
def test_other_kinds_do_not_fit(parameter, wrong):
    assert not fits(parameter, wrong)

"""Every op with random, empty, non-contiguous, wrong-dtype and out-of-range arguments.

Valid arguments give the values and gradients of the formula, with and without kernels; invalid ones are refused by a
TypeError, ValueError or IndexError, the same with and without kernels. The default run tries 2,000 argument sets;
`pytest -m slow tests/ops` tries 36,500.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from ops.comparison import kernel_and_reference
from ops.op_arguments import Arguments
from ops.op_cases import CASES, INT8_CASES, OpCase, tensors_of
from saccade.ops.kernel_prototypes import PROTOTYPES

pytestmark = pytest.mark.usefixtures("kernels_required")

REFUSALS = (ValueError, TypeError, IndexError)
"""What our checks raise: another error comes from PyTorch or from a kernel, so a check is missing."""


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The arguments with another tensor at a path."""
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: replaced(value[key], tuple(rest), new)}
    parts = [replaced(part, tuple(rest), new) if number == key else part for number, part in enumerate(value)]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def non_contiguous(x: Tensor) -> Tensor:
    return torch.stack([x, torch.zeros_like(x)], -1)[..., 0]


def mutated(x: Tensor, rng: random.Random, *, alone: bool) -> Tensor:
    """A tensor that is wrong in one respect, or only has other strides."""
    kinds = ["dtype", "stride", "stride", "shape", "fewer", "rank", "range", "nan", "empty", "expanded", "device"]
    kind = rng.choice(kinds)
    if kind == "device" and not alone:
        return x.to("meta")
    if kind == "dtype":
        return x.to(rng.choice([torch.float64, torch.float16, torch.int32, torch.bool, torch.bfloat16]))
    if kind == "stride" and x.dim():
        return non_contiguous(x)
    if kind == "expanded" and x.dim() and x.numel():
        return x[:1].expand(x.shape)
    if kind == "shape" and x.dim():
        return torch.cat([x, x]) if rng.random() < 0.5 else torch.cat([x, x], -1)
    if kind == "fewer" and x.dim() and len(x):
        return x[:-1]
    if kind == "rank":
        return x[None] if rng.random() < 0.5 or not x.dim() or not len(x) else x[0]
    if kind == "range" and x.dtype == torch.int64 and x.numel():
        x = x.clone()
        x.view(-1)[rng.randrange(x.numel())] = rng.choice([-(2**62), -2, -1, 10**6, 2**62])
        return x
    if kind == "nan" and x.is_floating_point() and x.numel():
        x = x.clone()
        x.view(-1)[rng.randrange(x.numel())] = rng.choice([torch.nan, torch.inf, -torch.inf, 1e38])
        return x
    if kind == "empty" and x.dim():
        return x[:0]
    return x


def is_alone(tensors: list[tuple[Any, Tensor]]) -> bool:
    """Whether a tensor would not be on another device than the rest, or not for the first time."""
    return len(tensors) == 1 or any(x.is_meta for _, x in tensors)


def attempt(function: Callable[..., Any], arguments: Arguments) -> tuple[Any, BaseException | None]:
    """The result of a function on a copy of its arguments, or the exception that it raised."""
    try:
        return function(**copy.deepcopy(arguments)), None
    except (*REFUSALS, RuntimeError, UserWarning) as error:
        return None, error


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The outputs of a function, and the gradients of its floating-point arguments."""

    def call(**arguments: Any) -> Any:
        leaves = []
        for path, x in tensors_of(arguments):
            if x.is_floating_point():
                leaves.append(x.detach().clone().requires_grad_())
                used = leaves[-1] * 1.0  # no leaf: some functions overwrite their arguments
                arguments = replaced(arguments, path, used if x.is_contiguous() else non_contiguous(used))
        outputs = [x for _, x in tensors_of(function(**arguments))]
        total = sum(
            (x * torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape)).sum()
            for x in outputs
            if x.requires_grad
        )
        none = [None] * len(leaves)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, Tensor) else none
        return outputs, [torch.zeros_like(leaf) if x is None else x for x, leaf in zip(gradients, leaves, strict=True)]

    return call


def try_argument_sets(name: str, case: OpCase, count: int) -> Counter[str]:
    """Try sets of arguments; returns how many were valid and invalid."""
    rng = random.Random(name)
    torch.manual_seed(len(name))
    tried: Counter[str] = Counter()
    for _ in range(count):
        original = arguments = case.arguments(rng)
        while rng.random() < 0.5:
            tensors = case.read(arguments)
            path, tensor = rng.choice(tensors)
            arguments = replaced(arguments, path, mutated(tensor, rng, alone=is_alone(tensors)))
        valid = case.accepts(arguments, original)
        tried["valid" if valid else "invalid"] += 1
        backward = case.differentiable and rng.random() < 0.5
        call = with_gradients(case.op) if backward else case.op
        with torch.set_grad_enabled(backward), default_device(rng):
            attempts = kernel_and_reference(lambda: attempt(call, arguments))  # noqa: B023
        described = f"{name}, {describe(arguments)}"
        errors = [error for _, error in attempts]
        if not valid:
            assert all(isinstance(error, REFUSALS) for error in errors), f"{described}: invalid, but {errors!r}"
            assert type(errors[0]) is type(errors[1]), f"{described}: {errors!r}"
            continue
        assert errors == [None, None] or is_half(arguments), f"{described}: valid, but {errors!r}"
        if errors == [None, None] and is_moderate(arguments):
            formula = with_gradients(case.formula) if backward else case.formula
            with torch.set_grad_enabled(backward):
                expected = formula(**in_float64(arguments))
            for found, _ in attempts:
                compare(described, found, expected)
    return tried


def default_device(rng: random.Random) -> contextlib.AbstractContextManager[Any]:
    """Sometimes another default device: the ops must not depend on it."""
    return torch.device("meta") if rng.random() < 0.2 else contextlib.nullcontext()


def describe(arguments: Arguments) -> str:
    return ", ".join(f"{path}: {x.dtype} {tuple(x.shape)} {x.device}" for path, x in tensors_of(arguments))


def floats_of(arguments: Arguments) -> list[Tensor]:
    return [x for _, x in tensors_of(arguments) if x.is_floating_point()]


def is_half(arguments: Arguments) -> bool:
    """Whether some tensor has 16 bits: PyTorch lacks some operations in half precision."""
    return any(torch.finfo(x.dtype).bits < 32 for x in floats_of(arguments))


def is_moderate(arguments: Arguments) -> bool:
    """Whether all numbers have enough digits, and are small enough, to compare results."""
    finite = all(bool(x.isfinite().all()) and float(x.abs().amax()) < 1e6 for x in floats_of(arguments) if x.numel())
    return finite and not is_half(arguments)


def in_float64(arguments: Arguments) -> Arguments:
    for path, x in tensors_of(arguments):
        if x.is_floating_point():
            arguments = replaced(arguments, path, x.detach().double())
    return arguments


def compare(described: str, found: Any, expected: Any) -> None:
    mine, theirs = [x for _, x in tensors_of(found)], [x for _, x in tensors_of(expected)]
    assert len(mine) == len(theirs), described
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape, described
        assert_close(one.double(), other, rtol=1e-3, atol=1e-4, msg=lambda text: f"{described}: {text}")


@pytest.mark.parametrize("name", CASES)
def test_random_arguments(name):
    assert min(try_argument_sets(name, CASES[name], 80).values()) > 5


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_many_random_arguments(name):
    assert sum(try_argument_sets(name, CASES[name], 1500).values()) == 1500


def try_int8_argument_sets(name: str, case: OpCase, count: int) -> None:
    rng = random.Random(name)
    torch.manual_seed(1)
    for _ in range(count):
        original = arguments = case.arguments(rng)
        if rng.random() < 0.5:
            path, tensor = rng.choice(list(tensors_of(arguments)))
            arguments = replaced(arguments, path, mutated(tensor, rng, alone=True))
        with torch.no_grad(), default_device(rng):
            found, error = attempt(case.op, arguments)
        if not case.accepts(arguments, original):
            assert isinstance(error, REFUSALS), f"{name}, {describe(arguments)}: invalid, but {error!r}"
            continue
        assert error is None, f"{name}, {describe(arguments)}: valid, but {error!r}"
        if found.numel() and is_moderate(arguments):
            expected = case.formula(**in_float64(arguments))
            scale = arguments["x"].norm(dim=-1).max() * arguments["weight"].norm(dim=1).max()
            assert float((found - expected).abs().max() / scale.clamp(min=1e-9)) < 0.05


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("name", INT8_CASES)
def test_random_int8_arguments(name):
    try_int8_argument_sets(name, INT8_CASES[name], 100)


@pytest.mark.slow
@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("name", INT8_CASES)
def test_many_random_int8_arguments(name):
    try_int8_argument_sets(name, INT8_CASES[name], 1000)


def wrong_value(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda **arguments: function(**arguments) + 0.01


def wrong_gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda **arguments: (found := function(**arguments)) - 0.01 * (found - found.detach())


def refusing(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(**arguments: Any) -> Tensor:
        if not arguments["x"].is_contiguous():
            raise ValueError("x is not contiguous")
        return function(**arguments)

    return call


def accepting(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(**arguments: Any) -> Tensor:
        try:
            return function(**arguments)
        except IndexError:
            return arguments["x"]
        except ValueError:
            return arguments["x"]

    return call


def other_error(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(**arguments: Any) -> Tensor:
        try:
            return function(**arguments)
        except TypeError as error:
            raise RuntimeError from error

    return call


@pytest.mark.parametrize("fault", [wrong_value, wrong_gradient, refusing, accepting, other_error])
@pytest.mark.parametrize("name", ["layer_norm", "linear"])
def test_a_wrong_op_is_found(name, fault):
    with pytest.raises(AssertionError):
        try_argument_sets(name, replace(CASES[name], op=fault(CASES[name].op)), 80)


NOT_OF_OPS = {"fail_allocation_after", "encoder_forward", "decoder_step", "search"}
"""A hook of tests, and the kernels that plans call."""


@pytest.mark.usefixtures("int8_required")
def test_these_ops_are_all_that_have_kernels(called_kernels):
    for name, case in CASES.items():
        try_argument_sets(name, case, 40)
    for name, case in INT8_CASES.items():
        try_int8_argument_sets(name, case, 5)
    names = {name.removeprefix("saccade_") for name in PROTOTYPES}
    assert set(called_kernels) == names - NOT_OF_OPS

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from saccade.ops import kernel_library as kernels
from saccade.ops.int8_linear import int8_available


@pytest.fixture(scope="session", autouse=True)
def token_cache(tmp_path_factory):
    """Use a temporary token cache, not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SACCADE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def threads_of_torch(count: int) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield count
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def one_thread() -> Iterator[int]:
    """Use one thread: on small tensors, a second thread mostly waits, especially on a busy machine."""
    yield from threads_of_torch(1)


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request) -> Iterator[int]:
    """Run the test with several numbers of kernel threads."""
    yield from threads_of_torch(request.param)


@pytest.fixture
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[True, False], ids=["grad", "no-grad"])
def grad_mode(request) -> Iterator[bool]:
    """Run the test with and without gradients: kernels without a backward pass run only without gradients."""
    with torch.set_grad_enabled(request.param):
        yield request.param


@pytest.fixture(params=kernels.found_levels() or [None])
def kernel_level(request, monkeypatch) -> str:
    """Run the test with the kernels of every compiled instruction-set level that this processor supports."""
    if request.param is None:
        pytest.skip("the kernels are not compiled: no C compiler when the package was installed")
    library = kernels.load(request.param)
    assert library is not None
    monkeypatch.setattr(kernels, "library", lambda: library)
    return request.param


@pytest.fixture
def kernels_required() -> None:
    """Skip the test if the kernels are not compiled."""
    if kernels.library() is None:
        pytest.skip("the kernels are not compiled: no C compiler when the package was installed")


class CalledKernels:
    """A kernel library that records the names of the called functions."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.names.append(name.removeprefix("saccade_"))
        return getattr(self.library, name)


@pytest.fixture
def called_kernels(request, monkeypatch) -> list[str]:
    """Record the names of the kernels that the test calls, at the level of `kernel_level` if the test uses it."""
    if "kernel_level" in request.fixturenames:
        request.getfixturevalue("kernel_level")
    called = CalledKernels(kernels.library())
    monkeypatch.setattr(kernels, "library", lambda: called)
    return called.names


@pytest.fixture
def int8_required(request) -> None:
    """Skip the test if int8 products are unavailable, at the level of `kernel_level` if the test uses it."""
    if "kernel_level" in request.fixturenames:
        request.getfixturevalue("kernel_level")
    if not int8_available():
        pytest.skip("no int8 products: no kernels, or an instruction-set level without them")

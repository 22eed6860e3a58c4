"""Limits of the machine: the rate of matrix multiplication and the memory bandwidth.

    python -m bench.machine_limits

Prints one line of JSON. The benchmarks run it before and after every measurement.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass

import torch

PRODUCTS = (1024, 1536, 2048)
ARRAY_BYTES = 2**28  # much larger than any cache


@dataclass(frozen=True)
class Limits:
    """Rates of all threads together."""

    flops: float  # FLOP/s of the fastest square float32 matrix product
    bytes: float  # bytes/s, read and written, of the faster of copy and triad
    threads: int


def measure_limits(seconds: float = 2.0) -> Limits:
    """Measure the current limits of this machine."""
    share = seconds / len(PRODUCTS)
    products = max(matmul_rate(size, seconds=share) for size in PRODUCTS)
    return Limits(products, max(copy_rate(seconds / 2), triad_rate(seconds / 2)), torch.get_num_threads())


def matmul_rate(size: int = 1024, *, seconds: float) -> float:
    """FLOP/s of a square float32 matrix product, measured over some seconds to reduce variance."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    left @ right
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        left @ right
        done += 1
    return done * 2 * size**3 / (time.perf_counter() - began)


def copy_rate(seconds: float) -> float:
    """Bytes per second of a = b."""
    a, b = torch.zeros(ARRAY_BYTES // 4), torch.ones(ARRAY_BYTES // 4)
    return passes(lambda: a.copy_(b), seconds) * 2 * ARRAY_BYTES


def triad_rate(seconds: float) -> float:
    """Bytes per second of a = b + s c."""
    a, b, c = (torch.ones(ARRAY_BYTES // 4) for _ in range(3))
    return passes(lambda: torch.add(b, c, alpha=3.0, out=a), seconds) * 3 * ARRAY_BYTES


def passes(work: object, seconds: float) -> float:
    """How often per second a function can be called."""
    assert callable(work)
    work()
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        work()
        done += 1
    return done / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring time of each limit")
    print(json.dumps(asdict(measure_limits(parser.parse_args().seconds))))


if __name__ == "__main__":
    main()

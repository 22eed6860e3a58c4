"""Build of the CPU kernels: one shared library for each level of the x86-64 instruction set.

The rest of the package is described in pyproject.toml. A level that the compiler or the processor family does not know
is left out; without a compiler all are, and the ops run their PyTorch references, more slowly.

With SACCADE_SANITIZE=1 the libraries check every memory access (`make test-asan`).
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup

CSRC = Path("src/saccade/csrc")
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-fopenmp"]
LEVELS = {"v4": ["-march=x86-64-v4"], "v3": ["-march=x86-64-v3"], "v1": []}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

sanitizers = SANITIZERS if os.environ.get("SACCADE_SANITIZE") == "1" else []
debugging = ["-O1", "-g1", "-fno-omit-frame-pointer"] if sanitizers else []  # at -O3 it compiles for ten minutes
source_hash = runpy.run_path("src/saccade/ops/source_hash.py")["source_hash"]

setup(
    ext_modules=[
        Extension(
            f"saccade.csrc.native_{level}",
            sources=[str(path) for path in sorted(CSRC.glob("*.c"))],
            depends=[str(path) for path in sorted(CSRC.glob("*.h"))],
            define_macros=[("SACCADE_SOURCE_HASH", f'"{source_hash(CSRC)}"')],
            extra_compile_args=[*FLAGS, *flags, *sanitizers, *debugging],
            extra_link_args=["-fopenmp", *sanitizers],
            optional=True,
        )
        for level, flags in LEVELS.items()
    ],
)

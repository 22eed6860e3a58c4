"""Every benchmark script compiles, and its imports of saccade and bench exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest
from bench.environments import RECIPES
from bench.run import PEERS
from bench.training import ENTRIES, NOT_IMPLEMENTED

BENCH = Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = sorted(path for path in BENCH.rglob("*.py") if path.name != "__init__.py")
PEER_SCRIPTS = {"eole", "joeynmt", "transformers", "ctranslate2", "pieces"}  # their packages are not installed here


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(BENCH)))
def test_script_compiles_and_has_a_docstring(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    compile(tree, str(path), "exec")
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(BENCH)))
def test_imports_of_saccade_and_bench_exist(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("saccade", "bench"):
            if path.parent.name == "peers" and path.stem in PEER_SCRIPTS:
                assert node.module == "bench.peers.job"
            module = importlib.import_module(node.module)
            for name in node.names:
                missing = not hasattr(module, name.name)
                if missing:
                    missing = importlib.util.find_spec(f"{node.module}.{name.name}") is None
                assert not missing, f"{node.module} has no {name.name}"


@pytest.mark.parametrize(
    "path",
    [path for path in SCRIPTS if path.stem not in PEER_SCRIPTS],
    ids=lambda path: str(path.relative_to(BENCH)),
)
def test_script_can_be_imported(path):
    module = importlib.import_module(".".join(path.relative_to(BENCH.parent).with_suffix("").parts))
    assert module.__doc__


def test_every_peer_has_a_recipe_and_a_script():
    for entry in (*ENTRIES, *NOT_IMPLEMENTED):
        assert entry.peer in PEERS or entry.peer == "saccade"
    for entry in ENTRIES:
        assert (BENCH / "peers" / f"{entry.peer}.py").is_file()
    assert set(PEERS) == RECIPES.keys() - {"pieces"}

"""One virtual environment per peer, installed from the package index, with a record of versions or of the failure.

    python -m bench.environments [PEER …]

Nothing is installed twice: a record next to the environment says that it is ready, or why it failed; `--again` retries
failed ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.paths import CACHE, ROOT

PIP_TIMEOUT = 1800  # seconds per call of pip
ERROR_PATTERNS = (
    r"^saccade: error: ",
    r"^ERROR: (?=Could|No|Cannot|Failed|Package)",  # pip
    r"^(?:[A-Za-z_.]*Error|[A-Za-z_.]*Exception)\b",  # Python
    r"(?i)^error: ",
)
CONFLICT = "The conflict is caused by:"  # pip lists it in the lines that follow


@dataclass(frozen=True)
class Recipe:
    """The packages of an environment."""

    packages: tuple[str, ...]
    imports: tuple[str, ...]  # modules that must be importable
    torch: bool = True


@dataclass(frozen=True)
class Environment:
    """The state of an environment: ready, or the reason why not."""

    peer: str
    reason: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether the peer can run."""
        return self.reason is None


RECIPES = {
    "pieces": Recipe(("sentencepiece",), ("sentencepiece",), torch=False),
    "joeynmt": Recipe(  # crashes in SetVocabulary of later sentencepiece versions; importlib_metadata is undeclared
        ("joeynmt==2.3.0", "importlib_metadata", "sentencepiece<0.2"), ("joeynmt.training", "joeynmt.prediction")
    ),
    "eole": Recipe(("eole==0.6.4", "aiohttp"), ("eole", "eole.bin.run.train")),  # aiohttp is undeclared
    "transformers": Recipe(("transformers", "accelerate"), ("transformers", "accelerate")),
    "ctranslate2": Recipe(("ctranslate2", "tokenizers"), ("ctranslate2", "tokenizers"), torch=False),
    "fairseq": Recipe(("fairseq==0.12.2",), ("fairseq",)),
    "opennmt-py": Recipe(("OpenNMT-py==3.5.1",), ("onmt",)),
    "sockeye": Recipe(("sockeye==3.1.34",), ("sockeye.train",)),
}


def environment(
    peer: str, *, again: bool = False, recipe: Recipe | None = None, folder: Path | None = None
) -> Environment:
    """The environment of a peer, created if it does not exist; with `again`, also if it failed before."""
    recipe = recipe or RECIPES[peer]
    folder = folder or CACHE / "environments"
    found = read_record(peer, recipe, folder)
    if found is not None and (found.ready or not again):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    print(f"setting up {peer}", file=sys.stderr, flush=True)
    made = make(peer, recipe, folder)
    if not made.ready:
        shutil.rmtree(folder / peer, ignore_errors=True)
    record = {"recipe": asdict(recipe), "environment": asdict(made)}
    (folder / f"{peer}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return made


def read_record(peer: str, recipe: Recipe, folder: Path) -> Environment | None:
    """The recorded environment, if it was made by this recipe."""
    try:
        record = json.loads((folder / f"{peer}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if record.get("recipe") != json.loads(json.dumps(asdict(recipe))):
        return None
    found = Environment(**record["environment"])
    return found if not found.ready or interpreter(peer, folder).exists() else None


def make(peer: str, recipe: Recipe, folder: Path) -> Environment:
    """Install the packages and import the modules."""
    if not interpreter(peer, folder).exists():
        venv.create(folder / peer, with_pip=True)
    python = str(interpreter(peer, folder))
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]  # not --quiet, which hides version conflicts
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    calls = [[*pip, *constraints, "torch"]] if recipe.torch else []
    for call in [*calls, [*pip, *(constraints if recipe.torch else []), *recipe.packages]]:
        if reason := failure(call):
            return Environment(peer, f"does not install: {reason}")
    if reason := failure([python, "-P", "-c", "import " + ", ".join(recipe.imports)]):
        return Environment(peer, f"installs, but cannot be imported: {reason}")
    return Environment(peer, None, versions_in(python))


def failure(command: Sequence[str]) -> str | None:
    """The reason why a command failed, in one line, or None."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PIP_TIMEOUT, env=clean_environment()
        )
    except subprocess.TimeoutExpired:
        return f"not done after {PIP_TIMEOUT} seconds"
    return None if done.returncode == 0 else find_reason(f"{done.stdout}\n{done.stderr}")


def clean_environment() -> dict[str, str]:
    """Environment variables without those that would add packages of this interpreter."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def find_reason(output: str) -> str:
    """The line that explains a failure: the first error of pip, else the exception, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    if CONFLICT in lines:
        caused = lines[lines.index(CONFLICT) + 1 :]
        return shorten("; ".join(itertools.takewhile(lambda line: not line.startswith("To fix this"), caused)))
    for pattern in ERROR_PATTERNS:
        for line in lines:
            if re.search(pattern, line) and "subprocess-exited-with-error" not in line:
                return shorten(line.removeprefix("ERROR: "))
    return shorten(lines[-1]) if lines else "no output"


def shorten(line: str, most: int = 200) -> str:
    """A line short enough for a table, without URLs and local paths."""
    line = re.sub(r"(?:file://|https?://)\S+", "…", line)
    line = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", line).replace("|", "/")
    return line if len(line) <= most else line[: most - 1] + "…"


def versions_in(python: str) -> dict[str, str]:
    """The version of every package in an environment."""
    call = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return {package["name"].lower(): package["version"] for package in json.loads(done.stdout)}


def interpreter(peer: str, folder: Path | None = None) -> Path:
    """The Python interpreter of a peer's environment; Saccade uses this one."""
    if peer == "saccade":
        return Path(sys.executable)
    return (folder or CACHE / "environments") / peer / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", default=list(RECIPES), help=f"some of {', '.join(RECIPES)}; all by default")
    parser.add_argument("--again", action="store_true", help="retry failed installations")
    options = parser.parse_args()
    for peer in options.peers:
        if peer not in RECIPES:
            parser.error(f"unknown peer '{peer}': choose from {', '.join(RECIPES)}")
        found = environment(peer, again=options.again)
        print(f"{peer}: {'ready' if found.ready else found.reason}", flush=True)


if __name__ == "__main__":
    main()

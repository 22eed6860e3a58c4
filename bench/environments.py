"""One virtual environment a peer, made from the package registry, with a note of its versions or of what failed.

    python -m bench.environments [PEER …]

Nothing is installed twice: a note beside the environment says that it is ready, or why it is not; `--again` tries those
anew that failed.
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

from bench.places import CACHE, ROOT

MOST_SECONDS = 1800  # for one call of pip
TELLING = (
    r"^saccade: error: ",
    r"^ERROR: (?=Could|No|Cannot|Failed|Package)",  # pip
    r"^(?:[A-Za-z_.]*Error|[A-Za-z_.]*Exception)\b",  # Python
    r"(?i)^error: ",
)
CONFLICT = "The conflict is caused by:"  # pip lists it in the lines that follow


@dataclass(frozen=True)
class Recipe:
    """What an environment holds."""

    packages: tuple[str, ...]
    imports: tuple[str, ...]  # what must be importable for the peer to count as installed
    torch: bool = True


@dataclass(frozen=True)
class Environment:
    """An environment as it is: ready, or not and why."""

    peer: str
    reason: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether the peer can run."""
        return self.reason is None


RECIPES = {
    "pieces": Recipe(("sentencepiece",), ("sentencepiece",), torch=False),
    "joeynmt": Recipe(  # it dies in SetVocabulary of later sentencepieces, and does not declare importlib_metadata
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
    """The environment of a peer, made now if it never was; with `again`, also if it failed."""
    recipe = recipe or RECIPES[peer]
    folder = folder or CACHE / "environments"
    found = read_note(peer, recipe, folder)
    if found is not None and (found.ready or not again):
        return found
    folder.mkdir(parents=True, exist_ok=True)
    print(f"setting up {peer}", file=sys.stderr, flush=True)
    made = make(peer, recipe, folder)
    if not made.ready:
        shutil.rmtree(folder / peer, ignore_errors=True)
    note = {"recipe": asdict(recipe), "environment": asdict(made)}
    (folder / f"{peer}.json").write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
    return made


def read_note(peer: str, recipe: Recipe, folder: Path) -> Environment | None:
    """What is noted of an environment that was made by this very recipe."""
    try:
        note = json.loads((folder / f"{peer}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if note.get("recipe") != json.loads(json.dumps(asdict(recipe))):
        return None
    found = Environment(**note["environment"])
    return found if not found.ready or python_of(peer, folder).exists() else None


def make(peer: str, recipe: Recipe, folder: Path) -> Environment:
    """Install everything, and see whether it can be imported."""
    if not python_of(peer, folder).exists():
        venv.create(folder / peer, with_pip=True)
    python = str(python_of(peer, folder))
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check"]  # quiet, it would not say what conflicts
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    calls = [[*pip, *constraints, "torch"]] if recipe.torch else []
    for call in [*calls, [*pip, *(constraints if recipe.torch else []), *recipe.packages]]:
        if reason := failure(call):
            return Environment(peer, f"does not install: {reason}")
    if reason := failure([python, "-P", "-c", "import " + ", ".join(recipe.imports)]):
        return Environment(peer, f"installs, but cannot be imported: {reason}")
    return Environment(peer, None, versions_in(python))


def failure(command: Sequence[str]) -> str | None:
    """Why a command failed, in a line, or None."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=MOST_SECONDS, env=quiet_environment()
        )
    except subprocess.TimeoutExpired:
        return f"not done after {MOST_SECONDS} seconds"
    return None if done.returncode == 0 else reason_in(f"{done.stdout}\n{done.stderr}")


def quiet_environment() -> dict[str, str]:
    """Our own variables without those that would mix this Python's packages into another's."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def reason_in(words: str) -> str:
    """The line that says what went wrong: pip's first telling error, else the exception, else the last line."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    if CONFLICT in lines:
        caused = lines[lines.index(CONFLICT) + 1 :]
        return shorten("; ".join(itertools.takewhile(lambda line: not line.startswith("To fix this"), caused)))
    for mark in TELLING:
        for line in lines:
            if re.search(mark, line) and "subprocess-exited-with-error" not in line:
                return shorten(line.removeprefix("ERROR: "))
    return shorten(lines[-1]) if lines else "it said nothing"


def shorten(line: str, most: int = 200) -> str:
    """A line that fits into a table; places on this machine are nobody's business."""
    line = re.sub(r"(?:file://|https?://)\S+", "…", line)
    line = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", line).replace("|", "/")
    return line if len(line) <= most else line[: most - 1] + "…"


def versions_in(python: str) -> dict[str, str]:
    """Every package of an environment with its version."""
    call = [python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return {package["name"].lower(): package["version"] for package in json.loads(done.stdout)}


def python_of(peer: str, folder: Path | None = None) -> Path:
    """The interpreter of a peer's environment; Saccade runs in ours."""
    if peer == "saccade":
        return Path(sys.executable)
    return (folder or CACHE / "environments") / peer / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", default=list(RECIPES), help=f"of {', '.join(RECIPES)}; all by default")
    parser.add_argument("--again", action="store_true", help="try again what failed")
    options = parser.parse_args()
    for peer in options.peers:
        if peer not in RECIPES:
            parser.error(f"there is no peer '{peer}': choose from {', '.join(RECIPES)}")
        found = environment(peer, again=options.again)
        print(f"{peer}: {'ready' if found.ready else found.reason}", flush=True)


if __name__ == "__main__":
    main()

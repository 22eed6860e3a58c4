"""The token cache: what a run's data became, kept in a folder until the data or the settings change.

An entry is named by a hash of the input paths and of every setting that shapes tokens:

    entry.json      the settings, the inputs with the SHA-256 of their content, and a digest of both
    tokenizer.json, or tokenizer.source.json and tokenizer.target.json
    source.ids …    the training data (`store.py`)
    valid.jsonl     the validation texts
    report.json     what is remarkable about the texts
    manifest.json   SHA-256 of all these
    times.json      sizes and times of the inputs: while they agree, nobody reads the inputs again

An entry is written beside its place and renamed into it. A lock lets one process build it and the others wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers as tokenizers_library

from saccade.data.audit.report import DataReport
from saccade.data.cache.building import REPORT, VALID, Report, build_tokens, read_saved_pairs
from saccade.data.cache.corpus import Corpus
from saccade.data.cache.corpus_files import ARRAYS, open_store
from saccade.data.config import DataConfig
from saccade.data.reading.input_files import Inputs
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers, tokenizers_digest
from saccade.errors import SaccadeError
from saccade.file_lock import lock_file
from saccade.folder import (
    MANIFEST,
    damaged,
    describe_file,
    partial,
    previous,
    read_json,
    recover,
    replace_file,
    whole_folder,
    write_json,
)

FORMAT = 1  # raise it whenever the same texts and settings would become other tokens
ENTRY = "entry.json"
TIMES = "times.json"
LOCK = ".lock"
LARGEST_HASHED = 2**28  # bytes of arrays that are hashed at every start; of larger ones only the sizes are compared
HASHING_THREADS = 4
SETTLED = 2 * 10**9  # nanoseconds after which a second change of a file shows in its time on every file system

# The settings that shape tokens, with their defaults resolved.
SHAPING = (
    "hold_out",
    "source_column",
    "target_column",
    "normalization",
    "tokenizer",
    "target_kind",
    "vocabulary",
    "target_size",
    "shares_vocabulary",
    "min_frequency",
    "max_length",
    "max_ratio",
    "tokenizer_pairs",
)


@dataclass(frozen=True)
class CachedData:
    """The data of a run as an entry of the cache holds it."""

    path: Path
    tokenizers: Tokenizers
    train: Corpus
    valid: list[Pair]
    report: DataReport
    digest: str  # of the content of the inputs and of the settings
    seconds: float | None = None  # how long it took to build; None if it was there


def open_cache(
    config: DataConfig,
    *,
    tokenizers: Tokenizers | None = None,
    say: Callable[[str], None],
    progress: Report,
    locked: Callable[[], None] = lambda: None,
) -> CachedData:
    """The data of a run: found in the cache if nothing has changed, else built there.

    If `tokenizers` are given, the data is encoded with these and no others. `locked` is called as soon as no other
    process can begin to build the same entry.
    """
    inputs = Inputs(config)
    root = cache_folder(config)
    own = None if tokenizers is None else tokenizers_digest(tokenizers)
    for candidate in dict.fromkeys((None, own)):  # given tokenizers are mostly those that were learnt from this data
        path = root / entry_name(config, inputs, candidate)
        with entry_lock(path, say):
            locked()
            locked = nothing
            found = usable(path, inputs, say)
            if found is not None and (own is None or own == tokenizers_digest(found.tokenizers)):
                return found
            if candidate == own:
                return build_entry(path, config, inputs, tokenizers, progress)
    raise AssertionError("the last candidate is always built")


def nothing() -> None:
    """Done already."""


def cache_folder(config: DataConfig) -> Path:
    """Where the entries are."""
    named = config.cache or os.environ.get("SACCADE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "saccade"


def shaping(config: DataConfig) -> dict[str, Any]:
    """Every setting that shapes tokens."""
    return {name: getattr(config, name) for name in SHAPING}


def entry_name(config: DataConfig, inputs: Inputs, tokenizers: str | None) -> str:
    """The name of the entry for these paths and settings, and for these tokenizers if they are given."""
    key = {
        "format": FORMAT,
        "libraries": [tokenizers_library.__version__, unicodedata.unidata_version],
        "settings": shaping(config),
        "inputs": inputs.paths(),
        "tokenizers": tokenizers,
    }
    return "tokens-" + hash_of(key)[:32]


def content_digest(config: DataConfig, inputs: Inputs) -> str:
    """A hash of all that decides the tokens: the content of the inputs, wherever they lie, and the settings."""
    return hash_of({"settings": shaping(config), "inputs": inputs.digests()})


def hash_of(values: Any) -> str:
    """The SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()


def build_entry(
    path: Path, config: DataConfig, inputs: Inputs, tokenizers: Tokenizers | None, progress: Report
) -> CachedData:
    """Build an entry, put it into its place, and open it."""
    began = time.perf_counter()
    clear_leftovers(path.parent)
    try:
        with whole_folder(path) as folder:
            digest = content_digest(config, inputs)
            build_tokens(folder, config, tokenizers, progress)
            inputs.check_unchanged()
            entry = {
                "format": FORMAT,
                "digest": digest,
                "settings": shaping(config),
                "inputs": [
                    {"path": file.path, "bytes": file.state.size, "sha256": file.digest} for file in inputs.all()
                ],
            }
            write_json(folder / ENTRY, entry)
    except SaccadeError as error:
        if isinstance(error.__cause__, OSError):
            raise unwritable(path.parent, error.__cause__) from error
        raise
    note_times(path, inputs)
    return open_entry(path, seconds=time.perf_counter() - began)


def usable(path: Path, inputs: Inputs, say: Callable[[str], None]) -> CachedData | None:
    """The entry at a place if it is whole and its inputs are what they were; else nothing, and a word why."""
    recover_quietly(path)
    if not path.exists():
        return None
    try:
        changed = changed_input(path, inputs)
        if changed is not None:
            say(f"token cache: {changed} has changed: tokenising again")
            return None
        verify_entry(path)
        return open_entry(path)
    except SaccadeError as error:
        say(f"token cache: {error.where} {error.what}: tokenising again")
    except (OSError, KeyError, TypeError, ValueError) as error:  # whole, but not as this version writes it
        say(f"token cache: {path} cannot be used ({error}): tokenising again")
    return None


def changed_input(path: Path, inputs: Inputs) -> str | None:
    """The first input whose content is not what the entry was made from, if there is one."""
    if read_times(path) == inputs.states():
        return None
    known = read_json(path / ENTRY)["inputs"]
    for file, old in zip(inputs.all(), known, strict=True):
        if file.state.size != old["bytes"] or file.digest != old["sha256"]:
            return file.path
    note_times(path, inputs)
    return None


def read_times(path: Path) -> Any:
    """The sizes and times of the inputs when they were last read; a damaged or missing file says nothing."""
    try:
        return json.loads((path / TIMES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def note_times(path: Path, inputs: Inputs) -> None:
    """Remember sizes and times of the inputs, so that the next run need not read them."""
    newest = max(file.state.changed for file in inputs.all())
    if time.time_ns() - newest < SETTLED:
        return  # somebody may change a file once more without its time telling
    with contextlib.suppress(OSError):  # a cache that cannot be written can still be read
        replace_file(path / TIMES, json.dumps(inputs.states()) + "\n")


def verify_entry(path: Path) -> None:
    """Refuse an entry with a file that is not what was written; very large arrays are judged by their size."""
    manifest = read_json(path / MANIFEST)["files"]
    large = sum(manifest[name]["bytes"] for name in ARRAYS) > LARGEST_HASHED
    for name, expected in manifest.items():
        file = path / Path(name).name
        if not file.is_file():
            raise damaged(file, "is missing")
        if file.stat().st_size != expected["bytes"]:
            raise damaged(file, "does not have the size it had")
    hashed = [path / Path(name).name for name in manifest if not (large and name in ARRAYS)]
    with ThreadPoolExecutor(HASHING_THREADS) as pool:  # a thread that hashes lets the others run
        for file, found in zip(hashed, pool.map(describe_file, hashed), strict=True):
            if found != manifest[file.name]:
                raise damaged(file, "is not what was written")


def open_entry(path: Path, seconds: float | None = None) -> CachedData:
    """Read an entry; its arrays are mapped."""
    return CachedData(
        path=path,
        tokenizers=load_tokenizers(path),
        train=open_store(path),
        valid=read_saved_pairs(path / VALID),
        report=DataReport.from_json(read_json(path / REPORT)),
        digest=str(read_json(path / ENTRY)["digest"]),
        seconds=seconds,
    )


@contextlib.contextmanager
def entry_lock(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes from building the same entry; where nothing can be written, nothing can be built either."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.with_name(path.name + LOCK).open("a"))
        except OSError as error:
            if not path.exists():
                raise unwritable(path.parent, error) from None
        else:
            if not lock_file(file.fileno(), wait=False):
                say(f"token cache: waiting for another process that prepares {path}")
                lock_file(file.fileno(), wait=True)
        yield


def recover_quietly(path: Path) -> None:
    """Put right what a killed writer of this entry left; in a cache that cannot be written there is nothing to do."""
    with contextlib.suppress(OSError):
        recover(path)


def clear_leftovers(root: Path) -> None:
    """Remove what killed builders of any entry left behind, unless somebody is building it now."""
    for leftover in [*root.glob(".tokens-*.partial"), *root.glob(".tokens-*.previous")]:
        path = root / leftover.name[1:].rpartition(".")[0]
        assert leftover in (partial(path), previous(path))
        with contextlib.suppress(OSError), path.with_name(path.name + LOCK).open("a") as file:
            if lock_file(file.fileno(), wait=False):
                shutil.rmtree(leftover, ignore_errors=True)


def unwritable(root: Path, error: OSError) -> SaccadeError:
    """What to tell when the cache has no room or no permission."""
    return SaccadeError(
        f"the token cache cannot be written: {error.strerror or error}",
        where=str(root),
        do="free some space, or choose another folder with --data.cache DIR",
    )

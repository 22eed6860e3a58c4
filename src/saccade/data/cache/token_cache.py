"""The token cache: tokenized data on disk, reused until the input files or the settings change.

The name of an entry is a hash of the input paths and of every setting that affects tokens:

    entry.json      the settings, the SHA-256 of the input files, and a digest of both
    tokenizer.json, or tokenizer.source.json and tokenizer.target.json
    source.ids …    the training data (`corpus_files.py`)
    valid.jsonl     the validation texts
    report.json     the data report
    valid-report.json  the report on the validation texts
    manifest.json   SHA-256 of all these files
    times.json      sizes and modification times of the inputs: while they are equal, the inputs are not hashed again

An entry is written to a temporary folder and renamed (atomic). With a file lock, one process builds and others wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers as tokenizers_library

from saccade.data.audit.report import DataReport
from saccade.data.cache.cache_builder import (
    REPORT,
    VALID,
    VALID_REPORT,
    ProgressCallback,
    build_tokens,
    read_saved_pairs,
)
from saccade.data.cache.corpus import Corpus
from saccade.data.cache.corpus_files import ARRAYS, open_corpus
from saccade.data.config import MODEL_SUFFIX, DataConfig
from saccade.data.reading.input_files import InputFiles
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.sentencepiece_backend import import_package, model_digest
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, load_tokenizers, tokenizers_digest
from saccade.errors import SaccadeError, system_advice
from saccade.file_lock import lock_file
from saccade.folder import (
    MANIFEST,
    atomic_folder,
    damaged,
    describe_file,
    partial_path,
    previous_path,
    read_json,
    recover,
    replace_file,
    write_json,
)

FORMAT = 2  # increase it whenever equal texts and settings would give different tokens, or the files change
ENTRY = "entry.json"
TIMES = "times.json"
LOCK = ".lock"
MAX_HASHED_SIZE = 2**28  # bytes: larger arrays are checked by size only, smaller ones are hashed at every start
HASHING_THREADS = 4
TIME_RESOLUTION = 2 * 10**9  # nanoseconds: the coarsest modification times of any file system

# The settings that affect tokens, with their defaults resolved; the kind of the source tokenizer and the content of
# SentencePiece models are added.
TOKEN_SETTINGS = (
    "hold_out",
    "source_column",
    "target_column",
    "normalization",
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
    """The data of a run, read from an entry of the cache."""

    path: Path
    tokenizers: Tokenizers
    train: Corpus
    valid: list[Pair]
    report: DataReport
    valid_report: DataReport  # of the validation files; empty without them
    digest: str  # of the content of the input files and of the settings
    seconds: float | None = None  # build time; None if the entry existed


def open_cache(
    config: DataConfig,
    *,
    tokenizers: Tokenizers | None = None,
    log: Callable[[str], None],
    progress: ProgressCallback,
    on_lock: Callable[[], None] = lambda: None,
) -> CachedData:
    """Return the data of a run: from the cache if inputs and settings are unchanged, else tokenized and stored there.

    If `tokenizers` are given, none are trained. `on_lock` is called once this process holds the lock of the
    entry.
    """
    inputs = InputFiles(config)
    root = cache_folder(config)
    settings = token_settings(config, tokenizers)
    given = None if tokenizers is None else tokenizers_digest(tokenizers)
    for candidate in dict.fromkeys((None, given)):  # given tokenizers were usually trained on this data: try None first
        path = root / entry_name(settings, inputs, candidate)
        with entry_lock(path, log):
            on_lock()
            on_lock = do_nothing
            found = open_if_unchanged(path, inputs, log)
            if found is not None and (given is None or given == tokenizers_digest(found.tokenizers)):
                return found
            if candidate == given:
                return build_entry(path, config, inputs, tokenizers, progress)
    raise AssertionError("the last candidate is always built")


def do_nothing() -> None:
    """Replace `on_lock` after its first call."""


def cache_folder(config: DataConfig) -> Path:
    """The folder of the token cache."""
    configured = config.cache or os.environ.get("SACCADE_CACHE")
    if configured:
        return Path(configured).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "saccade"


def token_settings(config: DataConfig, tokenizers: Tokenizers | None) -> dict[str, Any]:
    """Return every setting that affects tokens.

    The path of a SentencePiece model does not matter, its content does; a resumed run has it in its `tokenizers`.
    """
    settings = {"tokenizer": config.source_kind, **{name: getattr(config, name) for name in TOKEN_SETTINGS}}
    if config.sentencepiece_models:
        given = (None, None) if tokenizers is None else tokenizers
        settings["sentencepiece"] = [
            None if not path.endswith(MODEL_SUFFIX) else model_digest(path) if one is None else one.model_digest
            for path, one in zip((config.tokenizer, config.target_setting), given, strict=True)
        ]
    return settings


def libraries(settings: Mapping[str, Any]) -> list[str]:
    """Return the versions of the libraries that tokens depend on."""
    own = [tokenizers_library.__version__, unicodedata.unidata_version]
    return [*own, str(import_package().__version__)] if "sentencepiece" in settings else own


def entry_name(settings: Mapping[str, Any], inputs: InputFiles, tokenizers: str | None) -> str:
    """The name of the entry for these paths and settings, and for the digest of given tokenizers."""
    key = {
        "format": FORMAT,
        "libraries": libraries(settings),
        "settings": settings,
        "inputs": inputs.paths(),
        "tokenizers": tokenizers,
    }
    return "tokens-" + hash_of(key)[:32]


def content_digest(settings: Mapping[str, Any], inputs: InputFiles) -> str:
    """A hash of the content of the input files and of the settings; independent of the paths."""
    return hash_of({"settings": settings, "inputs": inputs.digests()})


def hash_of(values: Any) -> str:
    """The SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()


def build_entry(
    path: Path, config: DataConfig, inputs: InputFiles, tokenizers: Tokenizers | None, progress: ProgressCallback
) -> CachedData:
    """Build an entry atomically and open it."""
    began = time.perf_counter()
    clear_leftovers(path.parent)
    try:
        with atomic_folder(path) as folder:
            settings = token_settings(config, tokenizers)
            digest = content_digest(settings, inputs)
            build_tokens(folder, config, tokenizers, progress)
            inputs.check_unchanged()
            entry = {
                "format": FORMAT,
                "digest": digest,
                "settings": settings,
                "inputs": [
                    {"path": file.path, "bytes": file.state.size, "sha256": file.digest} for file in inputs.all()
                ],
            }
            write_json(folder / ENTRY, entry)
    except SaccadeError as error:
        if isinstance(error.__cause__, OSError):
            raise unwritable(path.parent, error.__cause__) from error
        raise
    store_times(path, inputs)
    return open_entry(path, seconds=time.perf_counter() - began)


def open_if_unchanged(path: Path, inputs: InputFiles, log: Callable[[str], None]) -> CachedData | None:
    """Open an entry if it is intact and its inputs are unchanged; else log the reason and return None."""
    recover_quietly(path)
    if not path.exists():
        return None
    try:
        changed = changed_input(path, inputs)
        if changed is not None:
            log(f"token cache: {changed} has changed: tokenizing again")
            return None
        verify_entry(path)
        return open_entry(path)
    except SaccadeError as error:
        log(f"token cache: {error.where} {error.what}: tokenizing again")
    except (OSError, KeyError, TypeError, ValueError) as error:  # intact, but not in the format of this version
        log(f"token cache: {path} cannot be used ({error}): tokenizing again")
    return None


def changed_input(path: Path, inputs: InputFiles) -> str | None:
    """Return the path of the first input file whose content differs from the entry's; None if all are equal."""
    if read_times(path) == inputs.states():
        return None
    known = read_json(path / ENTRY)["inputs"]
    for file, old in zip(inputs.all(), known, strict=True):
        if file.state.size != old["bytes"] or file.digest != old["sha256"]:
            return file.path
    store_times(path, inputs)
    return None


def read_times(path: Path) -> Any:
    """Sizes and modification times of the inputs when they were last hashed; None if unknown."""
    try:
        return json.loads((path / TIMES).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def store_times(path: Path, inputs: InputFiles) -> None:
    """Store sizes and modification times of the inputs, so that the next run need not hash them."""
    newest = max(file.state.modified for file in inputs.all())
    if time.time_ns() - newest < TIME_RESOLUTION:
        return  # another change within the clock's resolution would have the same modification time
    with contextlib.suppress(OSError):  # a read-only cache cannot store them
        replace_file(path / TIMES, json.dumps(inputs.states()) + "\n")


def verify_entry(path: Path) -> None:
    """Check all files of an entry against its manifest; of very large arrays only the sizes."""
    manifest = read_json(path / MANIFEST)["files"]
    large = sum(manifest[name]["bytes"] for name in ARRAYS) > MAX_HASHED_SIZE
    for name, expected in manifest.items():
        file = path / Path(name).name
        if not file.is_file():
            raise damaged(file, "is missing")
        if file.stat().st_size != expected["bytes"]:
            raise damaged(file, "has another size than in the manifest")
    hashed = [path / Path(name).name for name in manifest if not (large and name in ARRAYS)]
    with ThreadPoolExecutor(HASHING_THREADS) as pool:  # hashing releases the GIL
        for file, found in zip(hashed, pool.map(describe_file, hashed), strict=True):
            if found != manifest[file.name]:
                raise damaged(file, "has another SHA-256 than in the manifest")


def open_entry(path: Path, seconds: float | None = None) -> CachedData:
    """Open an entry; its arrays are memory-mapped."""
    return CachedData(
        path=path,
        tokenizers=load_tokenizers(path),
        train=open_corpus(path),
        valid=read_saved_pairs(path / VALID),
        report=DataReport.from_json(read_json(path / REPORT)),
        valid_report=DataReport.from_json(read_json(path / VALID_REPORT)),
        digest=str(read_json(path / ENTRY)["digest"]),
        seconds=seconds,
    )


@contextlib.contextmanager
def entry_lock(path: Path, log: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of an entry; a read-only cache needs no lock, because no process can build there."""
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.with_name(path.name + LOCK).open("a"))
        except OSError as error:
            if not path.exists():
                raise unwritable(path.parent, error) from None
        else:
            if not lock_file(file.fileno(), wait=False):
                log(f"token cache: waiting for another process that builds {path}")
                lock_file(file.fileno(), wait=True)
        yield


def recover_quietly(path: Path) -> None:
    """Finish or remove what a killed writer of this entry left; does nothing in a read-only cache."""
    with contextlib.suppress(OSError):
        recover(path)


def clear_leftovers(root: Path) -> None:
    """Remove the leftovers of killed builders, except of entries that are locked."""
    for leftover in [*root.glob(".tokens-*.partial"), *root.glob(".tokens-*.previous")]:
        path = root / leftover.name[1:].rpartition(".")[0]
        assert leftover in (partial_path(path), previous_path(path))
        with contextlib.suppress(OSError), path.with_name(path.name + LOCK).open("a") as file:
            if lock_file(file.fileno(), wait=False):
                shutil.rmtree(leftover, ignore_errors=True)


def unwritable(root: Path, error: OSError) -> SaccadeError:
    """The error for a cache that cannot be written (disk full, no permission)."""
    return SaccadeError(
        f"the token cache cannot be written: {error.strerror or error}",
        where=str(root),
        hint=f"{system_advice(error) or 'choose another path'}; --data.cache DIR sets the path",
    )

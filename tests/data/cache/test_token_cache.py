from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from saccade.data.cache import cache_builder
from saccade.data.cache import token_cache as cache
from saccade.data.cache.corpus import build_corpus
from saccade.data.cache.corpus_files import ARRAYS
from saccade.data.cache.token_cache import CachedData, cache_folder, open_cache
from saccade.data.config import DataConfig
from saccade.data.reading import pair_stream as pairs_module
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, tokenizers_digest, train_tokenizers
from saccade.errors import SaccadeError
from saccade.folder import partial_path

LONG_AGO = 1_700_000_000
Start = Callable[[float], subprocess.Popen[str]]


class Opener:
    """Opens the cache of one test, and records messages and progress."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logged: list[str] = []
        self.progress: list[tuple[str, int, int | None]] = []

    def config(self, **settings: object) -> DataConfig:
        given = {"source": str(self.folder / "a.tsv"), "vocabulary": 120, "cache": str(self.folder / "cache")}
        return DataConfig(**{**given, **settings})

    def __call__(self, tokenizers: Tokenizers | None = None, **settings: object) -> CachedData:
        self.logged.clear()
        self.progress.clear()
        return open_cache(
            self.config(**settings),
            tokenizers=tokenizers,
            log=self.logged.append,
            progress=lambda *values: self.progress.append(values),
        )

    def entries(self) -> list[Path]:
        return sorted(path for path in (self.folder / "cache").iterdir() if path.is_dir())


def write_tsv(path: Path, pairs: list[Pair], when: int = LONG_AGO) -> None:
    text = "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    os.utime(path, (when, when))


@pytest.fixture
def opened(tmp_path: Path, pairs: list[Pair]) -> Opener:
    write_tsv(tmp_path / "a.tsv", pairs)
    return Opener(tmp_path)


def texts_of(found: CachedData) -> list[Pair]:
    """Decode the training data."""
    source, target = found.tokenizers
    rows = range(len(found.train))
    return [Pair(source.decode(found.train.source(row)), target.decode(found.train.target(row))) for row in rows]


def is_equal(first: CachedData, second: CachedData) -> bool:
    arrays = ("source_ids", "source_offsets", "target_ids", "target_offsets")
    return (
        tokenizers_digest(first.tokenizers) == tokenizers_digest(second.tokenizers)
        and all(np.array_equal(getattr(first.train, name), getattr(second.train, name)) for name in arrays)
        and (first.train.parts, first.train.statistics) == (second.train.parts, second.train.statistics)
        and (first.valid, first.report) == (second.valid, second.report)
    )


class TestBuilding:
    def test_cached_data_equals_data_built_in_memory(self, opened: Opener, pairs: list[Pair]) -> None:
        found = opened()
        tokenizers = train_tokenizers(pairs, opened.config())
        in_memory = build_corpus(pairs, tokenizers, opened.config())
        assert tokenizers_digest(found.tokenizers) == tokenizers_digest(tokenizers)
        assert found.train.source_ids.tolist() == in_memory.source_ids.tolist()
        assert found.train.target_offsets.tolist() == in_memory.target_offsets.tolist()
        assert found.train.statistics == in_memory.statistics
        assert found.train.dropped == in_memory.dropped
        assert texts_of(found) == pairs
        assert found.report.pairs == len(pairs)
        assert found.seconds is not None
        assert opened.progress[-1] == ("tokenizing", len(pairs), len(pairs))

    def test_result_does_not_depend_on_workers_or_chunks(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        found = []
        for chunk, workers in ((10_000, 1), (7, 1), (7, 2), (11, 3)):
            monkeypatch.setattr(pairs_module, "CHUNK_PAIRS", chunk)
            separate_cache = str(opened.folder / f"cache-{chunk}-{workers}")
            found.append(opened(cache=separate_cache, workers=workers, hold_out=9, max_length=14))
        assert all(is_equal(found[0], other) for other in found[1:])
        assert len({data.digest for data in found}) == 1
        assert len(found[0].valid) == 9

    def test_result_does_not_depend_on_the_file_format(self, opened: Opener, pairs: list[Pair]) -> None:
        folder = opened.folder
        write_tsv(folder / "a.tsv.gz", pairs)
        columns = {"source": [pair.source for pair in pairs], "target": [pair.target for pair in pairs]}
        parquet.write_table(pyarrow.table(columns), folder / "a.parquet", row_group_size=10)
        (folder / "a.jsonl").write_text("".join(json.dumps(pair._asdict()) + "\n" for pair in pairs))
        (folder / "a.en.gz").write_bytes(gzip.compress("\n".join(columns["source"]).encode()))
        (folder / "a.de").write_text("\n".join(columns["target"]))
        plain = opened()
        for name in ("a.tsv.gz", "a.parquet", "a.jsonl"):
            found = opened(source=str(folder / name))
            assert texts_of(found) == texts_of(plain) == pairs
            assert tokenizers_digest(found.tokenizers) == tokenizers_digest(plain.tokenizers)
        aligned = opened(source=str(folder / "a.en.gz"), target=str(folder / "a.de"))
        assert texts_of(aligned) == pairs
        assert len(opened.entries()) == 5

    def test_several_corpora_are_concatenated(self, opened: Opener, pairs: list[Pair]) -> None:
        write_tsv(opened.folder / "b.tsv.gz", pairs[:20])
        found = opened(source=(str(opened.folder / "a.tsv"), str(opened.folder / "b.tsv.gz")))
        assert found.train.parts == (len(pairs), 20)
        assert texts_of(found) == [*pairs, *pairs[:20]]
        assert found.report.corpora == (str(opened.folder / "a.tsv"), str(opened.folder / "b.tsv.gz"))

    def test_held_out_pairs_are_not_used_in_training(self, opened: Opener, pairs: list[Pair]) -> None:
        found = opened(hold_out=10)
        assert len(found.valid) == 10
        assert texts_of(found) == [pair for pair in pairs if pair not in found.valid]
        rest = [pair for pair in pairs if pair not in found.valid]
        trained = train_tokenizers(rest, opened.config())
        assert tokenizers_digest(found.tokenizers) == tokenizers_digest(trained)

    def test_validation_texts_are_stored_unchanged(self, opened: Opener) -> None:
        strange = [Pair("  two\u2028lines ", ""), Pair("a\x85b", "😀")]
        write_tsv(opened.folder / "v.tsv", strange)
        assert opened(valid_source=str(opened.folder / "v.tsv"), hold_out=5).valid == strange
        assert opened(valid_source=str(opened.folder / "v.tsv"), hold_out=5).valid == strange

    def test_tokenizers_are_trained_on_evenly_sampled_pairs(self, opened: Opener, pairs: list[Pair]) -> None:
        found = opened(tokenizer_pairs=16)
        trained = train_tokenizers([pairs[index] for index in range(3, 64, 4)], opened.config())
        assert tokenizers_digest(found.tokenizers) == tokenizers_digest(trained)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"source": "nowhere.tsv"}, "nowhere.tsv: no such file"),
            ({"max_length": 1}, r"(?s)a.tsv: all pairs were dropped by the filters.*--data.max-length"),
            ({"hold_out": 64}, r"(?s)cannot hold out 64 of 64 pairs.*--data.hold-out"),
            ({"source": "/dev/null"}, r"(?s)/dev/null: is not a regular file"),
            ({"source": "/"}, "is a directory"),
        ],
    )
    def test_errors_leave_no_entry(self, opened: Opener, settings: dict[str, object], message: str) -> None:
        with pytest.raises(SaccadeError, match=message):
            opened(**settings)
        assert not (opened.folder / "cache").exists() or opened.entries() == []

    def test_input_modified_during_the_build_is_an_error(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        original = cache_builder.encode

        def disturbed(*arguments: object) -> list[Pair]:
            with (opened.folder / "a.tsv").open("a") as file:
                file.write("one\tmore\n")
            return original(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(cache_builder, "encode", disturbed)
        with pytest.raises(SaccadeError, match=r"a.tsv"):
            opened()
        assert opened.entries() == []


class TestReuse:
    def test_cache_hit_does_not_read_the_inputs(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        built = opened(hold_out=10)
        monkeypatch.setattr(cache, "build_tokens", None)
        monkeypatch.setattr("saccade.data.reading.input_files.describe_file", None)
        (opened.folder / "a.tsv").chmod(0)
        found = opened(hold_out=10)
        assert is_equal(built, found)
        assert (found.digest, found.path, found.seconds) == (built.digest, built.path, None)
        assert opened.logged == opened.progress == []

    def test_settings_that_do_not_affect_tokens_reuse_the_entry(self, opened: Opener) -> None:
        opened()
        settings = {"batch_tokens": 77, "temperature": 3, "workers": 2, "target_tokenizer": "bpe"}
        assert opened(**settings).seconds is None

    @pytest.mark.parametrize(
        "settings",
        [
            {"vocabulary": 100},
            {"tokenizer": "char"},
            {"normalization": "nfkc"},
            {"max_length": 20},
            {"max_ratio": 3.0},
            {"min_frequency": 1},
            {"hold_out": 3},
            {"joint": False},
            {"tokenizer_pairs": 30},
            {"source_column": "2", "target_column": "1"},
        ],
    )
    def test_settings_that_affect_tokens_build_another_entry(self, opened: Opener, settings: dict[str, object]) -> None:
        first = opened()
        second = opened(**settings)
        assert second.seconds is not None
        assert second.digest != first.digest
        assert opened().seconds is opened(**settings).seconds is None

    def test_touched_file_is_hashed_once_and_the_entry_reused(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        built = opened()
        os.utime(opened.folder / "a.tsv", (LONG_AGO + 5, LONG_AGO + 5))
        again = opened()
        assert (again.seconds, again.digest, opened.logged) == (None, built.digest, [])
        monkeypatch.setattr("saccade.data.reading.input_files.describe_file", None)
        assert opened().seconds is None

    def test_recently_modified_file_is_hashed_again(self, opened: Opener, pairs: list[Pair]) -> None:
        now = int(time.time())
        write_tsv(opened.folder / "a.tsv", pairs, now)
        opened()
        swapped = [pairs[1], pairs[0], *pairs[2:]]  # equal size
        write_tsv(opened.folder / "a.tsv", swapped, now)
        assert texts_of(opened()) == swapped

    @pytest.mark.parametrize("changed", ["longer", "same size"])
    def test_changed_file_is_tokenized_again(self, opened: Opener, pairs: list[Pair], changed: str) -> None:
        first = opened()
        others = [*pairs, Pair("a dog", "ein Hund")] if changed == "longer" else [pairs[1], pairs[0], *pairs[2:]]
        write_tsv(opened.folder / "a.tsv", others, LONG_AGO + 9)
        second = opened()
        assert texts_of(second) == others
        assert second.digest != first.digest
        assert opened.logged == [f"token cache: {opened.folder / 'a.tsv'} has changed: tokenizing again"]
        assert len(opened.entries()) == 1
        assert len(first.train) == len(pairs)  # an open memory map of the old entry stays valid
        assert texts_of(first) == pairs
        write_tsv(opened.folder / "a.tsv", pairs, LONG_AGO + 12)
        assert opened().digest == first.digest

    def test_digest_depends_on_content_not_paths(self, opened: Opener, pairs: list[Pair]) -> None:
        write_tsv(opened.folder / "copy.tsv", pairs)
        assert opened(source=str(opened.folder / "copy.tsv")).digest == opened().digest

    def test_relative_and_absolute_paths_share_an_entry(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        opened()
        monkeypatch.chdir(opened.folder)
        assert opened(source="a.tsv").seconds is None


class TestGivenTokenizers:
    def test_equal_tokenizers_use_the_same_entry(self, opened: Opener) -> None:
        built = opened()
        found = opened(built.tokenizers)
        assert (found.seconds, found.path, found.digest) == (None, built.path, built.digest)

    def test_other_tokenizers_have_their_own_entry(self, opened: Opener, pairs: list[Pair]) -> None:
        built = opened()
        other = train_tokenizers(pairs[:30], opened.config())
        for seconds in (True, False):
            found = opened(other)
            assert (found.seconds is not None) == seconds
            assert found.path != built.path
            assert found.digest == built.digest
            assert tokenizers_digest(found.tokenizers) == tokenizers_digest(other)
            in_memory = build_corpus(pairs, other, opened.config())
            assert found.train.source_ids.tolist() == in_memory.source_ids.tolist()
        assert opened().path == built.path

    def test_given_tokenizers_are_not_trained(
        self, opened: Opener, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache_builder, "train_tokenizers", None)
        tokenizers = train_tokenizers(pairs, opened.config())
        assert texts_of(opened(tokenizers)) == pairs


class TestDamage:
    @pytest.mark.parametrize(
        "name", [*ARRAYS, "store.json", "tokenizer.json", "report.json", "valid.jsonl", "entry.json"]
    )
    @pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
    def test_damaged_entry_is_built_again(self, opened: Opener, name: str, damage: str) -> None:
        built = opened(hold_out=5)
        file = built.path / name
        content = bytearray(file.read_bytes())
        file.unlink()
        if damage == "cut":
            file.write_bytes(content[:-1])
        elif damage == "flip":
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
        again = opened(hold_out=5)
        assert again.seconds is not None
        assert "tokenizing again" in opened.logged[0]
        assert name in opened.logged[0]
        assert opened(hold_out=5).seconds is None
        assert opened.logged == []

    def test_large_arrays_are_checked_by_size_only(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        built = opened()
        monkeypatch.setattr(cache, "MAX_HASHED_SIZE", 100)
        hashed: list[str] = []
        describe = cache.describe_file

        def watched(path: Path) -> dict[str, object]:
            hashed.append(path.name)
            return describe(path)

        monkeypatch.setattr(cache, "describe_file", watched)
        assert opened().seconds is None
        assert set(hashed).isdisjoint(ARRAYS)
        assert "tokenizer.json" in hashed
        with (built.path / "source.ids").open("ab") as file:
            file.write(b"xx")
        assert opened().seconds is not None

    def test_entry_without_manifest_is_built_again(self, opened: Opener) -> None:
        (opened().path / "manifest.json").unlink()
        assert opened().seconds is not None

    def test_invalid_times_file_does_not_invalidate_the_entry(self, opened: Opener) -> None:
        (opened().path / "times.json").write_text("[")
        assert (opened().seconds, opened.logged) == (None, [])


class TestCacheFolder:
    def test_folder_from_setting_or_environment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert cache_folder(DataConfig(cache=str(tmp_path / "a"))) == tmp_path / "a"
        monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "b"))
        assert cache_folder(DataConfig()) == tmp_path / "b"
        monkeypatch.delenv("SACCADE_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
        assert cache_folder(DataConfig()) == tmp_path / "c" / "saccade"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert cache_folder(DataConfig()) == tmp_path / ".cache" / "saccade"

    def test_unwritable_folder_is_an_error(self, opened: Opener) -> None:
        file = opened.folder / "a.tsv"
        with pytest.raises(SaccadeError, match=r"(?s)a\.tsv/cache.*--data\.cache"):
            opened(cache=str(file / "cache"))

    @pytest.mark.parametrize(("number", "full"), [(errno.ENOSPC, True), (errno.EACCES, False)])
    def test_hint_depends_on_the_error(
        self, opened: Opener, monkeypatch: pytest.MonkeyPatch, number: int, full: bool
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(cache_builder, "write_pairs", fail)
        with pytest.raises(SaccadeError) as caught:
            opened()
        assert caught.value.hint is not None
        assert "--data.cache" in caught.value.hint
        assert ("free some space" in caught.value.hint) == full

    def test_full_disk_is_an_error(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(cache_builder, "write_pairs", full)
        with pytest.raises(SaccadeError, match=r"(?s)cache: .*No space left.*--data\.cache"):
            opened()
        assert opened.entries() == []


SCRIPT = """
import sys, time
from saccade.data.cache import cache_builder
from saccade.data.cache.token_cache import open_cache
from saccade.data.config import DataConfig

original = cache_builder.encode
def slow(*arguments):
    print("encoding", flush=True)
    time.sleep(float(sys.argv[3]))
    return original(*arguments)
cache_builder.encode = slow
config = DataConfig(source=sys.argv[1], vocabulary=120, cache=sys.argv[2])
found = open_cache(config, log=lambda text: print(text, flush=True), progress=lambda *_: None)
print("built" if found.seconds is not None else "reused", len(found.train), flush=True)
"""


@pytest.fixture
def start(opened: Opener) -> Start:
    def started(seconds: float) -> subprocess.Popen[str]:
        arguments = [str(opened.folder / "a.tsv"), str(opened.folder / "cache"), str(seconds)]
        command = [sys.executable, "-c", SCRIPT, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    return started


class TestProcesses:
    def test_one_process_builds_and_the_others_wait(self, opened: Opener, start: Start) -> None:
        processes = [start(1.0) for _ in range(3)]
        outputs = [process.communicate(timeout=60)[0].splitlines() for process in processes]
        assert sorted(output[-1] for output in outputs) == ["built 64", "reused 64", "reused 64"]
        waited = [output for output in outputs if any("waiting for another process" in line for line in output)]
        assert len(waited) == 2
        assert len(opened.entries()) == 1

    def test_leftovers_of_a_killed_builder_are_removed(self, opened: Opener, start: Start, pairs: list[Pair]) -> None:
        process = start(60)
        assert process.stdout is not None
        assert process.stdout.readline() == "encoding\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        leftovers = [path.name for path in opened.entries()]
        assert len(leftovers) == 1
        assert leftovers[0].endswith(".partial")
        assert opened(vocabulary=100).seconds is not None  # building another entry removes the leftovers
        assert [path.name.endswith(".partial") for path in opened.entries()] == [False]
        assert texts_of(opened()) == pairs

    def test_ctrl_c_leaves_no_files(self, opened: Opener, start: Start) -> None:
        process = start(60)
        assert process.stdout is not None
        assert process.stdout.readline() == "encoding\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode != 0
        assert opened.entries() == []

    def test_entry_being_built_is_not_removed(self, opened: Opener, start: Start) -> None:
        process = start(1.0)
        assert process.stdout is not None
        assert process.stdout.readline() == "encoding\n"
        opened(vocabulary=100)
        assert partial_path(opened.folder / "cache" / opened.entries()[0].name.split(".")[1]).exists()
        assert process.communicate(timeout=60)[0] == "built 64\n"

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saccade.data import chunk_jobs
from saccade.data.chunk_jobs import EncodeJob, ExamineJob, Job, chunk_message, map_chunks, read_chunk
from saccade.data.reading.hold_out import source_keys
from saccade.data.reading.pair_files import Pair
from saccade.data.reading.pair_stream import Chunk
from saccade.data.tokenizers.tokenizer_pair import Tokenizers, save_tokenizers
from saccade.errors import SaccadeError
from saccade.workers.messages import read_message, write_message

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
TEXT = st.text(st.characters(codec="utf-8"))


@settings(deadline=None, max_examples=100)
@given(pairs=st.lists(st.builds(Pair, TEXT, TEXT)), corpus=st.integers(0, 9), first=st.integers(1, 10**12))
def test_chunk_round_trip(pairs: list[Pair], corpus: int, first: int) -> None:
    stream = io.BytesIO()
    chunk = Chunk(corpus, first, pairs)
    write_message(stream, chunk_message(chunk))
    stream.seek(0)
    received = read_message(stream)
    assert received is not None
    assert read_chunk(received) == chunk


def chunks(pairs: list[Pair], size: int) -> list[Chunk]:
    return [Chunk(0, start + 1, pairs[start : start + size]) for start in range(0, len(pairs), size)]


@pytest.fixture
def encode(tmp_path: Path, tokenizers: Tokenizers, pairs: list[Pair]) -> EncodeJob:
    save_tokenizers(tmp_path, tokenizers)
    return EncodeJob(tmp_path, max_length=12, max_ratio=0.0, held_out=np.sort(source_keys(pairs[:5])))


class TestMapping:
    def test_result_does_not_depend_on_the_number_of_processes(self, encode: EncodeJob, pairs: list[Pair]) -> None:
        jobs: list[Job] = [encode, ExamineJob(keys=True), ExamineJob(keys=False)]
        for job in jobs:
            alone, together = (list(map_chunks(chunks(pairs, 7), job, workers)) for workers in (1, 3))
            assert [item.chunk for item in alone] == [item.chunk for item in together] == chunks(pairs, 7)
            for first, second in zip(alone, together, strict=True):
                assert first.result.values == second.result.values
                assert first.result.arrays.keys() == second.result.arrays.keys()
                for name, array in first.result.arrays.items():
                    assert array.dtype == second.result.arrays[name].dtype
                    assert array.tobytes() == second.result.arrays[name].tobytes()

    def test_few_chunks_start_no_process(
        self, encode: EncodeJob, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(chunk_jobs, "request_in_order")
        assert len(list(map_chunks(chunks(pairs, 40), encode, 4))) == 2
        assert list(map_chunks([], encode, 4)) == []

    def test_read_ahead_is_bounded(self, encode: EncodeJob, pairs: list[Pair]) -> None:
        read = 0

        def counted() -> Iterator[Chunk]:
            nonlocal read
            for chunk in chunks(pairs * 10, 8):
                read += 1
                yield chunk

        for number, _ in enumerate(map_chunks(counted(), encode, 2), start=1):
            assert read <= number + 5
        assert read == 80

    def test_worker_errors_propagate(self, tmp_path: Path, pairs: list[Pair]) -> None:
        job = EncodeJob(tmp_path / "nowhere", max_length=9, max_ratio=0, held_out=np.empty(0, np.uint64))
        with pytest.raises(SaccadeError, match="nowhere"):
            list(map_chunks(chunks(pairs, 7), job, 2))

    def test_killed_worker_is_an_error_and_no_process_is_left(
        self, encode: EncodeJob, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[subprocess.Popen[bytes]] = []
        original = subprocess.Popen

        def remembered(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
            started.append(original(*arguments, **options))  # type: ignore[call-overload]
            return started[-1]

        monkeypatch.setattr(subprocess, "Popen", remembered)
        with pytest.raises(SaccadeError) as caught:
            for number, _ in enumerate(map_chunks(chunks(pairs * 20, 10), encode, 2)):
                if number == 2:
                    os.kill(started[0].pid, signal.SIGKILL)
        assert caught.value.hint is not None
        assert "--data.workers 1" in caught.value.hint
        assert [process.poll() is not None for process in started] == [True, True]

    @needs_proc
    def test_closing_the_generator_ends_the_processes(self, encode: EncodeJob, pairs: list[Pair]) -> None:
        with closing(map_chunks(chunks(pairs * 100, 10), encode, 2)) as results:
            next(results)
            assert len(children()) >= 2
        assert children() == []

    @needs_proc
    def test_workers_end_when_the_parent_is_killed(self, encode: EncodeJob, tmp_path: Path) -> None:
        script = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "import numpy as np\n"
            "from saccade.data.reading.pair_files import Pair\n"
            "from saccade.data.chunk_jobs import EncodeJob, map_chunks\n"
            "from saccade.data.reading.pair_stream import Chunk\n"
            f"job = EncodeJob(Path({str(tmp_path)!r}), max_length=9, max_ratio=0, held_out=np.empty(0, np.uint64))\n"
            "for _ in map_chunks((Chunk(0, 1, [Pair('a', 'b')] * 10) for _ in range(10**9)), job, 2):\n"
            "    print('.', flush=True)\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        parent.stdout.readline()
        workers = children(parent.pid)
        assert len(workers) == 2
        parent.kill()
        parent.wait()
        parent.stdout.close()
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}/stat").exists() and not is_dead(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def children(parent: int | None = None) -> list[int]:
    """Return the ids of the worker processes of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"saccade.workers.child" in command and int(fields[1]) == (parent or os.getpid()):
            found.append(int(folder.name))
    return found


def is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True

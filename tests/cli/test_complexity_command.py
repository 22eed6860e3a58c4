from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from command_line import Answer, Saccade

from saccade.cli.main import main
from saccade.studies.complexity.measurement import Measurement, Timing, left_out
from saccade.studies.complexity.paths import SignalPath
from saccade.studies.complexity.series import Plan

TINY = ("--lengths", "64,128", "--widths", "8,16", "--seconds", "0.001", "--path-lengths", "8", "--radius", "4")
FILES = ("cost.json", "cost.csv", "cost.png")


def invented(plan: Plan) -> Iterator[Measurement]:
    """Time that grows as n, and no memory."""
    for layer, width, length in product(plan.layers, plan.widths, plan.lengths):
        one, two = Timing(length / 64, 0), Timing(length / 32, 0)
        yield Measurement(layer, width, length, 4 * width * length, one, two, 3, threads=5)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answer, Path]:
    """One run with real paths and invented measurements, and all that it writes."""
    folder = tmp_path_factory.mktemp("complexity")
    files = [str(folder / name) for name in FILES]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("saccade.studies.complexity.series.measurements", invented)
        arguments = ["--layers", "convolution", "--json", files[0], "--csv", files[1], "--png", files[2]]
        code = main(["complexity", *TINY, *arguments])
    return Answer(code, out.getvalue(), err.getvalue()), folder


def test_tables(measured: tuple[Answer, Path]) -> None:
    answer, _ = measured
    assert answer.code == 0
    for title in (
        "milliseconds",
        "peak MB",
        "exponents of n",
        "exponents of d",
        "sequential operations",
        "longest path",
    ):
        assert title in answer.out
    assert "n = 128" not in answer.out  # the path lengths are others
    assert "convolution, d = 16, n = 128: " in answer.err


def test_json_csv_and_picture(measured: tuple[Answer, Path]) -> None:
    _, folder = measured
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)  # and nothing half written
    written = json.loads((folder / "cost.json").read_text(encoding="utf-8"))
    layers = written["layers"]
    assert list(layers) == ["convolution"]
    assert written["interrupted"] is False
    assert len(written["measurements"]) == 2 * 2
    assert layers["convolution"]["path_lengths"] == layers["convolution"]["path_lengths_by_formula"] == {"8": 7}
    assert layers["convolution"]["sequential_steps"] == {"8": 1}
    assert layers["convolution"]["growth_in_length"]["16"]["sizes"] == [64, 128]
    assert written["machine"]["threads"] == 5
    assert "BLAS" in written["machine"]["torch_build"]
    with (folder / "cost.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert all(float(row["forward_seconds"]) > 0 and row["left_out"] == "" for row in rows)
    assert (folder / "cost.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def invent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Measurements and paths without a layer: as many as said, then an error."""

    def replace(*, count: int = 1000, error: BaseException | None = None, why: str | None = None) -> None:
        def measurements(plan: Plan) -> Iterator[Measurement]:
            for number, found in enumerate(invented(plan)):
                if number == count and error is not None:
                    raise error
                yield found if why is None else left_out(found, why)

        monkeypatch.setattr("saccade.studies.complexity.series.measurements", measurements)
        monkeypatch.setattr("saccade.studies.complexity.paths.longest_path", lambda *_: SignalPath(2, 3))

    return replace


PLAIN = ("--lengths", "64,128,256", "--widths", "8", "--path-lengths", "8", "--layers", "fused")


def test_json_alone_goes_to_the_standard_output(saccade: Saccade, invent: Callable[..., None]) -> None:
    invent()
    answer = saccade("complexity", *PLAIN, "--json")
    assert answer.code == 0
    values = json.loads(answer.out)
    assert values["layers"]["fused"]["path_lengths"] == {"8": 6}
    assert values["layers"]["fused"]["sequential_steps"] == {"8": 3}
    assert values["machine"]["threads"] == 5


def test_an_interruption_reports_what_there_is(saccade: Saccade, invent: Callable[..., None], tmp_path: Path) -> None:
    invent(count=2, error=KeyboardInterrupt())
    answer = saccade("complexity", *PLAIN, "--json", tmp_path / "cost.json")
    assert answer.code == 130
    assert "interrupted" in answer.err
    times = answer.out.partition("peak MB")[0].splitlines()
    assert [line.split() for line in times if line.split()[:1] in (["128"], ["256"])] == [
        ["128", "6,000"],
        ["256", "-"],
    ]
    written = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert written["interrupted"] is True
    assert [found["length"] for found in written["measurements"]] == [64, 128]


def test_an_interruption_among_the_paths(
    saccade: Saccade, invent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    invent()

    def interrupt(*_: object) -> SignalPath:
        raise KeyboardInterrupt

    monkeypatch.setattr("saccade.studies.complexity.paths.longest_path", interrupt)
    answer = saccade("complexity", *PLAIN)
    assert answer.code == 130
    assert "longest path" in answer.out


def test_a_fault_in_a_path_leaves_it_out(
    saccade: Saccade, invent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    invent()

    def fail(subject: object, places: int, sizes: object) -> SignalPath:
        if places == 8:
            raise RuntimeError("no such kernel")
        return SignalPath(1, 1)

    monkeypatch.setattr("saccade.studies.complexity.paths.longest_path", fail)
    answer = saccade("complexity", *PLAIN, "--path-lengths", "4,8")
    assert answer.code == 0
    assert "1 (1)" in answer.out
    assert "fused was not followed to the end: RuntimeError: no such kernel" in answer.out


def test_what_is_said_of_memory_looks_at_what_was_measured(saccade: Saccade, invent: Callable[..., None]) -> None:
    invent()
    assert "memory is not measured on this system" in saccade("complexity", *PLAIN).out
    invent(why="could not be measured: no such kernel")
    answer = saccade("complexity", *PLAIN)
    assert answer.code == 0
    assert "memory is not measured on this system" not in answer.out
    assert "fused from 64 places on is left out: could not be measured: no such kernel" in answer.out


@pytest.mark.parametrize("option", ["--json", "--csv", "--png"])
def test_a_full_disk_leaves_the_old_file_and_the_tables(
    option: str, saccade: Saccade, invent: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invent()
    old = tmp_path / f"cost.{option[2:]}"
    old.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("saccade.cli.output_file.flush", full)
    monkeypatch.setattr("saccade.studies.complexity.picture.plot_png", lambda findings, path: path.write_bytes(b"half"))
    answer = saccade("complexity", *PLAIN, option, old)
    assert answer.code == 1
    assert f"{old}: cannot be written: No space left on device" in answer.err
    assert "longest path" in answer.out
    assert [path.name for path in tmp_path.iterdir()] == [old.name]
    assert old.read_text() == "old"


def test_a_device_stays_one(saccade: Saccade, invent: Callable[..., None]) -> None:
    invent()
    assert saccade("complexity", *PLAIN, "--csv", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--layers", "fusd"), 1, "did you mean 'fused'?"),
        (("--lengths", "64,0"), 2, "--lengths: '0' is not a positive whole number"),
        (("--lengths", "64,-128"), 2, "'-128' is not a positive whole number"),
        (("--widths", "wide"), 2, "--widths: 'wide' is not a positive whole number"),
        (("--path-lengths", "1.5"), 2, "--path-lengths: '1.5' is not a positive whole number"),
        (("--path-lengths", "16,513"), 2, "--path-lengths must be at most 512, not 513"),
        (("--seconds", "0"), 2, "--seconds must be more than 0"),
        (("--memory", "-1"), 2, "--memory must be more than 0"),
        (("--kernel", "4"), 2, "--kernel must be odd"),
        (("--kernel", "1"), 2, "--kernel"),
        (("--radius", "0"), 2, "--radius"),
        (("--heads", "3"), 2, "a width of 64 cannot be split into 3 heads"),
        (("--png", "nowhere/at/all.png"), 1, "there is no such directory"),
        (("--csv", "/"), 1, "is a directory"),
        (("--json", "/proc/cost.json"), 1, "cannot be written"),
        (("--lenghts", "64"), 2, "did you mean '--lengths'?"),
    ],
)
def test_faulty_arguments_are_refused_at_once(
    arguments: tuple[str, ...], code: int, message: str, saccade: Saccade
) -> None:
    answer = saccade("complexity", *arguments)
    assert answer.code == code
    assert message in answer.err
    assert answer.out == ""

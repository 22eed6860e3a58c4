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
from command_line import CommandResult, Saccade

from saccade.cli.main import main
from saccade.studies.complexity.measurement import Measurement, Timing
from saccade.studies.complexity.path_lengths import SignalPath
from saccade.studies.complexity.series import MeasurementPlan

TINY = ("--lengths", "64,128", "--widths", "8,16", "--seconds", "0.001", "--path-lengths", "8", "--radius", "4")
FILES = ("cost.json", "cost.csv", "cost.png")
FORMATS = {"--json": "json", "--csv": "csv", "--plot": "svg"}


def fake_measurements(plan: MeasurementPlan) -> Iterator[Measurement]:
    """Fake measurements: time grows linearly with n, memory is not measured."""
    for layer, width, length in product(plan.layers, plan.widths, plan.lengths):
        one, two = Timing(length / 64, 0), Timing(length / 32, 0)
        yield Measurement(layer, width, length, 4 * width * length, one, two, 3, threads=5)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[CommandResult, Path]:
    """The result and the output folder of a command with real paths and fake measurements."""
    folder = tmp_path_factory.mktemp("complexity")
    files = [str(folder / name) for name in FILES]
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("saccade.studies.complexity.series.measurements", fake_measurements)
        arguments = ["--layers", "convolution", "--json", files[0], "--csv", files[1], "--plot", files[2]]
        code = main(["complexity", *TINY, *arguments])
    return CommandResult(code, out.getvalue(), err.getvalue()), folder


def test_tables(measured: tuple[CommandResult, Path]) -> None:
    result, _ = measured
    assert result.code == 0
    for title in (
        "milliseconds",
        "peak MB",
        "exponents of n",
        "exponents of d",
        "sequential operations",
        "longest path",
    ):
        assert title in result.out
    assert "n = 128" not in result.out  # path lengths are set separately
    assert "convolution, d = 16, n = 128: " in result.err


def test_json_csv_and_plot(measured: tuple[CommandResult, Path]) -> None:
    _, folder = measured
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)  # and no temporary files
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
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces measurements and paths by fake ones; after `count` measurements it raises `error`."""

    def replace(*, count: int = 1000, error: BaseException | None = None, why: str | None = None) -> None:
        def measurements(plan: MeasurementPlan) -> Iterator[Measurement]:
            for number, found in enumerate(fake_measurements(plan)):
                if number == count and error is not None:
                    raise error
                yield found if why is None else Measurement(found.layer, found.width, found.length, 0, left_out=why)

        monkeypatch.setattr("saccade.studies.complexity.series.measurements", measurements)
        monkeypatch.setattr("saccade.studies.complexity.path_lengths.longest_path", lambda *_: SignalPath(2, 3))

    return replace


PLAIN = ("--lengths", "64,128,256", "--widths", "8", "--path-lengths", "8", "--layers", "fused")


def test_json_without_a_file_goes_to_stdout(saccade: Saccade, fake: Callable[..., None]) -> None:
    fake()
    result = saccade("complexity", *PLAIN, "--json")
    assert result.code == 0
    values = json.loads(result.out)
    assert values["layers"]["fused"]["path_lengths"] == {"8": 6}
    assert values["layers"]["fused"]["sequential_steps"] == {"8": 3}
    assert values["machine"]["threads"] == 5


def test_interruption_prints_the_results_so_far(saccade: Saccade, fake: Callable[..., None], tmp_path: Path) -> None:
    fake(count=2, error=KeyboardInterrupt())
    result = saccade("complexity", *PLAIN, "--json", tmp_path / "cost.json")
    assert result.code == 130
    assert "interrupted" in result.err
    times = result.out.partition("peak MB")[0].splitlines()
    assert [line.split() for line in times if line.split()[:1] in (["128"], ["256"])] == [
        ["128", "6,000"],
        ["256", "-"],
    ]
    written = json.loads((tmp_path / "cost.json").read_text(encoding="utf-8"))
    assert written["interrupted"] is True
    assert [found["length"] for found in written["measurements"]] == [64, 128]


def test_interruption_while_following_paths(
    saccade: Saccade, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()

    def interrupt(*_: object) -> SignalPath:
        raise KeyboardInterrupt

    monkeypatch.setattr("saccade.studies.complexity.path_lengths.longest_path", interrupt)
    result = saccade("complexity", *PLAIN)
    assert result.code == 130
    assert "longest path" in result.out


def test_error_in_a_path_leaves_it_out(
    saccade: Saccade, fake: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()

    def fail(subject: object, length: int, sizes: object) -> SignalPath:
        if length == 8:
            raise RuntimeError("no such kernel")
        return SignalPath(1, 1)

    monkeypatch.setattr("saccade.studies.complexity.path_lengths.longest_path", fail)
    result = saccade("complexity", *PLAIN, "--path-lengths", "4,8")
    assert result.code == 0
    assert "1 (1)" in result.out
    assert "RuntimeError: no such kernel" in result.out


def test_note_on_unmeasured_memory(saccade: Saccade, fake: Callable[..., None]) -> None:
    fake()
    assert "memory is not measured on this system" in saccade("complexity", *PLAIN).out
    fake(why="could not be measured: no such kernel")
    result = saccade("complexity", *PLAIN)
    assert result.code == 0
    assert "memory is not measured on this system" not in result.out
    assert "could not be measured: no such kernel" in result.out


@pytest.mark.parametrize("option", ["--json", "--csv", "--plot"])
def test_full_disk_keeps_the_old_file_and_prints_tables(
    option: str, saccade: Saccade, fake: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake()
    old = tmp_path / f"cost.{FORMATS[option]}"
    old.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("saccade.cli.output.atomic_file.fsync", full)
    monkeypatch.setattr("saccade.studies.complexity.plot.plot_costs", lambda findings, path: path.write_bytes(b"half"))
    result = saccade("complexity", *PLAIN, option, old)
    assert result.code == 1
    assert f"{old}: cannot be written: No space left on device" in result.err
    assert "longest path" in result.out
    assert [path.name for path in tmp_path.iterdir()] == [old.name]
    assert old.read_text() == "old"


def test_device_is_not_replaced(saccade: Saccade, fake: Callable[..., None]) -> None:
    fake()
    assert saccade("complexity", *PLAIN, "--csv", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--layers", "fusd"), 2, "did you mean 'fused'?"),
        (("--lengths", "64,0"), 2, "--lengths: '0' is not a positive integer"),
        (("--lengths", "64,-128"), 2, "'-128' is not a positive integer"),
        (("--widths", "wide"), 2, "--widths: 'wide' is not a positive integer"),
        (("--path-lengths", "1.5"), 2, "--path-lengths: '1.5' is not a positive integer"),
        (("--path-lengths", "16,513"), 2, "--path-lengths must be at most 512, not 513"),
        (("--seconds", "0"), 2, "--seconds must be more than 0"),
        (("--memory", "-1"), 2, "--memory must be more than 0"),
        (("--kernel", "4"), 2, "--kernel must be odd"),
        (("--kernel", "1"), 2, "--kernel"),
        (("--radius", "0"), 2, "--radius"),
        (("--heads", "3"), 2, "a width of 64 cannot be split into 3 heads"),
        (("--plot", "nowhere/at/all.png"), 1, "no such directory"),
        (("--plot", "cost.gif"), 2, ".png, .svg or .pdf"),
        (("--csv", "/"), 1, "is a directory"),
        (("--json", "/proc/cost.json"), 1, "cannot be written"),
        (("--lenghts", "64"), 2, "did you mean '--lengths'?"),
    ],
)
def test_invalid_arguments(arguments: tuple[str, ...], code: int, message: str, saccade: Saccade) -> None:
    result = saccade("complexity", *arguments)
    assert result.code == code
    assert message in result.err
    assert result.out == ""

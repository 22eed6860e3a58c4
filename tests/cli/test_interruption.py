"""Progress on a terminal, and what is left after Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import TINY, Saccade

from saccade.cli.interruption import interruptible_imports
from terminal import read_rest, read_until

COMMAND = [sys.executable, "-m", "saccade.cli.main"]


def wait_for(condition: object, seconds: float = 60) -> None:
    """Wait until a condition holds."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ctrl_c_says_how_much_of_the_output_is_complete(run: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("one hundred and seven\n" * 50_000)
    arguments = ["translate", str(run), "--input", str(source), "--output", str(output), "--beam", "1"]
    with subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: output.exists() and output.stat().st_size > 0)
        process.send_signal(signal.SIGINT)
        _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    found = re.search(r"after ([\d,]+) of 50,000 lines; (.+) holds the first ([\d,]+)", message)
    assert found is not None, message
    assert found[2] == str(output)
    assert found[1] == found[3]
    lines = output.read_text().split("\n")
    assert lines.pop() == ""
    assert len(lines) == int(found[1].replace(",", "")) > 0


def test_a_bar_on_the_terminal_leaves_results_and_messages_alone(run: Path) -> None:
    terminal, other_end = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "translate", str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=other_end
    ) as process:
        os.close(other_end)
        assert process.stdin is not None
        assert process.stdout is not None
        read_until(terminal, b"translating")  # the bar, after two seconds of waiting for input
        process.stdin.write(b"one\n\ntwo\n")
        process.stdin.close()
        result = process.stdout.read()
        shown = read_rest(terminal)
    assert process.returncode == 0
    assert result.count(b"\n") == 3
    assert b"\x1b" not in result
    assert re.search(rb"translated 3 lines in [\d.]+ s", shown)


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("saccade.interop.huggingface_export.save_huggingface", ("export", "{run}", "--format", "huggingface")),
        ("saccade.training.checkpoints.averaging.average_weights", ("average", "{run}", "{run}")),
        (
            "saccade.data.lexicon.ibm_model_1.learn_translations",
            ("lexicon", "--source", "{data}/test.en", "--target", "{data}/test.de"),
        ),
    ],
)
def test_ctrl_c_leaves_no_files(
    target: str,
    arguments: tuple[str, ...],
    run: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saccade: Saccade,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target, interrupt)
    result = saccade(*(word.format(run=run, data=data) for word in arguments), "--output", tmp_path / "new")
    assert result.code == 130
    assert result.err.splitlines()[-1].startswith("saccade: interrupted")
    assert result.err.splitlines()[-1].endswith("; nothing was written")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [("--quiet",), ("-q",)])
@pytest.mark.parametrize("before", [True, False])
def test_quiet_hides_notes(flags: tuple[str, ...], before: bool, run: Path, tmp_path: Path, saccade: Saccade) -> None:
    words = ("translate", run, "two", "--output", tmp_path / "out")
    assert saccade(*words).err != ""
    assert saccade(*((*flags, *words) if before else (*words, *flags))).err == ""


@pytest.mark.parametrize(
    "words",
    [
        (
            *("train", "--source", "{data}/train.en", "--target", "{data}/train.de", "--output", "{new}"),
            *("--training.max-steps", "1", *TINY),
        ),
        ("evaluate", "{run}", "--source", "{data}/test.en", "--reference", "{data}/test.de"),
        ("export", "{run}", "--format", "huggingface", "--output", "{new}"),
        ("average", "{run}", "{run}", "--output", "{new}"),
        ("lexicon", "--source", "{data}/test.en", "--target", "{data}/test.de", "--output", "{new}"),
        ("verify", "{run}", "--sentences", "2"),
        ("attention", "{run}", "two", "--json", "{new}.json"),
        ("complexity", "--layers", "fused", "--lengths", "8", "--widths", "8", "--seconds", "0.001"),
    ],
)
def test_every_command_obeys_quiet_and_verbose(
    words: tuple[str, ...], run: Path, data: Path, tmp_path: Path, saccade: Saccade
) -> None:
    def messages(name: str, *flags: str) -> list[str]:
        result = saccade(*(word.format(run=run, data=data, new=tmp_path / name) for word in words), *flags)
        assert result.code == 0, result.err
        return result.err.splitlines()

    assert messages("quiet", "--quiet") == []
    assert len(messages("verbose", "--verbose")) > len(messages("normal"))


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_ctrl_c_ends_a_long_search(engine: str, run: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_text("two\n" + "one hundred and seven " * 40_000 + "\ntwo\n")
    arguments = ["translate", str(run), "--input", str(source), "--engine", engine]
    # Untrained outputs of this length take minutes.
    arguments += ["--decoding.min-length", "400", "--decoding.max-length", "500"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() != "\n"  # flushed, although the next line takes long
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        rest, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - began < 10  # less than a second on a machine that has nothing else to do
    assert rest == ""
    assert "line 2" in message
    assert message.rstrip().splitlines()[-1].endswith("after 1 of 3 lines; stdout holds the first 1")


def test_ctrl_c_ends_the_import_of_torch(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    with interruptible_imports():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert codes == []
        monkeypatch.setattr(sys.modules["torch"].__spec__, "_initializing", True)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGINT)
    assert codes == [130]
    assert "interrupted" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

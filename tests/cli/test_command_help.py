from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from command_line import Saccade

import saccade as package
from saccade.cli.main import app

COMMANDS = (
    *("train", "check", "translate", "evaluate", "compare", "attention", "average"),
    *("export", "import", "lexicon"),
    *("models", "info", "verify", "complexity", "demo"),
)
HEAVY = ("torch", "numpy", "tokenizers", "sacrebleu", "matplotlib", "rich")


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from saccade.cli.main import main; code = main(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert "translate" in done.stdout


def test_help_takes_less_than_half_a_second() -> None:
    def seconds() -> float:
        """CPU time, which does not depend on the load of the machine."""
        before = os.times()
        subprocess.run([sys.executable, "-m", "saccade.cli.main", "--help"], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(3)) < 0.5


def test_help_lists_every_command_with_an_untruncated_summary(saccade: Saccade) -> None:
    assert tuple(command.name or command.callback.__name__ for command in app.registered_commands) == COMMANDS
    for help_option in ("-h", "--help"):
        result = saccade(help_option)
        assert result.code == 0
        assert all(f"\n  {command} " in result.out for command in COMMANDS)
        assert "..." not in result.out.partition("Commands:")[2]


def test_no_arguments_prints_help(saccade: Saccade) -> None:
    assert saccade().out == saccade("--help").out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, saccade: Saccade) -> None:
    result = saccade(command, "-h")
    assert result.code == 0
    assert f"Usage: saccade {command}" in result.out


def test_train_help_lists_every_setting(saccade: Saccade) -> None:
    words = saccade("train", "--preset", "transformer-base", "--help").out
    flat = " ".join(words.split())
    assert "--training.learning-rate" in flat
    assert re.search(r"--training.metrics [^\[]*\[default: bleu\]", flat)
    assert "--data.batch-tokens" in words
    assert "--decoding.length-alpha" in words
    assert re.search(r"--model.width [^\[]*\[default: 512\]", flat)


def test_version(saccade: Saccade) -> None:
    assert saccade("--version").out == f"saccade {package.__version__}\n"

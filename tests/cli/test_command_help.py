from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command_line import Saccade

import saccade as package
from saccade.cli.main import app

VERBS = (
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
        """Of the processor: what the clock on the wall shows depends on who else uses the machine."""
        before = os.times()
        subprocess.run([sys.executable, "-m", "saccade.cli.main", "--help"], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(3)) < 0.5


def test_every_verb_is_listed_with_a_whole_sentence(saccade: Saccade) -> None:
    assert tuple(command.name or command.callback.__name__ for command in app.registered_commands) == VERBS
    for help_option in ("-h", "--help"):
        answer = saccade(help_option)
        assert answer.code == 0
        assert all(f"\n  {verb} " in answer.out for verb in VERBS)
        assert "..." not in answer.out.partition("Commands:")[2]


def test_no_arguments_show_the_help(saccade: Saccade) -> None:
    assert saccade().out == saccade("--help").out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str, saccade: Saccade) -> None:
    answer = saccade(verb, "-h")
    assert answer.code == 0
    assert f"Usage: saccade {verb}" in answer.out


def test_train_help_lists_every_setting(saccade: Saccade) -> None:
    words = saccade("train", "--preset", "transformer-base", "--help").out
    flat = " ".join(words.split())
    assert "--training.learning-rate Peak learning rate" in flat
    assert "--training.metrics Scores of the validation outputs, by greedy search. [default: bleu]" in flat
    assert "--data.batch-tokens" in words
    assert "--decoding.length-alpha" in words
    assert "--model.width Width of every layer's input and output, d_model. [default: 512]" in flat


def test_version(saccade: Saccade) -> None:
    assert saccade("--version").out == f"saccade {package.__version__}\n"

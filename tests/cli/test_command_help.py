from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Saccade

import saccade as package
from saccade.cli.main import app
from saccade.cli.options.run_help import PLAIN
from saccade.config_help import describe
from saccade.models.registry import load_family
from saccade.training.config import RunConfig
from saccade.training.config_resolution import resolve_config
from saccade.training.learning_rate_schedule import noam_peak

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
    assert saccade().out == saccade("--help").out == saccade("--help-all").out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, saccade: Saccade) -> None:
    result = saccade(command, "-h")
    assert result.code == 0
    assert f"Usage: saccade {command}" in result.out


def test_version(saccade: Saccade) -> None:
    assert saccade("--version").out == f"saccade {package.__version__}\n"


def entries(text: str) -> dict[str, str]:
    """The text of every option in a help page, by its name."""
    found: dict[str, str] = {}
    name = ""
    for line in text.partition("\nOptions:\n")[2].splitlines():
        if option := re.match(r"  (?:-\w, )?(--[\w.-]+)", line):
            name = option[1]
            assert name not in found
            found[name] = line
        elif name and line.startswith("    "):
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return {name: " ".join(text.split()) for name, text in found.items()}


LONG = ("train", "check", "translate", "evaluate", "compare", "attention")


@pytest.mark.parametrize("command", LONG)
def test_help_shows_few_options_and_help_all_the_rest(command: str, saccade: Saccade) -> None:
    short, long = (entries(saccade(command, option).out) for option in ("--help", "--help-all"))
    assert len(short.keys() - {"--help", "--help-all"}) in range(7, 18)
    assert list(long)[: len(short)] == list(short)
    assert {"--quiet", "--verbose", "--debug", "--decoding.length-penalty"} <= long.keys() - short.keys()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in LONG])
def test_help_of_short_commands_is_complete(command: str, saccade: Saccade) -> None:
    page = saccade(command, "--help").out
    assert saccade(command, "--help-all").out == page
    assert {"--quiet", "--verbose", "--help"} <= entries(page).keys()


def test_train_help_shows_fifteen_options(saccade: Saccade) -> None:
    assert len(entries(saccade("train", "--help").out).keys() - {"--help", "--help-all"}) == 15


@pytest.mark.parametrize("preset", ["transformer-tiny", "transformer-base", "luong-tiny"])
def test_train_help_shows_every_setting_with_the_default_of_the_preset(preset: str, saccade: Saccade) -> None:
    long = entries(saccade("train", "--preset", preset, "--help-all").out)
    config = resolve_config({"model": {"preset": preset}}, where="test")
    family = load_family(str(config.model["family"])).config
    values = config.model_dump()
    expected = [*describe(family, config.model, "model."), *describe(RunConfig, values)]
    for setting in expected:
        if setting.name in {*PLAIN, "training.learning-rate"}:
            continue
        shown = long[f"--{setting.name}"]
        assert f"<{setting.type}>" in shown
        assert shown.endswith(setting.remarks)
    assert not {f"--{name}" for name in PLAIN if "." in name} & long.keys()


def test_help_shows_the_settings_that_training_uses(saccade: Saccade) -> None:
    for arguments in (("--preset", "transformer-tiny"), ()):
        page = entries(saccade("train", *arguments, "--help-all").out)
        assert "[default: muon]" in page["--training.optimizer"]
        assert "[default: 300;" in page["--training.warmup-steps"]
        assert "[default: 0.01;" in page["--training.learning-rate"]
    adam = entries(saccade("train", "--training.optimizer", "adam", "--help-all").out)
    assert "[default: 1000;" in adam["--training.warmup-steps"]
    assert f"[default: {noam_peak(128, 1000):.3g};" in adam["--training.learning-rate"]


def test_help_shows_the_defaults_of_a_recipe(tmp_path: Path, saccade: Saccade) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {preset: luong-tiny}\ntraining: {max-steps: 77}\ndata: {vocabulary: 321}\n")
    page = entries(saccade("train", recipe, "--help").out)
    assert "[default: 77;" in page["--training.max-steps"]
    assert "[default: 321;" in page["--data.vocabulary"]


def test_help_of_rare_settings_comes_last(saccade: Saccade) -> None:
    titles = re.findall(r"^([A-Z][\w ]+):$", saccade("train", "--help-all").out, re.MULTILINE)
    assert titles[-2:] == ["Mixture of experts", "Minimum risk training"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("train", "--preset", "nonsense"), 2),
        (("train", "missing.yaml"), 1),
        (("train", "--resume", "missing"), 1),
        (("compare", "--models", "nonsense"), 2),
    ],
)
def test_help_about_something_unknown_is_refused(arguments: tuple[str, ...], code: int, saccade: Saccade) -> None:
    result = saccade(*arguments, "--help")
    assert (result.code, result.out) == (code, "")


def test_help_ignores_incomplete_arguments(saccade: Saccade) -> None:
    for arguments in (("--source",), ("--target", "a"), ("--training.schedule", "linear"), ("--nonsense", "1")):
        assert "--training.max-minutes" in saccade("train", *arguments, "--help").out


QUESTIONS = {
    "How do I train for 30 minutes?": {"--training.max-minutes": "minutes"},
    "How do I validate with a beam of 8?": {"--training.valid-beam": "beam size of the translations in validation"},
    "How do I stop after 10,000 updates?": {"--training.max-steps": "updates"},
    "Where do I name the validation data?": {"--valid-source": "validation data", "--valid-target": "validation data"},
    "What if I have no validation data?": {"--valid-source": "--data.hold-out"},
    "Where is the result written?": {"--output": "run directory"},
    "How do I train a larger model?": {"--preset": "`saccade models`"},
    "How do I continue after Ctrl-C?": {"--resume": "from its last checkpoint"},
    "How do I fine-tune a model?": {"--from": "fine-tune"},
    "How do I see chrF during training?": {"--training.metrics": "chrf"},
    "What is the learning rate, and how do I change it?": {"--training.learning-rate": "[default: 0.01"},
    "How do I get a vocabulary of 16,000?": {"--data.vocabulary": "vocabulary size"},
    "What is the batch size?": {"--data.batch-tokens": "tokens per batch"},
    "Can I train on a CSV file?": {"--source": ".csv"},
    "How do I stop early, use a GPU, set the seed or the dropout?": {
        "--help-all": "epochs, early stopping, optimizer and schedule, dropout",
    },
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_train_help_answers(question: str, saccade: Saccade) -> None:
    page = entries(saccade("train", "--help").out)
    for option, words in QUESTIONS[question].items():
        assert words in page[option].lower()

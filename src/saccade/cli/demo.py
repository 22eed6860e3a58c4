"""`saccade demo`: train a model on number words, English to German, and show its attention."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.output.alignment import draw, save_plot
from saccade.cli.output.errors import signal_exit_code
from saccade.errors import SaccadeError

if TYPE_CHECKING:
    from saccade.data.number_words import NumberSplit
    from saccade.data.reading.pair_files import Pair
    from saccade.inference.translator import Translator
    from saccade.training.config import RunConfig

EXAMPLE = "three hundred and twenty-one"
EXAMPLES_SHOWN = 5
MINUTES = 3.0


def demo(
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new directory.  [default: demo, or demo-2, demo-3 …]")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.01, help="Maximum training time.")] = MINUTES,
) -> None:
    """Train and explain a small translator in three minutes.

    It learns to translate English number words into German ones: "three hundred and twenty-one" becomes
    "dreihunderteinundzwanzig". German puts ones before tens, so the model has to learn where to attend. Then it is
    scored on unseen numbers, and its attention is plotted. The data is generated; nothing is downloaded.
    """
    directory = new_directory(output)
    print(f"demo directory: {directory}")
    numbers = make_numbers()
    write_numbers(directory, numbers)
    print(
        f"{len(numbers.train):,} numbers for training, {len(numbers.valid):,} for validation, "
        f"{len(numbers.test):,} unseen ones for testing",
        flush=True,
    )

    from saccade.inference.loading import load
    from saccade.training.run import train

    result = train(demo_config(directory, minutes))
    if result.interrupted is not None:
        raise typer.Exit(signal_exit_code(result.interrupted))
    translator = load(result.directory.path)
    print_scores(translator, numbers.test)
    print_alignment(translator, directory / "alignment.png")
    print_next_steps(directory, result.directory.path)


def demo_config(directory: Path, minutes: float = MINUTES) -> RunConfig:
    """Return the config of the demo run."""
    from saccade.training.config_resolution import resolve_config

    return resolve_config(
        {
            "model": {"preset": "transformer-tiny", "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.1},
            "data": {
                "source": str(directory / "train.en"),
                "target": str(directory / "train.de"),
                "valid_source": str(directory / "valid.en"),
                "valid_target": str(directory / "valid.de"),
                "tokenizer": "bpe",
                "vocabulary": 200,
                "joint": True,
                "batch_tokens": 2048,
            },
            "training": {
                "optimizer": "adam",
                "learning_rate": 2e-3,
                "warmup_steps": 200,
                "schedule": "linear",
                "max_steps": 1000,
                "max_minutes": minutes,
                "validate_every": 250,
                "checkpoint_every": 500,
                "metrics": ["exact-match"],
            },
            "output": str(directory / "run"),
        },
        where="demo",
    )


def make_numbers() -> NumberSplit:
    """Return the training, validation and test numbers, without overlap."""
    from saccade.data.number_words import number_pairs

    return number_pairs(train=20_000, valid=500, test=1_000, below=1_000_000, seed=1)


def new_directory(given: Path | None) -> Path:
    """Return the requested directory, which must be new or empty, or the first free one of demo, demo-2, demo-3 …"""
    path = given or Path("demo")
    number = 2
    while given is None and path.exists():
        path = Path(f"demo-{number}")
        number += 1
    if (path.exists() or path.is_symlink()) and (not path.is_dir() or any(path.iterdir())):
        raise SaccadeError("already exists", where=str(path), hint="choose another --output; nothing is overwritten")
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_numbers(directory: Path, numbers: NumberSplit) -> None:
    """Write the data as text files, which every other command can read."""
    for part, pairs in numbers._asdict().items():
        for language, lines in (("en", [pair.source for pair in pairs]), ("de", [pair.target for pair in pairs])):
            (directory / f"{part}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def print_scores(translator: Translator, test: Sequence[Pair]) -> None:
    """Print the exact-match score on unseen numbers, and some examples."""
    from saccade.evaluation.metrics import exact_match

    outputs = translator.translate([pair.source for pair in test])
    score = exact_match(outputs, [[pair.target] for pair in test])
    print(f"\nexact match on {len(test):,} unseen numbers: {score.value:.1f} %\n")
    for pair, output in list(zip(test, outputs, strict=True))[:EXAMPLES_SHOWN]:
        print(f"  {pair.source}\n    {output}{'' if output == pair.target else f'   (expected {pair.target})'}")


def print_alignment(translator: Translator, plot: Path) -> None:
    """Draw the attention weights of one example in the terminal, and plot them."""
    explanation = translator.explain(EXAMPLE)
    print(f"\nattention weights for '{explanation.target}':\n")
    print(draw(explanation))
    save_plot(explanation, plot)
    print(f"\nas a plot: {plot}")


def print_next_steps(directory: Path, run: Path) -> None:
    """Print commands that work with the files of this demo."""
    saccade, model = program(), shlex.quote(str(run))
    files = {
        name: shlex.quote(str(directory / name))
        for name in ("train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de", "heads.png")
    }
    print(
        f"""
what to try next:
  echo 'seventy-seven thousand and seven' | {saccade} translate {model} --nbest 3 --scores
  {saccade} attention {model} 'nine thousand and eighty-four' --plot {files["heads.png"]} --heads
  {saccade} evaluate {model} --source {files["test.en"]} --reference {files["test.de"]}
  {saccade} train --source {files["train.en"]} --target {files["train.de"]} \\
      --valid-source {files["valid.en"]} --valid-target {files["valid.de"]} --training.max-minutes 3
with your own sentence pairs:
  {saccade} train --source yours.en --target yours.de --data.hold-out 500 --output runs/first"""
    )


def program() -> str:
    """Return the command that calls this program: its name if it is on the PATH, otherwise its path."""
    called = Path(sys.argv[0])
    found = shutil.which("saccade")
    if found is not None and (called.name != "saccade" or Path(found).resolve() == called.resolve()):
        return "saccade"
    if called.name != "saccade":
        return "python -m saccade.cli.main"
    return shlex.quote(str(called))

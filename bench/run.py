"""Compare training and decoding speed of Saccade with other toolkits, for two model sizes.

    make bench
    python -m bench.run --only training --sizes tiny --peers transformers,eole --rounds 3

First installs every peer in its own environment under .bench/. Tables go to stdout, progress to stderr. The results are
written to bench/results/DATE.json, .md and .png, or to --output.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.comparison import Comparison, log_progress
from bench.decoding import compare_decoding
from bench.environments import RECIPES, Environment, environment
from bench.machine import describe_environments, describe_machine, today
from bench.models import NoModelError
from bench.paths import RESULTS
from bench.prepared_data import DataError
from bench.sizes import SIZES
from bench.speed_plot import plot_speed
from bench.tables import report
from bench.training import compare_training

SECTIONS = ("training", "decoding")
PEERS = tuple(peer for peer in RECIPES if peer != "pieces")


def main() -> None:
    options = read_options()
    environments = {peer: environment(peer, again=options.again) for peer in options.peers}
    for peer, one in environments.items():
        log_progress(f"{peer}: {'ready' if one.ready else one.reason}")
    found: dict[str, Any] = {
        "format": 1,
        "date": today(),
        "machine": describe_machine(),
        "environments": describe_environments(environments),
        "comparisons": [],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    titles = {title_of(section, size) for section in options.only for size in options.sizes}
    path, found = merge(found, options.output / f"{options.name or found['date']}.json", titles)
    for section in options.only:
        for size in options.sizes:
            found["comparisons"].append(compare(section, size, environments, options).to_json())
            write(found, path)  # after every part, because all parts take hours
    print(report(found))


def compare(
    section: str, size_name: str, environments: dict[str, Environment], options: argparse.Namespace
) -> Comparison:
    """Measure one section of one size; if it cannot run, the comparison holds the reason."""
    try:
        if section == "training":
            return compare_training(
                size_name,
                environments,
                rounds=options.rounds,
                updates=options.updates,
                warmup=options.warmup,
                limit_seconds=options.limit_seconds,
            )
        return compare_decoding(
            size_name,
            environments,
            rounds=options.rounds,
            minutes=options.minutes,
            given=options.model if size_name == "tiny" else None,
            sentences=options.sentences,
            limit_seconds=options.limit_seconds,
        )
    except (DataError, NoModelError) as error:
        return Comparison(title_of(section, size_name), [], reasons={"all": str(error)})


def title_of(section: str, size_name: str) -> str:
    """The title of a comparison."""
    return f"{section} {size_name}"


def merge(found: dict[str, Any], path: Path, titles: set[str]) -> tuple[Path, dict[str, Any]]:
    """The result file and its content: parts of one day on one machine and commit share a file.

    Nothing is overwritten: a repeated part, or a working tree with changes, starts a new file.
    """
    number, name = 1, path.stem
    while path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        existing = {comparison["title"] for comparison in before["comparisons"]}
        clean = not str(found["machine"]["commit"]).endswith("+")
        if clean and before["machine"] == found["machine"] and not existing & titles:
            return path, {**before, "environments": {**before["environments"], **found["environments"]}}
        number += 1
        path = path.with_name(f"{name}-{number}.json")
    return path, found


def write(found: dict[str, Any], path: Path) -> None:
    """Write the JSON, Markdown and PNG files."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(report(found), encoding="utf-8")
    plotted = plot_speed(found, path.with_suffix(".png"))
    log_progress(f"results: {path}, .md{', .png' if plotted else ''}")


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=choices(SECTIONS), default=SECTIONS, help=f"some of {', '.join(SECTIONS)}")
    parser.add_argument("--sizes", type=choices(tuple(SIZES)), default=tuple(SIZES), help=f"some of {', '.join(SIZES)}")
    parser.add_argument("--peers", type=choices(PEERS), default=PEERS, help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=3, help="measurements per system")
    parser.add_argument("--updates", type=int, help="training updates per round; by default set by the size")
    parser.add_argument("--warmup", type=int, help="warmup updates; by default set by the size")
    parser.add_argument("--minutes", type=float, default=15.0, help="training time of the model for decoding")
    parser.add_argument("--model", type=Path, help="a run of transformer-tiny for decoding, instead of training one")
    parser.add_argument("--sentences", type=int, help="test sentences to decode; by default set by the size")
    parser.add_argument("--limit-seconds", type=float, default=2.0, help="measuring time of each machine limit")
    parser.add_argument("--again", action="store_true", help="retry failed installations")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--name", help="name of the result files; by default the date")
    return parser.parse_args()


def choices(valid: tuple[str, ...]) -> Any:
    """An argument type: valid names separated by commas."""

    def chosen(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        for name in names:
            if name not in valid:
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(valid)}")
        return names

    return chosen


if __name__ == "__main__":
    main()

"""All peers side by side: training and decoding, two sizes, as a table of ratios with medians and spread.

    make bench
    python -m bench.run --only training --sizes tiny --peers transformers,eole --rounds 3

Sets up every peer in its own environment under .bench/ first. The table goes to the standard output, everything else to
the standard error; results/DATE.json, .md and .png are written next to this file, or under --output.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.decoding import contest_of_decoding
from bench.environments import RECIPES, Environment, environment
from bench.machine import describe_environments, describe_machine, today
from bench.models import NoModelError
from bench.picture import draw
from bench.places import RESULTS
from bench.series import Contest, say
from bench.sizes import SIZES
from bench.tables import report
from bench.training import contest_of_training
from bench.work import NoWorkError

SECTIONS = ("training", "decoding")
PEERS = tuple(peer for peer in RECIPES if peer != "pieces")


def main() -> None:
    options = read_options()
    environments = {peer: environment(peer, again=options.again) for peer in options.peers}
    for peer, one in environments.items():
        say(f"{peer}: {'ready' if one.ready else one.reason}")
    found: dict[str, Any] = {
        "format": 1,
        "date": today(),
        "machine": describe_machine(),
        "environments": describe_environments(environments),
        "contests": [],
    }
    options.output.mkdir(parents=True, exist_ok=True)
    titles = {title_of(section, size) for section in options.only for size in options.sizes}
    place, found = merge(found, options.output / f"{options.name or found['date']}.json", titles)
    for section in options.only:
        for size in options.sizes:
            found["contests"].append(contest_of(section, size, environments, options).to_json())
            write(found, place)  # hours of work are not lost with the last minute
    print(report(found))


def contest_of(
    section: str, size_name: str, environments: dict[str, Environment], options: argparse.Namespace
) -> Contest:
    """One section of one size; what keeps it from running stands in its place."""
    try:
        if section == "training":
            return contest_of_training(
                size_name,
                environments,
                rounds=options.rounds,
                updates=options.updates,
                warmup=options.warmup,
                limit_seconds=options.limit_seconds,
            )
        return contest_of_decoding(
            size_name,
            environments,
            rounds=options.rounds,
            minutes=options.minutes,
            given=options.model if size_name == "tiny" else None,
            sentences=options.sentences,
            limit_seconds=options.limit_seconds,
        )
    except (NoWorkError, NoModelError) as error:
        return Contest(title_of(section, size_name), [], reasons={"all": str(error)})


def title_of(section: str, size_name: str) -> str:
    """What a contest is called."""
    return f"{section} {size_name}"


def merge(found: dict[str, Any], place: Path, titles: set[str]) -> tuple[Path, dict[str, Any]]:
    """Where results go, with those that are there: parts of one day belong together while nothing else changed.

    Nothing is written over: a part that is there already, or a tree with changes of its own, begins a new file.
    """
    number, name = 1, place.stem
    while place.is_file():
        before = json.loads(place.read_text(encoding="utf-8"))
        there = {contest["title"] for contest in before["contests"]}
        clean = not str(found["machine"]["commit"]).endswith("+")
        if clean and before["machine"] == found["machine"] and not there & titles:
            return place, {**before, "environments": {**before["environments"], **found["environments"]}}
        number += 1
        place = place.with_name(f"{name}-{number}.json")
    return place, found


def write(found: dict[str, Any], place: Path) -> None:
    """The three files of a run."""
    place.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    place.with_suffix(".md").write_text(report(found), encoding="utf-8")
    drawn = draw(found, place.with_suffix(".png"))
    say(f"results: {place}, .md{', .png' if drawn else ''}")


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=choices(SECTIONS), default=SECTIONS, help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--sizes", type=choices(tuple(SIZES)), default=tuple(SIZES), help=f"of {', '.join(SIZES)}")
    parser.add_argument("--peers", type=choices(PEERS), default=PEERS, help=f"of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=3, help="how often each takes its turn")
    parser.add_argument("--updates", type=int, help="updates a round in training, instead of those of the size")
    parser.add_argument("--warmup", type=int, help="updates before the clock starts, instead of those of the size")
    parser.add_argument("--minutes", type=float, default=15.0, help="training of the model that is decoded with")
    parser.add_argument("--model", type=Path, help="a run of transformer-tiny to decode with, instead of training one")
    parser.add_argument("--sentences", type=int, help="of the 1,000 that are decoded, instead of those of the size")
    parser.add_argument("--limit-seconds", type=float, default=2.0, help="how long each limit is measured in a round")
    parser.add_argument("--again", action="store_true", help="try again what did not install")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--name", help="of the files, instead of the date")
    return parser.parse_args()


def choices(valid: tuple[str, ...]) -> Any:
    """Names with commas, all of them valid."""

    def chosen(text: str) -> tuple[str, ...]:
        names = tuple(name for name in text.split(",") if name)
        for name in names:
            if name not in valid:
                raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(valid)}")
        return names

    return chosen


if __name__ == "__main__":
    main()

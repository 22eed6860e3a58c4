"""Time to quality: what a trainer reaches in some minutes from raw text, everything counted.

    python -m bench.quality joeynmt --minutes 30
    python -m bench.quality eole --minutes 30
    python -m bench.quality saccade --minutes 10 30 60

Trains on the published lower-cased, tokenised Multi30k (multi30k/tok), translates test_2016_flickr with a beam of 5,
and scores with sacreBLEU without further tokenisation. The clock starts before pieces are learnt and text is cut;
loading of programs counts too. Saccade trains by recipes, each from where the one before ended, and stops at each of
the minutes: translate, score, go on. A recipe with two targets also learns from the training data as the one before
translates it, which counts as well. Each point is appended to results/quality.json, and all are drawn beside it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sacrebleu.metrics import BLEU

from bench.environments import environment
from bench.machine import describe_machine, today
from bench.models import SACCADE, NoModelError, call
from bench.peers.job import read_lines
from bench.places import CACHE, RESULTS, ROOT, multi30k
from bench.processes import run_job
from bench.quality_picture import draw_quality
from bench.series import say
from bench.sizes import BATCH_TOKENS, DROPOUT, LABEL_SMOOTHING, SIZES
from bench.work import TOKENISED, NoWorkError, copy_texts, cut_into_pieces
from saccade.config import read_yaml

RECIPES = [ROOT / "recipes" / f"multi30k-tokenised{stage}.yaml" for stage in ("", "-distilled")]
RESERVE = 0.4  # minutes of a stretch kept for start, tokenisation and the last validation
LEAST = 0.1  # minutes of a stretch, should the preparation of a run have taken all that was left
WORTH_A_START = 1.0  # minutes; with fewer left, the next stretch begins after the mark


class Stopwatch:
    """Counts from when it was last asked."""

    def __init__(self) -> None:
        self.began = time.perf_counter()

    def minutes(self) -> float:
        """Since then."""
        before, self.began = self.began, time.perf_counter()
        return (self.began - before) / 60


@dataclass(frozen=True)
class Point:
    """The quality after some time."""

    minutes: float  # of the clock, all included
    bleu: float
    signature: str
    setting: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=["saccade", "joeynmt", "eole"])
    parser.add_argument("--minutes", type=float, nargs="+", default=[30.0])
    parser.add_argument("--recipes", type=Path, nargs="+", default=RECIPES, help="of Saccade, one from the other")
    parser.add_argument("--json", type=Path, default=RESULTS / "quality.json", help="where the result is appended")
    options = parser.parse_args()
    origin = multi30k()
    if origin is None or not (origin / "tok").is_dir():
        raise SystemExit("skipped: no multi30k/tok under $SACCADE_DATA")
    if options.system == "saccade":
        points = saccade_points(origin / "tok", options.recipes, sorted(options.minutes))
    else:
        points = (peer_point(options.system, origin / "tok", minutes) for minutes in options.minutes)
    found = {"date": today(), "machine": describe_machine(), "system": options.system}
    try:
        for point in points:  # each is kept, whatever happens to the next
            append(options.json, {**found, **asdict(point)})
    except (NoModelError, NoWorkError) as error:
        raise SystemExit(f"{options.system}: {error}") from None


def peer_point(peer: str, origin: Path, minutes: float) -> Point:
    """Pieces, training and decoding of a peer; all but the decoding is within the minutes."""
    set_up = environment(peer)
    if not set_up.ready:
        raise NoModelError(set_up.reason)
    folder = CACHE / "quality" / peer
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    copy_texts(origin, work, TOKENISED)
    began = time.time()
    cut_into_pieces(SIZES["tiny"], work, [str(work / "train.source"), str(work / "train.target")])
    job = {
        "name": f"quality-{peer}",
        "size": asdict(SIZES["tiny"]),
        "work": str(work),
        "folder": str(folder / "model"),
        "batch_tokens": BATCH_TOKENS,
        "dropout": DROPOUT,
        "label_smoothing": LABEL_SMOOTHING,
    }
    outcome = run_job(peer, {**job, "task": "model", "deadline": began + 60 * minutes}, most_seconds=60 * minutes + 600)
    spent = (time.time() - began) / 60
    if outcome.result is None:
        raise NoModelError(f"its training fails: {outcome.reason}")
    decoding = {"task": "decoding", "beams": [5], "source": str(work / "test.source"), "output": str(folder / "output")}
    decoded = run_job(peer, {**job, **decoding})
    if decoded.result is None:
        raise NoModelError(f"its decoding fails: {decoded.reason}")
    output = Path(decoded.result["decoded"][0]["output"])
    version = f"{decoded.result['version']}, {outcome.result['steps']:,} updates"
    return scored(output, work / "test.target", spent, version)


def saccade_points(origin: Path, recipes: list[Path], minutes: list[float]) -> Iterator[Point]:
    """Runs of recipes, each from the weights of the one before; they pause at each of the minutes.

    A recipe hands over when its updates are done. To translate the test set is not counted.
    """
    folder = CACHE / "quality" / "saccade"
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    copy_texts(origin, work, TOKENISED)
    run, number, spent, trained = folder, 0, 0.0, 0.0  # minutes of the clock, and of the run that goes on
    for mark in minutes:
        while mark - spent > WORTH_A_START:
            clock = Stopwatch()
            if number == 0 or is_done(run):
                if number == len(recipes):
                    break
                before, run = run, folder / f"run-{number}"
                command = beginning(recipes[number], run, before if number else None, work)
                number, trained = number + 1, 0.0
            else:
                command = [*SACCADE, "train", "--resume", str(run)]
            spent += clock.minutes()
            trained += max(LEAST, mark - spent - RESERVE)
            call([*command, "--training.max-minutes", f"{trained:.3f}"], "quality-saccade")
            spent += clock.minutes()
        if spent > mark:
            say(f"the clock shows {spent:.2f} minutes instead of {mark:g}")
        output = folder / f"output-{mark:g}"
        files = ["--input", str(work / "test.source"), "--output", str(output)]
        call([*SACCADE, "translate", str(run), "--beam", "5", *files], "quality-saccade-translate")
        yield scored(output, work / "test.target", spent, ", ".join(recipe.name for recipe in recipes[:number]))


def beginning(recipe: Path, run: Path, before: Path | None, work: Path) -> list[str]:
    """The command that begins a run of a recipe, from the weights of an earlier run if there is one."""
    command = [*SACCADE, "train", str(recipe), "--output", str(run), "--data.cache", str(work / "cache")]
    pairs = [(work / "train.source", work / "train.target")]
    if before is not None:
        command += ["--from", str(before)]
        if isinstance(read_yaml(recipe)["data"]["target"], list):
            pairs.append((work / "train.source", translated(before, work)))
    for source, target in pairs:
        command += ["--source", str(source), "--target", str(target)]
    return [*command, "--valid-source", str(work / "valid.source"), "--valid-target", str(work / "valid.target")]


def translated(run: Path, work: Path) -> Path:
    """The training data as a run translates it."""
    output = work / "train.translated"
    files = ["--input", str(work / "train.source"), "--output", str(output)]
    call([*SACCADE, "translate", str(run), "--beam", "5", *files], "quality-saccade-translate")
    return output


def is_done(run: Path) -> bool:
    """Whether a run has made all its updates."""
    most = read_yaml(run / "config.yaml")["training"]["max_steps"]
    return most is not None and (run / "checkpoints" / f"step-{most}").is_dir()


def scored(output: Path, reference: Path, minutes: float, setting: str) -> Point:
    """BLEU of text that is tokenised already."""
    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score(read_lines(output), [read_lines(reference)])
    point = Point(minutes, score.score, str(metric.get_signature()), setting)
    print(f"{minutes:.1f} minutes: BLEU {point.bleu:.2f} ({setting}; {point.signature})", flush=True)
    return point


def append(path: Path, found: dict[str, object]) -> None:
    """Add a result to those that are there."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*before, found], indent=1) + "\n", encoding="utf-8")
    draw_quality([*before, found], path.with_suffix(".png"))
    say(f"appended to {path}, and drawn")


if __name__ == "__main__":
    main()

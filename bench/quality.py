"""Time to quality: the BLEU that a toolkit reaches within some minutes, starting from raw text.

    python -m bench.quality joeynmt --minutes 30
    python -m bench.quality eole --minutes 30
    python -m bench.quality saccade --minutes 10 30 60

Trains on the published lower-cased, tokenized Multi30k (multi30k/tok), translates test_2016_flickr with a beam of 5,
and scores with sacreBLEU without tokenizing again. Time includes tokenization and program start. Saccade trains a
sequence of recipes, each starting from the model of the previous one, and pauses at each of the given minutes to
translate and score. A recipe with two targets also trains on translations of the training data by the previous model,
whose time is included. Each point is appended to results/quality.json, and all points are plotted.
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

from bench.comparison import log_progress
from bench.environments import environment
from bench.machine import describe_machine, today
from bench.models import SACCADE, NoModelError, call
from bench.paths import CACHE, RESULTS, ROOT, multi30k
from bench.peers.job import read_lines
from bench.prepared_data import TOKENIZED, DataError, copy_corpus, tokenize_corpus
from bench.processes import run_job
from bench.quality_plot import plot_quality
from bench.sizes import BATCH_TOKENS, DROPOUT, LABEL_SMOOTHING, SIZES
from saccade.config import read_yaml

RECIPES = [ROOT / "recipes" / f"multi30k-tokenized{stage}.yaml" for stage in ("", "-distilled")]
RESERVE = 0.4  # minutes reserved for start, tokenization and the last validation
MIN_MINUTES = 0.1  # training time if preparation took all the time left
MIN_MINUTES_TO_START = 1.0  # with less time left, training continues after the next score


class Stopwatch:
    """Measures the time since its last reading."""

    def __init__(self) -> None:
        self.began = time.perf_counter()

    def minutes(self) -> float:
        """Minutes since the last reading."""
        before, self.began = self.began, time.perf_counter()
        return (self.began - before) / 60


@dataclass(frozen=True)
class Point:
    """BLEU after some training time."""

    minutes: float  # total time
    bleu: float
    signature: str
    setting: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", choices=["saccade", "joeynmt", "eole"])
    parser.add_argument("--minutes", type=float, nargs="+", default=[30.0])
    parser.add_argument("--recipes", type=Path, nargs="+", default=RECIPES, help="recipes of Saccade, in sequence")
    parser.add_argument("--json", type=Path, default=RESULTS / "quality.json", help="file to append the result to")
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
        for point in points:  # save each point before computing the next
            append(options.json, {**found, **asdict(point)})
    except (NoModelError, DataError) as error:
        raise SystemExit(f"{options.system}: {error}") from None


def peer_point(peer: str, origin: Path, minutes: float) -> Point:
    """Tokenize, train and decode with a peer; the time includes everything except decoding."""
    set_up = environment(peer)
    if not set_up.ready:
        raise NoModelError(set_up.reason)
    folder = CACHE / "quality" / peer
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    copy_corpus(origin, work, TOKENIZED)
    began = time.time()
    tokenize_corpus(SIZES["tiny"], work, [str(work / "train.source"), str(work / "train.target")])
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
        raise NoModelError(f"training failed: {outcome.reason}")
    decoding = {"task": "decoding", "beams": [5], "source": str(work / "test.source"), "output": str(folder / "output")}
    decoded = run_job(peer, {**job, **decoding})
    if decoded.result is None:
        raise NoModelError(f"decoding failed: {decoded.reason}")
    output = Path(decoded.result["decoded"][0]["output"])
    version = f"{decoded.result['version']}, {outcome.result['steps']:,} updates"
    return score_output(output, work / "test.target", spent, version)


def saccade_points(origin: Path, recipes: list[Path], minutes: list[float]) -> Iterator[Point]:
    """Train the recipes in sequence, each from the weights of the previous one; score at each of the minutes.

    The next recipe starts when all updates of the previous one are done. Translating the test set is not counted.
    """
    folder = CACHE / "quality" / "saccade"
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    copy_corpus(origin, work, TOKENIZED)
    run, number, spent, trained = folder, 0, 0.0, 0.0  # total minutes, and minutes of the current run
    for mark in minutes:
        while mark - spent > MIN_MINUTES_TO_START:
            clock = Stopwatch()
            if number == 0 or is_finished(run):
                if number == len(recipes):
                    break
                before, run = run, folder / f"run-{number}"
                command = start_command(recipes[number], run, before if number else None, work)
                number, trained = number + 1, 0.0
            else:
                command = [*SACCADE, "train", "--resume", str(run)]
            spent += clock.minutes()
            trained += max(MIN_MINUTES, mark - spent - RESERVE)
            call([*command, "--training.max-minutes", f"{trained:.3f}"], "quality-saccade")
            spent += clock.minutes()
        if spent > mark:
            log_progress(f"{spent:.2f} minutes were used instead of {mark:g}")
        output = folder / f"output-{mark:g}"
        files = ["--input", str(work / "test.source"), "--output", str(output)]
        call([*SACCADE, "translate", str(run), "--beam", "5", *files], "quality-saccade-translate")
        yield score_output(output, work / "test.target", spent, ", ".join(recipe.name for recipe in recipes[:number]))


def start_command(recipe: Path, run: Path, before: Path | None, work: Path) -> list[str]:
    """The command that starts a recipe, from the weights of an earlier run if there is one."""
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
    """The training data, translated by a run."""
    output = work / "train.translated"
    files = ["--input", str(work / "train.source"), "--output", str(output)]
    call([*SACCADE, "translate", str(run), "--beam", "5", *files], "quality-saccade-translate")
    return output


def is_finished(run: Path) -> bool:
    """Whether a run has done all its updates."""
    most = read_yaml(run / "config.yaml")["training"]["max_steps"]
    return most is not None and (run / "checkpoints" / f"step-{most}").is_dir()


def score_output(output: Path, reference: Path, minutes: float, setting: str) -> Point:
    """Score tokenized text with BLEU."""
    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score(read_lines(output), [read_lines(reference)])
    point = Point(minutes, score.score, str(metric.get_signature()), setting)
    print(f"{minutes:.1f} minutes: BLEU {point.bleu:.2f} ({setting}; {point.signature})", flush=True)
    return point


def append(path: Path, found: dict[str, object]) -> None:
    """Append a result to the file and update the plot."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*before, found], indent=1) + "\n", encoding="utf-8")
    plot_quality([*before, found], path.with_suffix(".png"))
    log_progress(f"appended to {path} and plotted")


if __name__ == "__main__":
    main()

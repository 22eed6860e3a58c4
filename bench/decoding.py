"""The speed of decoding, side by side: many sentences from raw text to raw text, and one sentence at a time.

Saccade, CTranslate2 and transformers have the same weights, and eole where it can; Joey NMT decodes with a model of its
own, which writes as many tokens as ours does on average.
CTranslate2 is tried with many settings first, transformers with two sizes of a batch, and the best ones count.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics import BLEU

from bench.environments import Environment
from bench.models import NoModelError, SaccadeModel, export, peer_model, saccade_model
from bench.peers.job import read_lines, write_lines
from bench.places import CACHE
from bench.processes import Outcome, run_job
from bench.series import EIGHT_BITS, Contest, Contestant, Series, Turn, machine_limits, say, take_turns
from bench.sizes import SIZES
from bench.training import Entry, note_the_absent
from bench.transplant import eole_model
from bench.work import Work, job_for, prepare

BEAMS = (1, 5)
COMPUTE_TYPES = ("float32", "int8")
BACKENDS = {"default back-end": {}, "MKL": {"CT2_USE_MKL": "1"}}
TOKENS_A_BATCH = (1024, 2048, 4096)  # of CTranslate2
SENTENCES_A_BATCH = (32, 128)  # of transformers
TUNED_ON = 400  # sentences with which settings are chosen
SINGLE = 100  # sentences that are translated one by one
SINGLE_TUNED_ON = 20  # of these
ENGINES = {
    "Saccade (auto)": ("auto", "float32"),
    EIGHT_BITS: ("auto", "int8"),
    "Saccade (torch)": ("torch", "float32"),
}
PEERS = (Entry("transformers, generate", "transformers"), Entry("eole", "eole"), Entry("Joey NMT", "joeynmt"))


@dataclass(frozen=True)
class Settings:
    """One way to run CTranslate2."""

    compute_type: str
    backend: str
    workers: int
    threads: int
    batch: int = 0

    def text(self) -> str:
        """For a table."""
        batch = f", {self.batch} tokens a batch" if self.batch else ""
        return f"{self.backend}, {self.workers} x {self.threads} threads{batch}"


class Bench(NamedTuple):
    """What all contestants of a size have in common."""

    size_name: str
    work: Work
    model: SaccadeModel
    sentences: int
    contest: Contest

    def job(self, name: str, task: str, **more: Any) -> dict[str, Any]:
        """A job on the test sentences."""
        wanted = [count for count in (more.pop("first", None), self.sentences) if count]
        source = shortened(self.work.folder / "test.source", min(wanted))
        place = CACHE / "outputs" / f"{self.size_name}-{name}"
        return dict(
            job_for(
                self.size_name,
                self.work,
                name=f"{task}-{self.size_name}-{name}",
                task=task,
                source=str(source),
                output=str(place),
                model=str(self.model.folder),
                tokenizer=str(self.model.tokenizer),
                **{"beams": BEAMS, "sentences": SINGLE, **more},
            )
        )


def contest_of_decoding(
    size_name: str,
    environments: Mapping[str, Environment],
    *,
    rounds: int,
    minutes: float,
    given: Path | None = None,
    sentences: int | None = None,
    limit_seconds: float = 2.0,
) -> Contest:
    """Every decoder that is installed, in turn."""
    work, size = prepare(size_name), SIZES[size_name]
    title = f"{size.preset}, {size.pieces:,} pieces"
    series = [
        Series(f"beam {beam}", f"decoding {title}, {'greedy' if beam == 1 else f'beam {beam}'}", "sentences/s")
        for beam in BEAMS
    ]
    series += [
        Series(
            f"single {beam}",
            f"one sentence at a time, {title}, {'greedy' if beam == 1 else f'beam {beam}'}",
            "ms a sentence",
            more_is_better=False,
        )
        for beam in BEAMS
    ]
    contest = Contest(f"decoding {size_name}", series)
    if not work.real:
        contest.reasons["all"] = "there is nothing to learn and to translate without Multi30k under $SACCADE_DATA"
        return contest
    if size.length:
        contest.remarks.append(f"every output has {size.length} tokens: a model of this size is not trained here")
    note_the_absent(contest, environments, [*PEERS, Entry("CTranslate2", "ctranslate2")])
    model = saccade_model(size_name, work, minutes=minutes, given=given)
    bench = Bench(size_name, work, model, sentences or size.sentences, contest)
    contest.remarks.append(f"{bench.sentences:,} sentences of {work.data}, raw text to raw text, loading not counted")
    contestants = [*ours(bench)]
    if ready(environments, "ctranslate2"):
        contestants += ctranslate2(bench)
    if ready(environments, "transformers"):
        contestants += huggingface(bench, PEERS[0])
    for entry in PEERS[1:]:
        if ready(environments, entry.peer):
            ours_fit = (
                entry.peer == "eole" and not size.length
            )  # it cannot put the norm last, as `transformer-base` does
            contestants += eole(bench, entry) if ours_fit else own_model(bench, entry)
    take_turns(contest, contestants, rounds, limits=lambda: machine_limits(limit_seconds))
    return contest


def ready(environments: Mapping[str, Environment], peer: str) -> bool:
    """Whether a peer was asked for and can run."""
    return peer in environments and environments[peer].ready


def ours(bench: Bench) -> list[Contestant]:
    """Saccade on each of its engines."""

    def measure(name: str) -> Turn:
        engine, precision = ENGINES[name]
        chosen = {"engine": engine, "precision": precision}
        batch, single = (
            run_job("saccade", bench.job(f"saccade-{engine}-{precision}", task, **chosen))
            for task in ("decoding", "latency")
        )
        note_costs(bench.contest, batch.result)
        return turn_of(bench, name, batch, single)

    return [Contestant(name, lambda name=name: measure(name)) for name in ENGINES]


def ctranslate2(bench: Bench) -> list[Contestant]:
    """CTranslate2 in each precision, with the settings that suit it best."""
    try:
        folder = str(export(bench.model, "ctranslate2"))
    except NoModelError as error:
        bench.contest.reasons["CTranslate2"] = f"no weights for it: {error}"
        return []
    contestants = []
    for kind in COMPUTE_TYPES:
        name = f"CTranslate2, {kind}"
        batch = tune(bench, folder, kind, "decoding")
        single = tune(bench, folder, kind, "latency")
        if not batch or not single:
            bench.contest.reasons[name] = "none of its settings ran"
            continue
        for one in bench.contest.series:
            beam = int(one.name.split()[1])
            one.notes[name] = (batch if one.name.startswith("beam") else single)[beam].text()

        def measure(name: str = name, batch: Any = batch, single: Any = single) -> Turn:
            values: dict[str, float] = {}
            for task, chosen in (("decoding", batch), ("latency", single)):
                for beam, settings in chosen.items():
                    outcome = run_ctranslate2(bench, folder, settings, task, beams=[beam])
                    turn = turn_of(bench, name, *((outcome, None) if task == "decoding" else (None, outcome)))
                    if turn.reason:
                        return turn
                    values |= turn.values
            return Turn(values)

        contestants.append(Contestant(name, measure))
    return contestants


def tune(bench: Bench, folder: str, kind: str, task: str) -> dict[int, Settings]:
    """The fastest settings for each beam."""
    cores = len(os.sched_getaffinity(0))
    shapes = {(cores, 1), (1, cores)} if task == "decoding" else {(1, 1), (1, cores)}
    best: dict[int, tuple[float, Settings]] = {}
    for backend in BACKENDS:
        for workers, threads in sorted(shapes):
            settings = Settings(kind, backend, workers, threads)
            few = {"first": TUNED_ON, "sentences": SINGLE_TUNED_ON}
            outcome = run_ctranslate2(bench, folder, settings, task, batches=TOKENS_A_BATCH, **few)
            if outcome.result is None:
                say(f"CTranslate2, {kind}, {settings.text()}: fails: {outcome.reason}")
                continue
            for found in outcome.result["decoded" if task == "decoding" else "single"]:
                seconds = found["seconds"] if task == "decoding" else statistics.median(found["seconds"])
                tried = Settings(kind, backend, workers, threads, found.get("batch", 0))
                say(f"CTranslate2, {kind}, {task}, beam {found['beam']}, {tried.text()}: {seconds:.3g} s")
                if found["beam"] not in best or seconds < best[found["beam"]][0]:
                    best[found["beam"]] = seconds, tried
    return {beam: settings for beam, (_, settings) in best.items()}


def run_ctranslate2(
    bench: Bench,
    folder: str,
    settings: Settings,
    task: str,
    *,
    beams: Sequence[int] = BEAMS,
    batches: Sequence[int] = (),
    **few: int,
) -> Outcome:
    """One process with one set of settings."""
    job = bench.job(
        f"ctranslate2-{settings.compute_type}",
        task,
        export=folder,
        compute_type=settings.compute_type,
        workers=settings.workers,
        threads=settings.threads,
        beams=beams,
        batch_sizes=batches or (settings.batch,),
        **few,
    )
    return run_job("ctranslate2", job, variables=BACKENDS[settings.backend])


def huggingface(bench: Bench, entry: Entry) -> list[Contestant]:
    """`generate` on the same weights; its better size of batch counts in every round."""
    return on_our_weights(bench, entry, lambda: export(bench.model, "huggingface"), batch_sizes=SENTENCES_A_BATCH)


def eole(bench: Bench, entry: Entry) -> list[Contestant]:
    """eole on the same weights."""
    return on_our_weights(bench, entry, lambda: eole_model(bench.model))


def on_our_weights(bench: Bench, entry: Entry, write: Callable[[], Path], **more: Any) -> list[Contestant]:
    """A peer with the folder of weights that is written for it."""
    try:
        folder = str(write())
    except NoModelError as error:
        bench.contest.reasons[entry.name] = f"no weights for it: {error}"
        return []

    def measure() -> Turn:
        job = bench.job(entry.peer, "decoding", export=folder, **more)
        return turn_of(bench, entry.name, run_job(entry.peer, job), None)

    return [Contestant(entry.name, measure)]


def own_model(bench: Bench, entry: Entry) -> list[Contestant]:
    """A peer with a model of its own making, whose outputs have a given length: it has learnt nothing."""
    try:
        folder = str(peer_model(entry.peer, bench.size_name, bench.work))
    except NoModelError as error:
        bench.contest.reasons[entry.name] = str(error)
        return []

    size = SIZES[bench.size_name]
    for one in bench.contest.series:
        one.notes[entry.name] = "untrained weights" + ("" if size.length else f", {size.own_length} steps an output")

    def measure() -> Turn:
        job = bench.job(entry.peer, "decoding", folder=folder, dropout=0.0, label_smoothing=0.0)
        job["size"]["length"] = size.own_length
        return turn_of(bench, entry.name, run_job(entry.peer, job), None, scored=False)

    return [Contestant(entry.name, measure)]


def turn_of(bench: Bench, name: str, batch: Outcome | None, single: Outcome | None, *, scored: bool = True) -> Turn:
    """The values of a turn, the best of each beam; notes what outputs are worth if the model has learnt."""
    for outcome in (batch, single):
        if outcome is not None and outcome.result is None:
            return Turn(reason=outcome.reason)
    values: dict[str, float] = {}
    series = {one.name: one for one in bench.contest.series}
    for found in batch.result["decoded"] if batch and batch.result else ():
        lines, key = read_lines(found["output"]), f"beam {found['beam']}"
        speed = len(lines) / found["seconds"]
        if speed > values.get(key, 0.0):
            values[key] = speed
            if scored and not SIZES[bench.size_name].length:
                series[key].scores[name] = bleu(lines, bench.work.folder / "test.target")
            if "setting" in found:
                series[key].notes[name] = found["setting"]
    for found in single.result["single"] if single and single.result else ():
        values[f"single {found['beam']}"] = 1000 * statistics.median(found["seconds"])
    return Turn(values)


def bleu(outputs: Sequence[str], references: Path) -> float:
    """Of as many references as there are outputs: it only shows that all did the same work."""
    return float(BLEU().corpus_score(list(outputs), [read_lines(references)[: len(outputs)]]).score)


def note_costs(contest: Contest, result: Mapping[str, Any] | None) -> None:
    """The operations and the weights that a sentence stands for, from the sizes of the model's parts."""
    if not result or not result.get("decoder_parameters"):
        return
    encoder, decoder = result["encoder_parameters"], result["decoder_parameters"] + result["output_parameters"]
    for one in contest.series:
        kind, beam = one.name.split()
        target = result["target_tokens"][beam]
        if kind == "beam":
            one.flops_a_unit = 2 * (encoder * result["source_tokens"] + int(beam) * decoder * target)
        else:
            one.bytes_a_unit = 4 * (encoder + decoder * target)


def shortened(path: Path, lines: int) -> Path:
    """The first lines of a file as a file."""
    short = path.with_name(f"{path.name}.{lines}")
    if not short.is_file():
        write_lines(short, read_lines(path)[:lines])
    return short

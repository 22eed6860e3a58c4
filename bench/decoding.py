"""Decoding speed of Saccade and other toolkits: throughput from text to text, and latency of single sentences.

Saccade, CTranslate2, transformers and, if possible, eole use the same weights. Joey NMT uses its own model, whose
outputs have the average length of Saccade's. CTranslate2 is tuned over many settings and transformers over two batch
sizes; the fastest setting counts.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics import BLEU

from bench.comparison import (
    SACCADE_INT8,
    Comparison,
    Measurement,
    Series,
    System,
    log_progress,
    measure_in_rounds,
    measure_machine_limits,
)
from bench.environments import Environment
from bench.eole_export import eole_model
from bench.models import NoModelError, SaccadeModel, export, peer_model, saccade_model
from bench.paths import CACHE
from bench.peers.job import read_lines, write_lines
from bench.prepared_data import PreparedData, make_job, prepare
from bench.processes import Outcome, run_job
from bench.sizes import SIZES
from bench.training import Entry, note_missing_peers

BEAMS = (1, 5)
COMPUTE_TYPES = ("float32", "int8")
BACKENDS = {"default back-end": {}, "MKL": {"CT2_USE_MKL": "1"}}
TOKENS_PER_BATCH = (1024, 2048, 4096)  # batch sizes tried with CTranslate2
SENTENCES_PER_BATCH = (32, 128)  # batch sizes tried with transformers
TUNING_SENTENCES = 400  # sentences for tuning settings
LATENCY_SENTENCES = 100  # sentences for latency
LATENCY_TUNING_SENTENCES = 20  # sentences for tuning latency
ENGINES = {
    "Saccade (auto)": ("auto", "float32"),
    SACCADE_INT8: ("auto", "int8"),
    "Saccade (torch)": ("torch", "float32"),
}
PEERS = (Entry("transformers, generate", "transformers"), Entry("eole", "eole"), Entry("Joey NMT", "joeynmt"))


@dataclass(frozen=True)
class Settings:
    """Settings of CTranslate2."""

    compute_type: str
    backend: str
    workers: int
    threads: int
    batch: int = 0

    def text(self) -> str:
        """The settings as text for a table."""
        batch = f", {self.batch} tokens per batch" if self.batch else ""
        return f"{self.backend}, {self.workers} x {self.threads} threads{batch}"


class DecodingSetup(NamedTuple):
    """Data, model and comparison that all systems of one size share."""

    size_name: str
    work: PreparedData
    model: SaccadeModel
    sentences: int
    comparison: Comparison

    def job(self, name: str, task: str, **more: Any) -> dict[str, Any]:
        """A job that translates the test sentences."""
        counts = [count for count in (more.pop("first", None), self.sentences) if count]
        source = shortened(self.work.folder / "test.source", min(counts))
        output = CACHE / "outputs" / f"{self.size_name}-{name}"
        return dict(
            make_job(
                self.size_name,
                self.work,
                name=f"{task}-{self.size_name}-{name}",
                task=task,
                source=str(source),
                output=str(output),
                model=str(self.model.folder),
                tokenizer=str(self.model.tokenizer),
                **{"beams": BEAMS, "sentences": LATENCY_SENTENCES, **more},
            )
        )


def compare_decoding(
    size_name: str,
    environments: Mapping[str, Environment],
    *,
    rounds: int,
    minutes: float,
    given: Path | None = None,
    sentences: int | None = None,
    limit_seconds: float = 2.0,
) -> Comparison:
    """Measure every installed decoder in alternating rounds."""
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
            "ms per sentence",
            more_is_better=False,
        )
        for beam in BEAMS
    ]
    comparison = Comparison(f"decoding {size_name}", series)
    if not work.real:
        comparison.reasons["all"] = "needs Multi30k under $SACCADE_DATA"
        return comparison
    if size.length:
        comparison.remarks.append(f"every output has {size.length} tokens: a model of this size is not trained here")
    note_missing_peers(comparison, environments, [*PEERS, Entry("CTranslate2", "ctranslate2")])
    model = saccade_model(size_name, work, minutes=minutes, given=given)
    setup = DecodingSetup(size_name, work, model, sentences or size.sentences, comparison)
    comparison.remarks.append(f"{setup.sentences:,} sentences of {work.data}, text to text, without loading")
    systems = [*saccade_systems(setup)]
    if ready(environments, "ctranslate2"):
        systems += ctranslate2(setup)
    if ready(environments, "transformers"):
        systems += huggingface(setup, PEERS[0])
    for entry in PEERS[1:]:
        if ready(environments, entry.peer):
            # eole has no post-norm, which `transformer-base` uses.
            same_weights = entry.peer == "eole" and not size.length
            systems += eole(setup, entry) if same_weights else own_model(setup, entry)
    measure_in_rounds(comparison, systems, rounds, limits=lambda: measure_machine_limits(limit_seconds))
    return comparison


def ready(environments: Mapping[str, Environment], peer: str) -> bool:
    """Whether a peer was requested and is installed."""
    return peer in environments and environments[peer].ready


def saccade_systems(setup: DecodingSetup) -> list[System]:
    """Saccade with each engine and precision."""

    def measure(name: str) -> Measurement:
        engine, precision = ENGINES[name]
        chosen = {"engine": engine, "precision": precision}
        batch, single = (
            run_job("saccade", setup.job(f"saccade-{engine}-{precision}", task, **chosen))
            for task in ("decoding", "latency")
        )
        record_costs(setup.comparison, batch.result)
        return to_measurement(setup, name, batch, single)

    return [System(name, lambda name=name: measure(name)) for name in ENGINES]


def ctranslate2(setup: DecodingSetup) -> list[System]:
    """CTranslate2 in each precision, with its fastest settings."""
    try:
        folder = str(export(setup.model, "ctranslate2"))
    except NoModelError as error:
        setup.comparison.reasons["CTranslate2"] = f"weights cannot be converted: {error}"
        return []
    systems = []
    for kind in COMPUTE_TYPES:
        name = f"CTranslate2, {kind}"
        batch = tune(setup, folder, kind, "decoding")
        single = tune(setup, folder, kind, "latency")
        if not batch or not single:
            setup.comparison.reasons[name] = "failed with all settings"
            continue
        for one in setup.comparison.series:
            beam = int(one.name.split()[1])
            one.notes[name] = (batch if one.name.startswith("beam") else single)[beam].text()

        def measure(name: str = name, batch: Any = batch, single: Any = single) -> Measurement:
            values: dict[str, float] = {}
            for task, chosen in (("decoding", batch), ("latency", single)):
                for beam, settings in chosen.items():
                    outcome = run_ctranslate2(setup, folder, settings, task, beams=[beam])
                    outcomes = (outcome, None) if task == "decoding" else (None, outcome)
                    measurement = to_measurement(setup, name, *outcomes)
                    if measurement.reason:
                        return measurement
                    values |= measurement.values
            return Measurement(values)

        systems.append(System(name, measure))
    return systems


def tune(setup: DecodingSetup, folder: str, kind: str, task: str) -> dict[int, Settings]:
    """The fastest settings for each beam size."""
    cores = len(os.sched_getaffinity(0))
    shapes = {(cores, 1), (1, cores)} if task == "decoding" else {(1, 1), (1, cores)}
    best: dict[int, tuple[float, Settings]] = {}
    for backend in BACKENDS:
        for workers, threads in sorted(shapes):
            settings = Settings(kind, backend, workers, threads)
            subset = {"first": TUNING_SENTENCES, "sentences": LATENCY_TUNING_SENTENCES}
            outcome = run_ctranslate2(setup, folder, settings, task, batches=TOKENS_PER_BATCH, **subset)
            if outcome.result is None:
                log_progress(f"CTranslate2, {kind}, {settings.text()}: fails: {outcome.reason}")
                continue
            for found in outcome.result["decoded" if task == "decoding" else "single"]:
                seconds = found["seconds"] if task == "decoding" else statistics.median(found["seconds"])
                tried = Settings(kind, backend, workers, threads, found.get("batch", 0))
                log_progress(f"CTranslate2, {kind}, {task}, beam {found['beam']}, {tried.text()}: {seconds:.3g} s")
                if found["beam"] not in best or seconds < best[found["beam"]][0]:
                    best[found["beam"]] = seconds, tried
    return {beam: settings for beam, (_, settings) in best.items()}


def run_ctranslate2(
    setup: DecodingSetup,
    folder: str,
    settings: Settings,
    task: str,
    *,
    beams: Sequence[int] = BEAMS,
    batches: Sequence[int] = (),
    **subset: int,
) -> Outcome:
    """Run CTranslate2 in one process with these settings."""
    job = setup.job(
        f"ctranslate2-{settings.compute_type}",
        task,
        export=folder,
        compute_type=settings.compute_type,
        workers=settings.workers,
        threads=settings.threads,
        beams=beams,
        batch_sizes=batches or (settings.batch,),
        **subset,
    )
    return run_job("ctranslate2", job, variables=BACKENDS[settings.backend])


def huggingface(setup: DecodingSetup, entry: Entry) -> list[System]:
    """`generate` of transformers with the same weights; the faster batch size counts in every round."""
    return with_saccade_weights(
        setup, entry, lambda: export(setup.model, "huggingface"), batch_sizes=SENTENCES_PER_BATCH
    )


def eole(setup: DecodingSetup, entry: Entry) -> list[System]:
    """eole with the same weights."""
    return with_saccade_weights(setup, entry, lambda: eole_model(setup.model))


def with_saccade_weights(setup: DecodingSetup, entry: Entry, write: Callable[[], Path], **more: Any) -> list[System]:
    """A peer with Saccade's weights, converted by `write`."""
    try:
        folder = str(write())
    except NoModelError as error:
        setup.comparison.reasons[entry.name] = f"weights cannot be converted: {error}"
        return []

    def measure() -> Measurement:
        job = setup.job(entry.peer, "decoding", export=folder, **more)
        return to_measurement(setup, entry.name, run_job(entry.peer, job), None)

    return [System(entry.name, measure)]


def own_model(setup: DecodingSetup, entry: Entry) -> list[System]:
    """A peer with its own untrained model, whose outputs have a fixed length."""
    try:
        folder = str(peer_model(entry.peer, setup.size_name, setup.work))
    except NoModelError as error:
        setup.comparison.reasons[entry.name] = str(error)
        return []

    size = SIZES[setup.size_name]
    for one in setup.comparison.series:
        one.notes[entry.name] = "untrained weights" + ("" if size.length else f", {size.own_length} steps per output")

    def measure() -> Measurement:
        job = setup.job(entry.peer, "decoding", folder=folder, dropout=0.0, label_smoothing=0.0)
        job["size"]["length"] = size.own_length
        return to_measurement(setup, entry.name, run_job(entry.peer, job), None, scored=False)

    return [System(entry.name, measure)]


def to_measurement(
    setup: DecodingSetup, name: str, batch: Outcome | None, single: Outcome | None, *, scored: bool = True
) -> Measurement:
    """The best value for each beam size; also records BLEU if the model is trained."""
    for outcome in (batch, single):
        if outcome is not None and outcome.result is None:
            return Measurement(reason=outcome.reason)
    values: dict[str, float] = {}
    series = {one.name: one for one in setup.comparison.series}
    for found in batch.result["decoded"] if batch and batch.result else ():
        lines, key = read_lines(found["output"]), f"beam {found['beam']}"
        speed = len(lines) / found["seconds"]
        if speed > values.get(key, 0.0):
            values[key] = speed
            if scored and not SIZES[setup.size_name].length:
                series[key].scores[name] = bleu(lines, setup.work.folder / "test.target")
            if "setting" in found:
                series[key].notes[name] = found["setting"]
    for found in single.result["single"] if single and single.result else ():
        values[f"single {found['beam']}"] = 1000 * statistics.median(found["seconds"])
    return Measurement(values)


def bleu(outputs: Sequence[str], references: Path) -> float:
    """BLEU against the first references; it only shows that all systems did the same work."""
    return float(BLEU().corpus_score(list(outputs), [read_lines(references)[: len(outputs)]]).score)


def record_costs(comparison: Comparison, result: Mapping[str, Any] | None) -> None:
    """Record floating-point operations and bytes of weights per sentence, from the parameter counts."""
    if not result or not result.get("decoder_parameters"):
        return
    encoder, decoder = result["encoder_parameters"], result["decoder_parameters"] + result["output_parameters"]
    for one in comparison.series:
        kind, beam = one.name.split()
        target = result["target_tokens"][beam]
        if kind == "beam":
            one.flops_per_unit = 2 * (encoder * result["source_tokens"] + int(beam) * decoder * target)
        else:
            one.bytes_per_unit = 4 * (encoder + decoder * target)


def shortened(path: Path, lines: int) -> Path:
    """A file with the first lines of another."""
    short = path.with_name(f"{path.name}.{lines}")
    if not short.is_file():
        write_lines(short, read_lines(path)[:lines])
    return short

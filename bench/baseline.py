"""Compare two versions of Saccade: weights after training, outputs, logits and speed.

    SACCADE_DATA=data make bench-baseline ARGUMENTS="record --commit c1216ee"
    SACCADE_DATA=data make bench-baseline ARGUMENTS="compare --before c1216ee"
    SACCADE_DATA=data make bench-baseline ARGUMENTS="speed --before c1216ee --rounds 5"

`record` checks a commit out under .bench/versions, builds its kernels, and writes the SHA-256 of the weights after 200
updates (six presets, one and two threads, with and without kernels), the translations of 1,000 sentences and the logits
of 64 pairs. `compare` records the working tree too and prints the differences. Translations and logits of both versions
use the models that the first version trained, so that they show the forward pass alone. `speed` measures both versions
in alternating runs, each in a process of its own, and prints the median of the ratios.

Everything goes through the command line and the public Python interface, because the modules of two versions differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".bench" / "baseline"
VERSIONS = ROOT / ".bench" / "versions"
WORKING_TREE = "working-tree"

PRESETS = (
    "transformer-tiny",
    "transformer-local-tiny",
    "transformer-moe-tiny",
    "convs2s-tiny",
    "bahdanau-tiny",
    "lstmn-tiny",
)
UPDATES = 200
SENTENCES = 1000
DECODINGS = {"greedy": ("--beam", "1"), "beam5": ("--beam", "5"), "sampling": ("--sample", "--seed", "1")}


@dataclass(frozen=True)
class Version:
    """A version of the package: a source tree with compiled kernels, and one without."""

    name: str
    source: Path
    source_without_kernels: Path

    def environment(self, *, kernels: bool, threads: int) -> dict[str, str]:
        """The environment of a process that imports this version."""
        source = self.source if kernels else self.source_without_kernels
        return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": str(threads)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="record one commit")
    recording.add_argument("--commit", default=WORKING_TREE)
    comparing = commands.add_parser("compare", help="record the working tree and compare it with a recorded commit")
    comparing.add_argument("--before", required=True, help="a recorded commit")
    for command in (recording, comparing):
        command.add_argument("--presets", nargs="+", default=PRESETS)
        command.add_argument("--only", choices=("weights", "outputs"), help="only one of the two")
        command.add_argument("--runs", nargs="+", help="only these training runs, such as 2-threads 1-threads")
    timing = commands.add_parser("speed", help="measure both versions in alternating runs")
    timing.add_argument("--before", required=True)
    timing.add_argument("--rounds", type=int, default=5)
    timing.add_argument("--only", nargs="+", choices=tuple(SPEED_JOBS), default=tuple(SPEED_JOBS))
    timing.add_argument("--json", type=Path, help="file for the figures")
    job = commands.add_parser("job", help=argparse.SUPPRESS)  # runs inside the version that is imported
    job.add_argument("name")
    job.add_argument("settings", type=json.loads)
    options = parser.parse_args()
    if options.command == "job":
        print(json.dumps(JOBS[options.name](**options.settings)))
    elif options.command == "record":
        record(checkout(options.commit), checkout(options.commit), options)
    elif options.command == "compare":
        before = checkout(options.before)
        record(checkout(WORKING_TREE), before, options)
        sys.exit(0 if report(before, options) else 1)
    else:
        measure_speed(checkout(options.before), checkout(WORKING_TREE), options)


# ---------------------------------------------------------------------------------------------------------------------
# Versions


def checkout(commit: str) -> Version:
    """Check out a commit and compile its kernels; also copy it without kernels."""
    folder = VERSIONS / commit
    if commit == WORKING_TREE:
        source = ROOT / "src"
        shutil.rmtree(folder / "without-kernels", ignore_errors=True)
    else:
        source = folder / "tree" / "src"
        if not (folder / "built").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            source.parent.mkdir(parents=True)
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
            if archive.returncode:
                raise SystemExit(f"git has no commit {commit}: {archive.stderr.decode(errors='replace').strip()}")
            subprocess.run(["tar", "--extract", "--directory", str(source.parent)], input=archive.stdout, check=True)
            setup = (
                ["setup.py"] if (source.parent / "setup.py").is_file() else ["-c", "import setuptools as s; s.setup()"]
            )
            command = [sys.executable, *setup, "--quiet", "build_ext", "--inplace"]
            subprocess.run(command, cwd=source.parent, check=True)
            (folder / "built").touch()
    without = folder / "without-kernels" / "src"
    if not without.is_dir():
        shutil.copytree(source, without, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return Version(commit, source, without)


def run_job(version: Version, name: str, *, kernels: bool = True, threads: int = 2, **settings: Any) -> Any:
    """Run one of `JOBS` in a process that imports this version."""
    command = [sys.executable, "-m", "bench.baseline", "job", name, json.dumps(settings)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, env=version.environment(kernels=kernels, threads=threads), check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def run_command(version: Version, *words: str, kernels: bool, threads: int, log: Path) -> None:
    """Run the command line of this version; its messages go to a log."""
    command = [sys.executable, "-m", "saccade.cli.main", *words]
    environment = version.environment(kernels=kernels, threads=threads)
    with log.open("w", encoding="utf-8") as messages:
        done = subprocess.run(command, env=environment, stdout=messages, stderr=messages)
    if done.returncode:
        raise SystemExit(f"saccade {' '.join(words)} failed: see {log}")


# ---------------------------------------------------------------------------------------------------------------------
# Data


def data_files() -> dict[str, Path]:
    """Files of Multi30k from $SACCADE_DATA, or generated text of similar lengths."""
    folder = Path(os.environ.get("SACCADE_DATA", "data")) / "multi30k"
    names = {
        "source": "train.en",
        "target": "train.de",
        "valid_source": "val.en",
        "valid_target": "val.de",
        "test": "test_2016_flickr.en",
    }
    if not (folder / "train.en").is_file():
        folder = WORK / "generated"
        write_generated(folder, names)
    return {key: folder / name for key, name in names.items()}


def write_generated(folder: Path, names: Mapping[str, str]) -> None:
    """Write random sentences of Zipf-distributed words; a target is its source with every word replaced."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)

    def sentences(count: int) -> Iterator[list[int]]:
        for length in np.clip(generator.normal(12, 4, count).astype(int), 3, 40):
            yield list(generator.zipf(1.3, length) % 9000)

    def write(name: str, prefix: str, lines: list[list[int]]) -> None:
        text = "\n".join(" ".join(f"{prefix}{word}" for word in line) for line in lines)
        (folder / name).write_text(text + "\n", encoding="utf-8")

    for source, target, count in (("source", "target", 20000), ("valid_source", "valid_target", 1000)):
        lines = list(sentences(count))
        write(names[source], "w", lines)
        write(names[target], "u", lines)
    write(names["test"], "w", list(sentences(SENTENCES)))


# ---------------------------------------------------------------------------------------------------------------------
# Weights and outputs


def record(version: Version, trained_by: Version, options: argparse.Namespace) -> None:
    """Record the weights that a version trains, and its outputs with the models that `trained_by` trained."""
    if options.only != "outputs":
        for preset in options.presets:
            for name, settings in training_runs(preset, options.runs):
                record_training(version, preset, name, settings)
    if options.only != "weights":
        for preset in options.presets:
            record_outputs(version, trained_by, preset)


def training_runs(preset: str, chosen: Collection[str] | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The training runs of a preset by name: all, or the chosen ones."""
    for name, settings in all_training_runs(preset):
        if chosen is None or name in chosen:
            yield name, settings


def all_training_runs(preset: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every training run of a preset, by name."""
    for threads in (2, 1):
        for kernels in (True, False):
            name = f"{threads}-threads{'' if kernels else '-without-kernels'}"
            yield name, {"threads": threads, "kernels": kernels, "words": ()}
            if preset.startswith("transformer") and threads == 2:
                # Random masks depend on the layout of a batch: without dropout the layout shows in rounding alone.
                words = ("--model.dropout", "0")
                yield f"{name}-no-dropout", {"threads": threads, "kernels": kernels, "words": words}


def folder_of(version: Version, preset: str) -> Path:
    folder = WORK / version.name / preset
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def record_training(version: Version, preset: str, name: str, settings: Mapping[str, Any]) -> None:
    """Train 200 updates and write the hash of the weights and the validation loss."""
    folder, files = folder_of(version, preset), data_files()
    result = folder / f"{name}.json"
    if result.is_file() and version.name != WORKING_TREE:
        return
    output = folder / name
    shutil.rmtree(output, ignore_errors=True)
    pairs = [word for key in ("source", "target", "valid_source", "valid_target") for word in (flag(key), files[key])]
    began = time.perf_counter()
    run_command(
        version,
        *("train", "--preset", preset, *map(str, pairs), "--output", str(output)),
        *("--training.max-steps", str(UPDATES), "--data.batch-tokens", "2048", "--data.vocabulary", "4000"),
        *("--training.threads", str(settings["threads"]), "--training.valid-sentences", "20", *settings["words"]),
        kernels=settings["kernels"],
        threads=settings["threads"],
        log=folder / f"{name}.log",
    )
    found = {"weights": hash_of_weights(output / "model-last"), "loss": last_validation_loss(output)}
    result.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{version.name} {preset} {name}: {found['weights'][:12]} {time.perf_counter() - began:.0f} s", flush=True)


def flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def hash_of_weights(folder: Path) -> str:
    """SHA-256 over all tensors, independent of their names."""
    from safetensors import safe_open

    hashes = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            names = list(file.keys())
            tensors = [file.get_tensor(name) for name in names]
        hashes += [hashlib.sha256(str(x.shape).encode() + x.tobytes()).hexdigest() for x in tensors]
    assert hashes, f"no weights in {folder}"
    return hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()


def last_validation_loss(run: Path) -> float | None:
    """The last validation loss in metrics.csv."""
    import csv

    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("valid_loss")]
    return float(rows[-1]["valid_loss"]) if rows else None


def record_outputs(version: Version, trained_by: Version, preset: str) -> None:
    """Translate 1,000 sentences and compute the logits of 64 pairs with the model of another version."""
    run, folder, files = folder_of(trained_by, preset) / "2-threads", folder_of(version, preset), data_files()
    for kernels, precision in ((True, "float32"), (True, "int8"), (False, "float32")):
        for decoding, words in DECODINGS.items():
            name = f"{decoding}-{precision}{'' if kernels else '-without-kernels'}"
            output = folder / f"{name}.jsonl"
            if output.is_file() and version.name != WORKING_TREE:
                continue
            output.unlink(missing_ok=True)
            began = time.perf_counter()
            run_command(
                version,
                *("translate", str(run), "--input", str(files["test"]), "--output", str(output)),
                *("--engine", "torch", "--precision", precision, "--format", "jsonl", "--scores", *words),
                kernels=kernels,
                threads=2,
                log=folder / f"{name}.log",
            )
            print(f"{version.name} {preset} {name}: {time.perf_counter() - began:.0f} s", flush=True)
        if precision == "float32":
            logits = folder / f"logits{'' if kernels else '-without-kernels'}.npy"
            pairs = {"source": str(files["valid_source"]), "target": str(files["valid_target"])}
            run_job(version, "logits", kernels=kernels, run=str(run), output=str(logits), **pairs)


def report(before: Version, options: argparse.Namespace) -> bool:
    """Print how the working tree differs from a recorded version; true if nothing differs."""
    now, same = checkout(WORKING_TREE), True
    for preset in options.presets:
        old, new = folder_of(before, preset), folder_of(now, preset)
        if options.only != "outputs":
            for name, _ in training_runs(preset, options.runs):
                was, is_now = (json.loads((folder / f"{name}.json").read_text("utf-8")) for folder in (old, new))
                equal = was["weights"] == is_now["weights"]
                same &= equal
                losses = f"validation loss {was['loss']} before, {is_now['loss']} now"
                print(f"{preset:24} {name:40} {'equal weights' if equal else 'OTHER WEIGHTS; ' + losses}")
        if options.only != "weights":
            same &= report_outputs(preset, old, new)
    return same


def report_outputs(preset: str, old: Path, new: Path) -> bool:
    """Print which translations and logits differ; true if none does."""
    import numpy as np

    same = True
    for path in sorted(old.glob("*.jsonl")):
        was, is_now = (
            [json.loads(line) for line in file.read_text("utf-8").splitlines()] for file in (path, new / path.name)
        )
        texts = sum(one["text"] != other["text"] for one, other in zip(was, is_now, strict=True))
        exact = sum(one != other for one, other in zip(was, is_now, strict=True))
        same &= not exact
        print(f"{preset:24} {path.stem:40} {texts} of {len(was)} texts differ, {exact} with their scores")
    for path in sorted(old.glob("logits*.npy")):
        was, is_now = np.load(path), np.load(new / path.name)
        difference = float(np.abs(was - is_now).max())
        same &= difference == 0
        largest = float(np.abs(was).max())
        print(f"{preset:24} {path.stem:40} largest difference {difference:.2g}, largest logit {largest:.3g}")
    return same


# ---------------------------------------------------------------------------------------------------------------------
# Jobs, in a process that imports the version


def logits_job(run: str, source: str, target: str, output: str) -> dict[str, Any]:
    """Write the logits of 64 pairs, 0 on padding."""
    import numpy as np
    import torch

    import saccade
    from saccade.interface import Source

    translator = saccade.load(run, "cpu", engine="torch")
    texts = [Path(name).read_text(encoding="utf-8").splitlines()[:64] for name in (source, target)]
    tokenizers = translator.tokenizers
    sources = padded([[*ids, tokenizers.source.symbols.end] for ids in tokenizers.source.encode_batch(texts[0])])
    begin = tokenizers.target.symbols.begin
    prefixes = padded([[begin, *ids] for ids in tokenizers.target.encode_batch(texts[1])])
    pad = tokenizers.target.symbols.pad
    model = translator.model
    with torch.no_grad():
        memory = model.encode(Source(sources, sources != pad))
        logits = model.logits(model.decode(prefixes, memory).outputs)
    logits = logits.masked_fill((prefixes == pad)[:, :, None], 0)
    np.save(output, logits.numpy())
    return {}


def padded(rows: list[list[int]]) -> Any:
    """Ids (B, T), padded with 0."""
    import torch

    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def training_job(preset: str, updates: int, output: str, **files: str) -> dict[str, float]:
    """Target tokens per second of training, without the first tenth of the updates."""
    import csv

    import saccade

    shutil.rmtree(output, ignore_errors=True)
    saccade.train(
        {
            "model": {"preset": preset},
            "data": {**files, "vocabulary": 8000, "batch_tokens": 4096},
            "training": {"max_steps": updates, "log_every": max(1, updates // 10), "valid_sentences": 1, "samples": 0},
            "output": output,
        }
    )
    with (Path(output) / "timing.csv").open(encoding="utf-8", newline="") as file:
        rates = [float(row["tokens_per_second"]) for row in csv.DictReader(file)]
    return {"rate": statistics.median(rates[1:])}


def decoding_job(run: str, source: str, sentences: int, beam: int, precision: str, single: bool) -> dict[str, float]:
    """Sentences per second after a warmup, in one call or in one call per sentence."""
    import saccade
    from saccade import allocator

    for name in ("keep_freed_memory", "keep_memory"):  # its name now, and at commit c1216ee
        getattr(allocator, name, lambda: None)()
    lines = Path(source).read_text(encoding="utf-8").splitlines()[:sentences]
    translator = saccade.load(run, "cpu", engine="torch", precision=precision)

    def translate() -> float:
        began = time.perf_counter()
        for part in [[line] for line in lines] if single else [lines]:
            translator.translate(part, beam=beam, max_length=24)
        return time.perf_counter() - began

    translate()
    return {"rate": len(lines) / min(translate() for _ in range(2))}


JOBS = {"logits": logits_job, "training": training_job, "decoding": decoding_job}


# ---------------------------------------------------------------------------------------------------------------------
# Speed


def speed_jobs() -> dict[str, tuple[str, dict[str, Any]]]:
    """The jobs to measure and their settings, by name."""
    jobs: dict[str, tuple[str, dict[str, Any]]] = {
        "training-tiny": ("training", {"preset": "transformer-tiny", "updates": 100}),
        "training-base": ("training", {"preset": "transformer-base", "updates": 10}),
        "training-convs2s": ("training", {"preset": "convs2s-tiny", "updates": 30}),
        "training-bahdanau": ("training", {"preset": "bahdanau-tiny", "updates": 30}),
    }
    for size, batched, alone in (("tiny", 1000, 100), ("base", 100, 20)):
        for precision in ("float32", "int8"):
            for name, beam in (("greedy", 1), ("beam5", 5)):
                for single in (False, True):
                    settings = {"beam": beam, "precision": precision, "single": single}
                    settings |= {"run": size, "sentences": alone if single else batched}
                    mode = "single" if single else "batched"
                    jobs[f"decoding-{size}-{precision}-{name}-{mode}"] = ("decoding", settings)
    for family in ("convs2s", "bahdanau"):
        settings = {"run": family, "beam": 5, "precision": "float32", "single": False, "sentences": 300}
        jobs[f"decoding-{family}"] = ("decoding", settings)
    return jobs


SPEED_JOBS = speed_jobs()


def measure_speed(before: Version, now: Version, options: argparse.Namespace) -> None:
    """Print and save the speed ratios of both versions, job by job, in alternating runs."""
    files, figures = data_files(), {}
    models = {
        "tiny": folder_of(before, "transformer-tiny") / "2-threads",
        "convs2s": folder_of(before, "convs2s-tiny") / "2-threads",
        "bahdanau": folder_of(before, "bahdanau-tiny") / "2-threads",
        "base": WORK / "base",
    }
    training_files = {key: str(path) for key, path in files.items() if key != "test"}
    needs_base = any(SPEED_JOBS[name][1].get("run") == "base" for name in options.only)
    if needs_base and not (models["base"] / "model-last").is_dir():
        settings = {"preset": "transformer-base", "updates": 5, "output": str(models["base"]), **training_files}
        run_job(before, "training", **settings)
    for name in options.only:
        job, settings = SPEED_JOBS[name]
        if job == "training":
            settings = {**settings, "output": str(WORK / "speed"), **training_files}
        else:
            settings = {**settings, "run": str(models[settings["run"]]), "source": str(files["test"])}
        rates: list[tuple[float, float]] = []
        for number in range(options.rounds):
            order = (before, now) if number % 2 == 0 else (now, before)
            found = {version.name: run_job(version, job, **settings)["rate"] for version in order}
            rates.append((found[before.name], found[now.name]))
        ratios = [new / old for old, new in rates]
        medians = [statistics.median(column) for column in zip(*rates, strict=True)]
        figures[name] = {"before": medians[0], "now": medians[1], "ratios": ratios}
        print(
            f"{name:40} {medians[0]:10.1f} before {medians[1]:10.1f} now  "
            f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

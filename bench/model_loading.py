"""Cost of verification: the time to load a model folder with and without SHA-256 checks.

make bench-load
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.model_folder import (
    ModelFolder,
    load_model_folder,
    read_model_folder,
    save_model_folder,
    vocabulary_sizes,
)
from saccade.models.registry import choose


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", default="transformer-tiny,transformer-base")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tokenizers = train_tokenizers([Pair("a", "b")], DataConfig(tokenizer="byte"))
    found = {}
    for preset in options.presets.split(","):
        folder = Path(tempfile.mkdtemp(prefix="load-")) / "model"
        choice = choose({"preset": preset})
        save_model_folder(folder, ModelFolder(choice.build(vocabulary_sizes(tokenizers)), choice, tokenizers))
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        names = frozenset(file.name for file in folder.iterdir())
        verified, plain = [], []
        for _ in range(options.rounds):  # alternating, so that drift of the machine affects both
            verified.append(seconds(lambda folder=folder: load_model_folder(folder)))
            plain.append(seconds(lambda folder=folder, names=names: read_model_folder(folder, names, "cpu")))
        share = statistics.median(both / alone - 1 for both, alone in zip(verified, plain, strict=True))
        both, alone = statistics.median(verified), statistics.median(plain)
        found[preset] = {"megabytes": size, "verified": both, "unverified": alone, "share": share}
        print(f"{preset}: {size:.0f} MB, {1000 * both:.0f} ms verified, {1000 * alone:.0f} ms unverified: {share:+.1%}")
        shutil.rmtree(folder.parent)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def seconds(call: Callable[[], object]) -> float:
    """The duration of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()

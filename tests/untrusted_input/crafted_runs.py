"""Run directories with invalid files."""

from __future__ import annotations

from pathlib import Path

from untrusted_input.case import Catalog

RUNS = Catalog()
"""Each case writes invalid content into one file of a valid run; it is rejected with the file named, or is ignored."""

RUBBISH = {
    "nothing": b"",
    "all_bytes": bytes(range(256)) * 20,
    "nul_bytes": b"\0" * 5000,
    "a_list": b"[1]",
    "an_object": b"{}",
    "a_long_number": b"9" * 6000,
    "words": b"hello\n",
    "a_long_cell": b"a,b\n" + b"x" * 300_000 + b",1,2,3\n",
}


def rubbish(name: str, content: bytes) -> None:
    """Add a case for each file that is read again."""
    files = ("config.yaml", "data.json", "tokenizers/tokenizer.json", "metrics.csv", "timing.csv", "eval/test.json")
    for file in files:

        def make(run: Path, file: str = file) -> None:
            (run / file).parent.mkdir(exist_ok=True)
            (run / file).write_bytes(content)

        RUNS.add(f"{file}_is_{name}", make, Path(file).name, "")


for label, octets in RUBBISH.items():
    rubbish(label, octets)

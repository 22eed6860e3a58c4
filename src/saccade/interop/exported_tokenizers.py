"""Tokenizers in an export for ONNX Runtime or CTranslate2.

A tokenizer is written for the tokenizers library, as for Hugging Face. A SentencePiece model is copied, for the
sentencepiece package; `pieces.json` lists its pieces by the ids of the exported model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.folder import write_json
from saccade.interop.huggingface_tokenizer import TARGET, TOKENIZER, save_tokenizer

SENTENCEPIECE_MODEL, PIECES = "tokenizer.model", "pieces.json"


def save_tokenizers(folder: Path, tokenizers: Tokenizers, max_length: int) -> None:
    """Write the source tokenizer and, if it differs, the target tokenizer into a subfolder."""
    for subfolder, tokenizer in by_subfolder(tokenizers):
        path = folder / subfolder
        path.mkdir(exist_ok=True)
        if tokenizer.model_bytes is None:
            save_tokenizer(path, tokenizer, max_length)
        else:
            (path / SENTENCEPIECE_MODEL).write_bytes(tokenizer.model_bytes)
            write_json(path / PIECES, tokenizer.vocabulary)


def by_subfolder(tokenizers: Tokenizers) -> Iterator[tuple[str, Tokenizer]]:
    """Yield the subfolder of each tokenizer, once for a joint vocabulary."""
    yield "", tokenizers.source
    if tokenizers.source is not tokenizers.target:
        yield TARGET, tokenizers.target


def tokenizer_files(tokenizers: Tokenizers) -> dict[str, str]:
    """Return the paths of the source and target tokenizers in the folder of an export."""
    names = [
        str(Path(subfolder, TOKENIZER if tokenizer.model_bytes is None else SENTENCEPIECE_MODEL).as_posix())
        for subfolder, tokenizer in by_subfolder(tokenizers)
    ]
    return {"source": names[0], "target": names[-1]}

"""SentencePiece models trained on generated text, for tests; they need the optional package."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from typing import Any

import pytest

package: Any = pytest.importorskip("sentencepiece", reason="pip install 'saccade[sentencepiece]' to run these tests")

LETTERS = "aabcdeeefghiiklmnnoprsttu"
RARE = "äöüßéçñжя漢字한の0123456789.,!?-'\"()<>/▁ﬁ①Ａe\u0301\u00a0\u3000☃👩\u200d👩"
MODELS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram-bytes": {"byte_fallback": True, "vocab_size": 500},
    "bpe": {"model_type": "bpe"},
    "bpe-bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 500},
    "char": {"model_type": "char", "vocab_size": 60, "hard_vocab_limit": False},
    "symbols": {"user_defined_symbols": ["@@", "<2de>"], "control_symbols": ["<2en>"], "pad_id": 3},
    "raw": {"normalization_rule_name": "identity", "add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "suffix": {"treat_whitespace_as_suffix": True, "split_digits": True},
}


def sentences(seed: int, count: int, *, rare: float = 0.0) -> list[str]:
    """Random sentences of random words; a fraction `rare` of the characters is unusual."""
    chooser = random.Random(seed)
    words = ["".join(chooser.choices(LETTERS, k=chooser.randint(1, 9))) for _ in range(400)]
    lines = []
    for _ in range(count):
        line = " ".join(chooser.choices(words, k=chooser.randint(1, 9)))
        lines.append("".join(chooser.choice(RARE) if chooser.random() < rare else letter for letter in line))
    return lines


def train_model(texts: Sequence[str], **options: Any) -> bytes:
    """Train a SentencePiece model and return it as bytes."""
    writer = io.BytesIO()
    package.SentencePieceTrainer.train(
        **{"vocab_size": 200, "minloglevel": 2, "character_coverage": 1.0} | options,
        sentence_iterator=iter(texts),
        model_writer=writer,
    )
    return writer.getvalue()


def reference_processor(serialized: bytes) -> Any:
    """Return the package's own tokenizer of a model."""
    processor = package.SentencePieceProcessor()
    processor.LoadFromSerializedProto(serialized)
    return processor

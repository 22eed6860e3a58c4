"""The two model sizes of the benchmarks, with their number of updates and sentences."""

from __future__ import annotations

from dataclasses import dataclass

BATCH_TOKENS = 4096
DROPOUT = 0.3
LABEL_SMOOTHING = 0.1


@dataclass(frozen=True)
class Size:
    """One size of the Transformer, with equally many encoder and decoder layers."""

    preset: str
    pieces: int
    layers: int
    width: int
    feed_forward: int
    heads: int
    warmup: int  # updates before measuring starts
    updates: int  # measured updates per round
    sentences: int  # test sentences to decode
    length: int | None  # fixed output length in decoding; None: until the end-of-sequence token
    own_length: int  # fixed output length of peers with their own, untrained model


SIZES = {
    "tiny": Size(
        "transformer-tiny", 8_000, 4, 128, 256, 4, warmup=8, updates=40, sentences=1000, length=None, own_length=14
    ),
    # Too large to train here, so all decoders write outputs of the length of a caption.
    "base": Size(
        "transformer-base", 32_000, 6, 512, 2048, 8, warmup=1, updates=4, sentences=100, length=15, own_length=15
    ),
}

"""The two sizes that are measured, and how many updates of each."""

from __future__ import annotations

from dataclasses import dataclass

BATCH_TOKENS = 4096
DROPOUT = 0.3
LABEL_SMOOTHING = 0.1


@dataclass(frozen=True)
class Size:
    """One size of the Transformer, with as many layers in the decoder as in the encoder."""

    preset: str
    pieces: int
    layers: int
    width: int
    feed_forward: int
    heads: int
    warmup: int  # updates before the clock starts
    updates: int  # updates a round
    sentences: int  # of the test set that are decoded
    length: int | None  # tokens of every output in decoding; None: the model says when it ends
    own_length: int  # steps of every output of a peer with a model of its own, which has learnt nothing


SIZES = {
    "tiny": Size(
        "transformer-tiny", 8_000, 4, 128, 256, 4, warmup=8, updates=40, sentences=1000, length=None, own_length=14
    ),
    # An hour on a laptop teaches this one nothing, so all decoders write as many tokens as a caption has.
    "base": Size(
        "transformer-base", 32_000, 6, 512, 2048, 8, warmup=1, updates=4, sentences=100, length=15, own_length=15
    ),
}

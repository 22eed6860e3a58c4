"""ByteNet: Kalchbrenner et al., Neural Machine Translation in Linear Time, arXiv 1610.10099v2, 2016.

Two stacks of dilated convolutions: position t of the decoder reads column t of the encoder, and there is no attention.
The encoder computes more columns than the source has characters, an estimate of the maximum target length:
|t^| = a|s| + b, by default 1.2|s| (section 3.2, dynamic unfolding).

The columns after the source encode a learned filler embedding; a target with more positions reads zeros.
Departures: a linear map joins the embedding of the target and the encoder's column, both of the width of the residual
stream; dropout is added; the multiplicative blocks of the paper's language model and the bags of n-grams of its first
version are left out.
"""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import Decoded, Memory, OutputProjection, Source, Step, VocabularySizes
from saccade.layers.convolution import Convolution, ConvolutionCache, Projection
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.masks import padding_mask
from saccade.models.family import Costs, Family, ModelConfig, inverse_sqrt_training
from saccade.ops.dropout import dropout


class ByteNetConfig(ModelConfig):
    """Settings of ByteNet; the defaults are the paper's translation model, whose width is twice its d of 800."""

    width: int = Field(1600, ge=2)
    """Width of the residual stream and of the embeddings, 2d in the paper; the blocks are half as wide inside."""
    encoder_layers: int = Field(30, ge=1)
    """Residual blocks of the encoder."""
    decoder_layers: int = Field(30, ge=1)
    """Residual blocks of the decoder."""
    encoder_kernel: int = Field(3, ge=1)
    """Kernel size of the encoder convolutions, an odd number."""
    decoder_kernel: int = Field(3, ge=2)
    """Kernel size of the causal decoder convolutions."""
    dilation_cycle: int = Field(5, ge=1, le=10)
    """Blocks over which the dilation doubles, 1, 2, 4, …; then it starts at 1 again."""
    length_ratio: float = Field(1.2, gt=0, le=10)
    """Dynamic unfolding: encoder positions per source token, a in the paper."""
    length_constant: int = Field(0, ge=0, le=1000)
    """Dynamic unfolding: encoder positions in addition, b in the paper."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the embeddings and of each block's output before the residual sum."""
    tie_output: bool = False
    """Tie output layer and target embedding."""

    @model_validator(mode="after")
    def sizes_fit(self) -> ByteNetConfig:
        """Check that the width is even, for the blocks halve it, and that the encoder kernel has a center."""
        if self.width % 2:
            raise ValueError(f"width {self.width} cannot be halved: give an even number")
        if self.encoder_kernel % 2 == 0:
            raise ValueError(f"encoder-kernel {self.encoder_kernel} has no middle: give an odd number")
        return self

    def columns(self, length: int) -> int:
        """Return |t^|, the number of encoder columns for a source length (section 3.2); at least that length."""
        return max(length, math.ceil(self.length_ratio * length + self.length_constant - 1e-6))


PRESETS = {
    "bytenet-tiny": ByteNetConfig(width=256, encoder_layers=10, decoder_layers=10, dropout=0.1),
    "bytenet-paper": ByteNetConfig(),
}

MINIATURE = ByteNetConfig(width=16, encoder_layers=2, decoder_layers=3, dilation_cycle=2)
"""The size that the contract tests use."""


class ByteNetState(NamedTuple):
    """The decoder's state between two steps."""

    position: int
    caches: tuple[ConvolutionCache, ...]  # of each block's convolution: the last (kernel - 1)·dilation inputs (N, D/2)


class Block(nn.Module):
    """A residual block (section 3.6, with ReLU): from 2d to d, a dilated convolution, back to 2d, each after a norm."""

    def __init__(self, config: ByteNetConfig, kernel: int, dilation: int, *, causal: bool) -> None:
        super().__init__()
        width, inner = config.width, config.width // 2
        self.probability = config.dropout
        self.first_norm = nn.LayerNorm(width)
        self.narrow = Projection(width, inner, gain=2.0)  # a ReLU halves the second moment
        self.second_norm = nn.LayerNorm(inner)
        self.convolution = Convolution(inner, inner, kernel, dilation=dilation, causal=causal, gain=2.0)
        self.third_norm = nn.LayerNorm(inner)
        self.widen = Projection(inner, width, gain=2.0)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        """Compute the block for x (B, T, D); where padding (B, T, 1) is True, the convolution reads zeros."""
        inputs = self.convolution_inputs(x)  # (B, T, D/2)
        if padding is not None:
            inputs = inputs.masked_fill(padding, 0.0)
        return self.residual_sum(x, self.convolution(inputs))

    def step(self, x: Tensor, cache: ConvolutionCache) -> tuple[Tensor, ConvolutionCache]:
        """Compute the block for one new position x (N, D)."""
        convolved, cache = self.convolution.step(self.convolution_inputs(x), cache)
        return self.residual_sum(x, convolved), cache

    def convolution_inputs(self, x: Tensor) -> Tensor:
        """Return the convolution's inputs: (..., D) to (..., D/2)."""
        return F.relu(self.second_norm(self.narrow(F.relu(self.first_norm(x)))))

    def residual_sum(self, x: Tensor, convolved: Tensor) -> Tensor:
        """Return the residual stream x (..., D) plus the convolution's outputs (..., D/2), widened."""
        return x + dropout(self.widen(F.relu(self.third_norm(convolved))), self.probability, self.training)


class ByteNet(nn.Module):
    """A decoder of causal dilated convolutions that reads the columns of an encoder of dilated convolutions."""

    max_target_positions = None  # columns beyond those of the encoder are zeros

    def __init__(self, config: ByteNetConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.source_embedding, self.target_embedding = token_embeddings(sizes, width, config.dropout)
        # Without columns after the source the filler would get no gradient.
        self.filler: nn.Parameter | None = None
        if config.length_ratio > 1 or config.length_constant:
            self.filler = nn.Parameter(torch.empty(width))
            nn.init.normal_(self.filler)
        self.encoder = nn.ModuleList(
            Block(config, config.encoder_kernel, 2 ** (layer % config.dilation_cycle), causal=False)
            for layer in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            Block(config, config.decoder_kernel, 2 ** (layer % config.dilation_cycle), causal=True)
            for layer in range(config.decoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.join = Projection(2 * width, width)
        self.decoder_norm = nn.LayerNorm(width)
        self.last = Projection(width, width, gain=2.0)
        self.output = OutputLayer(width, self.target_embedding.table, tied=config.tie_output)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids; `extra` has all columns (B, U, D), the states those of the source."""
        assert isinstance(source.values, Tensor)
        lengths = [self.config.columns(length) for length in source.mask.sum(1).tolist()]
        unfolded = padding_mask(torch.tensor(lengths, device=source.mask.device))  # (B, U)
        padding = ~unfolded[:, :, None]  # (B, U, 1)
        x = fitted(self.source_embedding(source.values), unfolded.size(1))  # (B, U, D)
        if self.filler is not None:
            x = torch.where(fitted(source.mask[:, :, None], unfolded.size(1)), x, self.filler)
        for block in self.encoder:
            x = block(x, padding)  # (B, U, D)
        columns = self.encoder_norm(x).masked_fill(padding, 0.0)
        return Memory(fitted(columns, source.mask.size(1)), source.mask, extra=columns)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T): the target shifted right by one."""
        columns = fitted(memory.extra, prefix.size(1))  # (B, T, D)
        x = self.join(torch.cat([self.target_embedding(prefix), columns], -1))  # (B, T, D)
        for block in self.decoder:
            x = block(x)  # (B, T, D)
        return Decoded(self.finish(x))

    def start(self, memory: Memory) -> ByteNetState:
        """Return the initial state: the convolutions read zeros before the first position."""
        return ByteNetState(0, tuple(block.convolution.empty_cache(memory.states) for block in self.decoder_blocks()))

    def step(self, token: Tensor, state: ByteNetState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position: token (N,), N = B·W; the W hypotheses of a sentence read one column."""
        column = fitted(memory.extra[:, state.position :], 1).squeeze(1)  # (B, D)
        column = column.repeat_interleave(len(token) // max(1, len(column)), 0)  # (N, D)
        embedded = self.target_embedding(token[:, None]).squeeze(1)  # (N, D)
        x = self.join(torch.cat([embedded, column], -1))  # (N, D)
        caches: list[ConvolutionCache] = []
        for block, cache in zip(self.decoder_blocks(), state.caches, strict=True):
            x, cache = block.step(x, cache)
            caches.append(cache)
        return Step(self.finish(x), ByteNetState(state.position + 1, tuple(caches)))

    def finish(self, x: Tensor) -> Tensor:
        """Return the final 1x1 convolution, (..., D) to (..., D)."""
        return F.relu(self.last(F.relu(self.decoder_norm(x))))

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (..., V) of outputs (..., D)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)

    def decoder_blocks(self) -> list[Block]:
        """Return the blocks of the decoder, typed."""
        return cast("list[Block]", self.decoder)


def fitted(x: Tensor, length: int) -> Tensor:
    """Truncate x (B, T, D), or pad it with zeros, to a length."""
    return F.pad(x[:, :length], (0, 0, 0, max(0, length - x.size(1))))


FAMILY = Family(
    "Kalchbrenner et al. 2016",
    ByteNet,
    ByteNetConfig,
    PRESETS,
    MINIATURE,
    Costs("O(k n d^2)", "O(1)", "O(log_k n)"),
    recipe={
        "data": {"tokenizer": "char"},
        "training": inverse_sqrt_training(1e-3),
    },
    variants=(
        {"length_ratio": 1.0},
        {"length_ratio": 0.5, "length_constant": 6},
        {"tie_output": True, "decoder_kernel": 2, "encoder_kernel": 5},
    ),
    attention=frozenset(),
)

"""The Transformer: Vaswani et al., Attention Is All You Need, NIPS 2017."""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from saccade.interface import Attention, AttentionKind, Decoded, Memory, OfMemory, Source, Step, VocabularySizes
from saccade.layers.attention import apart, side_by_side
from saccade.layers.embedding import Embedding, embedding_table
from saccade.layers.feed_forward import FeedForward
from saccade.layers.multi_head import CrossAttention, KeysValues, SelfAttention
from saccade.layers.positions import PositionKind
from saccade.layers.residual import NormPlace, Residual
from saccade.models.family import Costs, Family, ModelConfig


class TransformerConfig(ModelConfig):
    """Settings of the Transformer; the defaults are the paper's base model (table 3)."""

    encoder_layers: int = Field(6, ge=1)
    """Layers of the encoder, N in the paper."""
    decoder_layers: int = Field(6, ge=1)
    """Layers of the decoder."""
    feed_forward: int = Field(2048, ge=1)
    """Inner width of the feed-forward networks, d_ff."""
    heads: int = Field(8, ge=1)
    """Attention heads, h; they share the width evenly."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of each sublayer's output and of the embeddings, P_drop."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the attention weights; above 0 the fused kernel of the CPU is lost."""
    norm: NormPlace = "post"
    """Layer normalisation after the residual sum, as in the paper, or before the sublayer."""
    positions: PositionKind = "sinusoidal"
    """How places are told apart."""
    max_positions: int = Field(1024, ge=1)
    """Longest sequence with learned positions."""
    embeddings: Literal["auto", "shared", "separate"] = "auto"
    """One embedding table for both sides, or one each; auto shares when the vocabulary is joint."""
    tie_output: bool = True
    """Use the target embedding as the output layer (section 3.4)."""

    @model_validator(mode="after")
    def heads_divide_width(self) -> TransformerConfig:
        """Each head gets an equal share of the width, and sinusoids come in pairs."""
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared evenly by {self.heads} heads")
        return self


# The paper puts the norm last; the two small sizes put it first, or they learn far more slowly (docs/log.md).
PRESETS = {
    "transformer-tiny": TransformerConfig(
        encoder_layers=4, decoder_layers=4, width=128, feed_forward=256, heads=4, dropout=0.2, norm="pre"
    ),
    "transformer-small": TransformerConfig(
        encoder_layers=6, decoder_layers=6, width=256, feed_forward=1024, heads=4, dropout=0.2, norm="pre"
    ),
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(width=1024, feed_forward=4096, heads=16, dropout=0.3),
}

MINIATURE = TransformerConfig(encoder_layers=2, decoder_layers=2, width=16, feed_forward=32, heads=2, dropout=0.0)
"""Small enough for the laws."""


class LayerState(NamedTuple):
    """What one decoder layer keeps between steps."""

    past: KeysValues  # of the target so far
    memory: OfMemory[KeysValues]  # projected once


class LayerOutput(NamedTuple):
    """A decoder layer's output and, if recorded, where it looked."""

    x: Tensor
    self_weights: Tensor | None
    cross_weights: Tensor | None


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in a residual."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout)
        self.attention_residual = Residual(config.width, config.dropout, config.norm)
        self.feed_forward = FeedForward(config.width, config.feed_forward)
        self.feed_forward_residual = Residual(config.width, config.dropout, config.norm)

    def forward(self, x: Tensor, mask: Tensor, record: bool) -> tuple[Tensor, Tensor | None]:
        """x (B, S, D), mask (B, 1, 1, S)."""
        attended = self.attention(self.attention_residual.before(x), mask, record=record)
        x = self.attention_residual.after(x, attended.context)
        x = self.feed_forward_residual.after(x, self.feed_forward(self.feed_forward_residual.before(x)))
        return x, attended.weights


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the memory, feed-forward, each in a residual."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config.width, config.heads, config.attention_dropout)
        self.attention_residual = Residual(config.width, config.dropout, config.norm)
        self.cross = CrossAttention(config.width, config.heads, config.attention_dropout)
        self.cross_residual = Residual(config.width, config.dropout, config.norm)
        self.feed_forward = FeedForward(config.width, config.feed_forward)
        self.feed_forward_residual = Residual(config.width, config.dropout, config.norm)

    def forward(self, x: Tensor, memory: Memory, mask: Tensor, record: bool) -> LayerOutput:
        """All places at once: x (B, T, D), mask (B, 1, 1, S)."""
        attended = self.attention(self.attention_residual.before(x), causal=True, record=record)
        x = self.attention_residual.after(x, attended.context)
        crossed = self.cross(self.cross_residual.before(x), self.cross.project(memory.states), mask, record=record)
        x = self.cross_residual.after(x, crossed.context)
        x = self.feed_forward_residual.after(x, self.feed_forward(self.feed_forward_residual.before(x)))
        return LayerOutput(x, attended.weights, crossed.weights)

    def start(self, memory: Memory) -> LayerState:
        """An empty past, and the memory's keys and values."""
        return LayerState(self.attention.empty(memory.states), OfMemory(self.cross.project(memory.states)))

    def step(self, x: Tensor, state: LayerState, mask: Tensor, record: bool) -> tuple[LayerOutput, LayerState]:
        """One more place of N hypotheses: x (N, 1, D), mask (B, 1, 1, S)."""
        attended, past = self.attention.step(self.attention_residual.before(x), state.past, record=record)
        x = self.attention_residual.after(x, attended.context)
        queries = side_by_side(self.cross_residual.before(x).squeeze(1), mask.size(0))  # (B, W, D)
        crossed = self.cross(queries, state.memory.value, mask, record=record)
        x = self.cross_residual.after(x, crossed.context.reshape(x.shape))
        x = self.feed_forward_residual.after(x, self.feed_forward(self.feed_forward_residual.before(x)))
        looks = None if crossed.weights is None else apart(crossed.weights)
        return LayerOutput(x, attended.weights, looks), LayerState(past, state.memory)


class Transformer(nn.Module):
    """Encoder and decoder stacks of attention and feed-forward layers; no recurrence, no convolution."""

    def __init__(self, config: TransformerConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, longest = config.width, config.max_positions
        self.longest = longest if config.positions == "learned" else None
        shared = sizes.joint if config.embeddings == "auto" else config.embeddings == "shared"
        if shared and not sizes.joint:
            raise ValueError("shared embeddings need a joint vocabulary: set data.joint, or separate embeddings")
        target_table = embedding_table(sizes.target, width)
        source_table = target_table if shared else embedding_table(sizes.source, width)
        self.source_embedding = Embedding(source_table, config.dropout, config.positions, longest)
        self.target_embedding = Embedding(target_table, config.dropout, config.positions, longest)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        # Pre-norm leaves the last sum unnormalised (Xiong et al. 2020); post-norm has nothing left to do here.
        pre = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(width) if pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if pre else nn.Identity()
        self.output_table = target_table if config.tie_output else embedding_table(sizes.target, width)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """source.values (B, S) ids."""
        assert isinstance(source.values, Tensor)
        mask = source.mask[:, None, None]  # (B, 1, 1, S)
        x = self.source_embedding(source.values)  # (B, S, D)
        looks: list[Tensor | None] = []
        for layer in self.encoder:
            x, weights = layer(x, mask, record)
            looks.append(weights)
        return Memory(self.encoder_norm(x), source.mask, attention=records("encoder-self", looks))

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """prefix (B, T): the target shifted right by one, so that place t predicts token t."""
        mask = memory.mask[:, None, None]  # (B, 1, 1, S)
        x = self.target_embedding(prefix)  # (B, T, D)
        outputs: list[LayerOutput] = []
        for layer in self.decoder:
            outputs.append(layer(x, memory, mask, record))
            x = outputs[-1].x
        return Decoded(self.decoder_norm(x), decoder_records(outputs))

    def start(self, memory: Memory) -> tuple[LayerState, ...]:
        """Empty caches, and the keys and values of the memory."""
        return tuple(layer.start(memory) for layer in self.decoder_layers())

    def step(self, token: Tensor, state: tuple[LayerState, ...], memory: Memory, *, record: bool = False) -> Step:
        """token (N,)."""
        mask = memory.mask[:, None, None]  # (B, 1, 1, S)
        place = state[0].past.keys.size(2)
        x = self.target_embedding(token[:, None], place)  # (N, 1, D)
        outputs: list[LayerOutput] = []
        states: list[LayerState] = []
        for layer, past in zip(self.decoder_layers(), state, strict=True):
            output, new = layer.step(x, past, mask, record)
            outputs.append(output)
            states.append(new)
            x = output.x
        return Step(self.decoder_norm(x).squeeze(1), tuple(states), decoder_records(outputs))

    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder's layers with their type, which a module list forgets."""
        return cast("list[DecoderLayer]", self.decoder)

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return F.linear(outputs, self.output_table)


def records(kind: AttentionKind, looks: list[Tensor | None]) -> tuple[Attention, ...]:
    """One record a layer that was asked to keep its weights."""
    return tuple(Attention(kind, layer, weights) for layer, weights in enumerate(looks) if weights is not None)


def decoder_records(outputs: list[LayerOutput]) -> tuple[Attention, ...]:
    """Self-attention of every layer, then cross-attention of every layer."""
    own = records("decoder-self", [output.self_weights for output in outputs])
    return own + records("cross", [output.cross_weights for output in outputs])


FAMILY = Family(
    "Vaswani et al. 2017",
    Transformer,
    TransformerConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n^2 d)", "O(1)", "O(1)"),
    variants=(
        {"norm": "pre"},
        {"positions": "learned", "max_positions": 64},
        {"positions": "none"},
        {"tie_output": False},
    ),
    attention=frozenset({"encoder-self", "decoder-self", "cross"}),
    unordered={"positions": "none"},
)

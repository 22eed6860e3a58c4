"""The Transformer: Vaswani et al., Attention Is All You Need, NIPS 2017.

Variants by setting: self-attention within a radius (section 4), cross-attention within a radius of the target position
(Luong et al. 2015, local-m), a mixture of experts instead of every other feed-forward network (Shazeer et al. 2017),
position vectors concatenated with the embeddings instead of added.

Equation and section numbers are those of Vaswani et al. Sequences are packed: N positions of all sentences of a batch,
without padding (ops/packed.py). Departures: docs/papers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, cast

from pydantic import Field, model_validator
from torch import Tensor, nn

from saccade.config_help import HelpGroup
from saccade.interface import (
    Attention,
    AttentionKind,
    Auxiliary,
    Decoded,
    Memory,
    OutputProjection,
    PerSentence,
    Source,
    Step,
    VocabularySizes,
)
from saccade.layers.embedding import Embedding, OutputLayer, embedding_table
from saccade.layers.feed_forward import FeedForward
from saccade.layers.local_attention import LocalSelfAttention
from saccade.layers.local_cross_attention import Band, LocalCrossAttention
from saccade.layers.mixture_of_experts import SUMS, MixtureOfExperts, Routing, auxiliary_loss
from saccade.layers.multi_head import CrossAttention, SelfAttention
from saccade.layers.positions import PositionKind, PositionUse
from saccade.layers.residual import Hidden, NormPlacement, Residual
from saccade.models.family import Costs, Family, ModelConfig
from saccade.ops.kv_cache import KVCache, MemoryCache
from saccade.ops.packed import PackedLayout
from saccade.symbols import Symbols

MIXTURE_OF_EXPERTS = HelpGroup("Mixture of experts")


class TransformerConfig(ModelConfig):
    """Settings of the Transformer; the defaults are the paper's base model (table 3)."""

    encoder_layers: int = Field(6, ge=1)
    """Layers of the encoder, N in the paper."""
    decoder_layers: int = Field(6, ge=1)
    """Layers of the decoder."""
    feed_forward: int = Field(2048, ge=1)
    """Inner size of the feed-forward networks, d_ff."""
    heads: int = Field(8, ge=1)
    """Attention heads, h; each has width / heads dimensions."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of the embeddings and of each sublayer's output, P_drop."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the attention weights; above 0, the fused CPU kernel cannot be used."""
    norm: NormPlacement = "post"
    """Layer normalization: post (after the residual sum, as in the paper) or pre (before the sublayer)."""
    positions: PositionKind = "sinusoidal"
    """Position encoding: sinusoidal, learned or none."""
    max_positions: int = Field(1024, ge=1)
    """Maximum sequence length with learned positions."""
    position_use: PositionUse = "add"
    """add position vectors to the embeddings, as in the paper, or concatenate them with narrower embeddings."""
    position_width: int = Field(32, ge=1)
    """Dimensions of concatenated position vectors."""
    radius: int | None = Field(None, ge=1)
    """Restrict self-attention to this many positions on each side (section 4)."""
    cross_radius: int | None = Field(None, ge=1)
    """Restrict cross-attention to this many positions around the aligned one (Luong et al. 2015, local-m)."""
    cross_length_ratio: float = Field(1.0, gt=0, le=100)
    """With cross-radius: source positions per target position, for the aligned position."""
    experts: Annotated[int, MIXTURE_OF_EXPERTS] = Field(0, ge=0)
    """Experts per mixture-of-experts layer; 0 for plain feed-forward layers (Shazeer et al. 2017)."""
    experts_per_token: Annotated[int, MIXTURE_OF_EXPERTS] = Field(2, ge=1)
    """Experts per token, k."""
    experts_every: Annotated[int, MIXTURE_OF_EXPERTS] = Field(2, ge=1)
    """Use experts in every n-th layer: 2 for the second, fourth, and so on."""
    expert_noise: Annotated[bool, MIXTURE_OF_EXPERTS] = False
    """Noisy top-k gating in training (Shazeer et al. 2017, eq. 4)."""
    capacity_factor: Annotated[float, MIXTURE_OF_EXPERTS] = Field(1.25, gt=0)
    """Expert capacity in training, as a multiple of an even share of the tokens; tokens above it are dropped."""
    balance_weight: Annotated[float, MIXTURE_OF_EXPERTS] = Field(0.01, ge=0)
    """Weight of the load-balancing loss (Fedus et al. 2021, alpha)."""
    embeddings: Literal["auto", "shared", "separate"] = "auto"
    """shared or separate embeddings of source and target; auto shares them if the vocabulary is joint."""
    tie_output: bool = True
    """Tie output layer and target embedding (section 3.4)."""

    @model_validator(mode="after")
    def check_heads_divide_width(self) -> TransformerConfig:
        """Check that the width can be split into heads."""
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared evenly by {self.heads} heads")
        return self

    @model_validator(mode="after")
    def check_position_width(self) -> TransformerConfig:
        """Check that there are position vectors to concatenate, narrower than the model."""
        if self.position_use == "concatenate":
            if self.positions == "none":
                raise ValueError("there are no positions to concatenate: choose other --model.positions, or add them")
            if self.position_width >= self.width:
                raise ValueError(f"positions of width {self.position_width} leave nothing of the width {self.width}")
        return self

    @model_validator(mode="after")
    def check_experts(self) -> TransformerConfig:
        """Check that there are at least two experts, at least k, and a layer that has them."""
        if not self.experts:
            return self
        if self.experts == 1:
            raise ValueError("one expert is a plain feed-forward network: give 0 experts, or at least 2")
        if self.experts_per_token > self.experts:
            raise ValueError(f"a token cannot have {self.experts_per_token} of {self.experts} experts")
        if self.experts_every > max(self.encoder_layers, self.decoder_layers):
            raise ValueError(
                f"no layer would have experts: experts-every {self.experts_every} is beyond the last layer"
            )
        return self

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """The sums that experts report in training: load balance, dropped and routed tokens."""
        return SUMS if self.experts else ()

    @property
    def embedding_width(self) -> int:
        """The width without concatenated positions."""
        return self.width if self.position_use == "add" else self.width - self.position_width


# The paper's models are post-norm. The small presets are pre-norm: with post-norm they learn far more slowly
# (docs/log.md).
PRESETS = {
    "transformer-tiny": TransformerConfig(
        encoder_layers=4, decoder_layers=4, width=128, feed_forward=256, heads=4, dropout=0.3, norm="pre"
    ),
    "transformer-small": TransformerConfig(
        encoder_layers=6, decoder_layers=6, width=256, feed_forward=1024, heads=4, dropout=0.2, norm="pre"
    ),
    "transformer-local-tiny": TransformerConfig(
        encoder_layers=4, decoder_layers=4, width=128, feed_forward=256, heads=4, dropout=0.2, norm="pre", radius=8
    ),
    "transformer-moe-tiny": TransformerConfig(
        encoder_layers=4, decoder_layers=4, width=128, feed_forward=256, heads=4, dropout=0.2, norm="pre", experts=4
    ),
    "transformer-base": TransformerConfig(),
    "transformer-big": TransformerConfig(width=1024, feed_forward=4096, heads=16, dropout=0.3),
}

MINIATURE = TransformerConfig(encoder_layers=2, decoder_layers=2, width=16, feed_forward=32, heads=2, dropout=0.0)
"""The size that the contract tests use."""


class LayerState(NamedTuple):
    """State of one decoder layer between steps."""

    cache: KVCache  # of the target so far
    memory: PerSentence[MemoryCache]  # projected once


class LayerOutput(NamedTuple):
    """Hidden states after a layer and, if recorded, its attention weights; in training, the routing of its experts."""

    hidden: Hidden
    self_weights: Tensor | None
    cross_weights: Tensor | None = None
    routing: Routing | None = None


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in a residual connection (section 3.1)."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.attention = make_self_attention(config)
        self.attention_residual = Residual(config.width, config.dropout, config.norm)
        self.feed_forward = make_feed_forward(config, layer)
        self.feed_forward_residual = Residual(config.width, config.dropout, config.norm)

    def forward(self, hidden: Hidden, layout: PackedLayout, next_norm: nn.LayerNorm, record: bool) -> LayerOutput:
        """Compute all positions at once, packed: hidden (N, D); `next_norm` follows the layer (layers/residual.py)."""
        attended = self.attention(hidden.normed, layout, record=record)  # (N, D), recorded weights (B, H, S, S)
        hidden = self.attention_residual(hidden, attended, self.feed_forward_residual.norm)  # (N, D)
        fed = self.feed_forward(hidden.normed, layout)  # (N, D)
        hidden = self.feed_forward_residual(hidden, fed, next_norm)  # (N, D)
        return LayerOutput(hidden, attended.weights, None, fed.routing)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each in a residual connection (section 3.1)."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.attention = make_self_attention(config)
        self.attention_residual = Residual(config.width, config.dropout, config.norm)
        self.cross = make_cross_attention(config)
        self.cross_residual = Residual(config.width, config.dropout, config.norm)
        self.feed_forward = make_feed_forward(config, layer)
        self.feed_forward_residual = Residual(config.width, config.dropout, config.norm)

    def forward(
        self,
        hidden: Hidden,
        layout: PackedLayout,
        memory: Tensor,
        memory_layout: PackedLayout,
        next_norm: nn.LayerNorm,
        record: bool,
    ) -> LayerOutput:
        """Compute all positions at once: hidden (N, D) and memory (M, D), packed."""
        attended = self.attention(hidden.normed, layout, causal=True, record=record)  # (N, D), weights (B, H, T, T)
        hidden = self.attention_residual(hidden, attended, self.cross_residual.norm)  # (N, D)
        crossed = self.cross(hidden.normed, layout, memory, memory_layout, record=record)  # (N, D), (B, H, T, S)
        hidden = self.cross_residual(hidden, crossed, self.feed_forward_residual.norm)  # (N, D)
        fed = self.feed_forward(hidden.normed, layout)  # (N, D)
        hidden = self.feed_forward_residual(hidden, fed, next_norm)  # (N, D)
        return LayerOutput(hidden, attended.weights, crossed.weights, fed.routing)

    def start(self, memory: Tensor, layout: PackedLayout) -> LayerState:
        """Return an empty cache, and keys and values of the packed memory (M, D)."""
        cache = self.attention.start(layout.mask.size(0), memory)
        return LayerState(cache, PerSentence(self.cross.start(memory, layout)))

    def step(
        self, hidden: Hidden, state: LayerState, next_norm: nn.LayerNorm, record: bool
    ) -> tuple[LayerOutput, LayerState]:
        """Compute one new position of N hypotheses: hidden (N, D)."""
        position = state.cache.position
        attended, cache = self.attention.step(hidden.normed, state.cache, record=record)  # (N, D)
        hidden = self.attention_residual(hidden, attended, self.cross_residual.norm)
        crossed = self.cross.step(hidden.normed, state.memory.value, position, record=record)  # (N, D)
        hidden = self.cross_residual(hidden, crossed, self.feed_forward_residual.norm)
        fed = self.feed_forward(hidden.normed)  # (N, D)
        hidden = self.feed_forward_residual(hidden, fed, next_norm)
        return LayerOutput(hidden, attended.weights, crossed.weights), LayerState(cache, state.memory)


def make_self_attention(config: TransformerConfig) -> SelfAttention | LocalSelfAttention:
    """Make self-attention over all positions, or over those within the radius."""
    if config.radius is None:
        return SelfAttention(config.width, config.heads, config.attention_dropout)
    return LocalSelfAttention(config.width, config.heads, config.radius, config.attention_dropout)


def make_cross_attention(config: TransformerConfig) -> CrossAttention | LocalCrossAttention:
    """Make cross-attention to the full memory, or to a band around the target position."""
    if config.cross_radius is None:
        return CrossAttention(config.width, config.heads, config.attention_dropout)
    band = Band(config.cross_radius, config.cross_length_ratio)
    return LocalCrossAttention(config.width, config.heads, band, config.attention_dropout)


def make_feed_forward(config: TransformerConfig, layer: int) -> FeedForward | MixtureOfExperts:
    """Make a feed-forward network, or a mixture of experts in the last of every `experts_every` layers."""
    if not config.experts or (layer + 1) % config.experts_every:
        return FeedForward(config.width, config.feed_forward)
    return MixtureOfExperts(
        config.width,
        config.feed_forward,
        config.experts,
        config.experts_per_token,
        config.capacity_factor,
        config.expert_noise,
    )


class Transformer(nn.Module):
    """Encoder and decoder stacks of attention and feed-forward layers; no recurrence, no convolution."""

    def __init__(self, config: TransformerConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, max_positions = config.width, config.max_positions
        self.max_target_positions = max_positions if config.positions == "learned" else None
        shared = sizes.joint if config.embeddings == "auto" else config.embeddings == "shared"
        if shared and not sizes.joint:
            raise ValueError("shared embeddings need a joint vocabulary: set data.joint, or separate embeddings")
        target_table = embedding_table(sizes.target, config.embedding_width)
        source_table = target_table if shared else embedding_table(sizes.source, config.embedding_width)
        position_width = config.position_width if config.position_use == "concatenate" else None
        self.source_embedding = Embedding(source_table, config.dropout, config.positions, max_positions, position_width)
        self.target_embedding = Embedding(target_table, config.dropout, config.positions, max_positions, position_width)
        self.encoder = nn.ModuleList(EncoderLayer(config, layer) for layer in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.decoder_layers))
        # Pre-norm leaves the last sum unnormalized (Xiong et al. 2020); post-norm needs no norm after the stack.
        self.pre_norm = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(width) if self.pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if self.pre_norm else nn.Identity()
        self.output = OutputLayer(width, target_table, tied=config.tie_output)
        self.balance_weight = config.balance_weight

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """Encode source.values (B, S), ids."""
        assert isinstance(source.values, Tensor)
        layout = PackedLayout.of(source.mask)
        layers = self.encoder_layers()
        hidden = layers[0].attention_residual.begin(layout.pack(self.source_embedding(source.values)))  # (N, D)
        outputs: list[LayerOutput] = []
        for layer, next_norm in zip(layers, self.next_norms(layers, self.encoder_norm), strict=True):
            outputs.append(layer(hidden, layout, next_norm, record))
            hidden = outputs[-1].hidden
        weights = records("encoder-self", [output.self_weights for output in outputs])
        states = layout.unpack(hidden.normed)  # (B, S, D)
        return Memory(states, source.mask, None, weights, self.balance_loss(outputs))

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T): the target shifted right by one, so that position t predicts token t."""
        layout, memory_layout = PackedLayout.of(prefix != Symbols.pad), PackedLayout.of(memory.mask)
        states = memory_layout.pack(memory.states)  # (M, D)
        layers = self.decoder_layers()
        hidden = layers[0].attention_residual.begin(layout.pack(self.target_embedding(prefix)))  # (N, D)
        outputs: list[LayerOutput] = []
        for layer, next_norm in zip(layers, self.next_norms(layers, self.decoder_norm), strict=True):
            outputs.append(layer(hidden, layout, states, memory_layout, next_norm, record))
            hidden = outputs[-1].hidden
        x = layout.unpack(hidden.normed)  # (B, T, D)
        return Decoded(x, decoder_records(outputs), self.balance_loss(outputs))

    def start(self, memory: Memory) -> tuple[LayerState, ...]:
        """Return the initial state of each layer: an empty cache, and keys and values of the memory."""
        layout = PackedLayout.of(memory.mask)
        states = layout.pack(memory.states)  # (M, D)
        return tuple(layer.start(states, layout) for layer in self.decoder_layers())

    def step(self, token: Tensor, state: tuple[LayerState, ...], memory: Memory, *, record: bool = False) -> Step:
        """Decode one position of N hypotheses: token (N,)."""
        layers = self.decoder_layers()
        x = self.target_embedding(token[:, None], state[0].cache.position).squeeze(1)  # (N, D)
        hidden = layers[0].attention_residual.begin(x)
        outputs: list[LayerOutput] = []
        states: list[LayerState] = []
        norms = self.next_norms(layers, self.decoder_norm)
        for layer, layer_state, next_norm in zip(layers, state, norms, strict=True):
            output, layer_state = layer.step(hidden, layer_state, next_norm, record)
            outputs.append(output)
            states.append(layer_state)
            hidden = output.hidden
        return Step(hidden.normed, tuple(states), decoder_records(outputs))

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (..., V) of outputs (..., D)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)

    def next_norms(self, layers: Sequence[EncoderLayer | DecoderLayer], last: nn.Module) -> list[nn.LayerNorm]:
        """Return the norm after each layer's last residual sum; with pre-norm, the first norm of the next layer."""
        norms = [layer.attention_residual.norm for layer in layers]
        return [*norms[1:], cast("nn.LayerNorm", last)] if self.pre_norm else norms

    def balance_loss(self, outputs: list[LayerOutput]) -> Auxiliary | None:
        """Return the load-balancing loss of the experts of these layers, in training; otherwise None."""
        return auxiliary_loss((output.routing for output in outputs), self.balance_weight)

    def encoder_layers(self) -> list[EncoderLayer]:
        """Return the layers of the encoder, typed."""
        return cast("list[EncoderLayer]", list(self.encoder))

    def decoder_layers(self) -> list[DecoderLayer]:
        """Return the layers of the decoder, typed."""
        return cast("list[DecoderLayer]", list(self.decoder))


def records(kind: AttentionKind, weights: list[Tensor | None]) -> tuple[Attention, ...]:
    """Return the recorded attention weights of each layer."""
    return tuple(Attention(kind, layer, found) for layer, found in enumerate(weights) if found is not None)


def decoder_records(outputs: list[LayerOutput]) -> tuple[Attention, ...]:
    """Return the self-attention weights of every layer, then the cross-attention weights of every layer."""
    own = records("decoder-self", [output.self_weights for output in outputs])
    return own + records("cross", [output.cross_weights for output in outputs])


FULL, RESTRICTED = Costs("O(n^2 d)", "O(1)", "O(1)"), Costs("O(r n d)", "O(1)", "O(n/r)")

FAMILY = Family(
    "Vaswani et al. 2017",
    Transformer,
    TransformerConfig,
    PRESETS,
    MINIATURE,
    FULL,
    preset_recipes={  # the best of docs/log.md on 29,000 pairs
        "transformer-tiny": {"training": {"optimizer": "muon", "learning_rate": 1e-2, "warmup_steps": 300}}
    },
    variants=(
        {"norm": "pre"},
        {"positions": "learned", "max_positions": 64},
        {"positions": "none"},
        {"tie_output": False},
        {"radius": 2},
        {"radius": 2, "cross_radius": 2},
        {"experts": 4, "experts_per_token": 2},
        {"experts": 3, "experts_per_token": 1, "experts_every": 1, "expert_noise": True, "norm": "pre"},
        {"position_use": "concatenate", "position_width": 4},
        {"position_use": "concatenate", "position_width": 6, "positions": "learned", "tie_output": False},
    ),
    attention=frozenset({"encoder-self", "decoder-self", "cross"}),
    permutation_equivariant_settings={"positions": "none", "position_use": "add", "radius": None, "cross_radius": None},
    costs_of=lambda config: FULL if config.radius is None else RESTRICTED,
)

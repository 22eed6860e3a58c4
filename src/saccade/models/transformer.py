"""The Transformer: Vaswani et al., Attention Is All You Need, NIPS 2017.

Variants by setting: self-attention within a radius (section 4), cross-attention within a radius of the target's place
(Luong et al. 2015, local-m), a mixture of experts in place of every other feed-forward network (Shazeer et al. 2017),
positions beside the embeddings instead of added to them.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

from pydantic import Field, model_validator
from torch import Tensor, nn

from saccade.csrc.abi import NativeDecoder
from saccade.csrc.library import for_inference
from saccade.interface import (
    Attention,
    AttentionKind,
    Auxiliary,
    Decoded,
    Memory,
    OfMemory,
    Product,
    Source,
    Step,
    VocabularySizes,
)
from saccade.layers.attention import apart, side_by_side
from saccade.layers.embedding import Embedding, OutputLayer, embedding_table
from saccade.layers.feed_forward import FeedForward
from saccade.layers.local_attention import LocalPast, LocalSelfAttention
from saccade.layers.local_cross_attention import Band, LocalCrossAttention
from saccade.layers.mixture_of_experts import SUMS, MixtureOfExperts, Routing, auxiliary_of
from saccade.layers.multi_head import CrossAttention, KeysValues, SelfAttention
from saccade.layers.positions import PositionKind, PositionUse
from saccade.layers.residual import NormPlace, Residual
from saccade.models.family import Costs, Family, ModelConfig
from saccade.models.transformer_rows import (
    RowState,
    decode_rows,
    encode_rows,
    native_decoder,
    settle,
    start_rows,
    step_rows,
)
from saccade.ops.arguments import runs_on_kernel
from saccade.ops.packed import PackedLayout
from saccade.ops.varlen_attention import LONGEST
from saccade.symbols import Symbols


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
    norm: NormPlace = "post"
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
    cross_pace: float = Field(1.0, gt=0, le=100)
    """With cross-radius: source positions per target position, for the aligned position."""
    experts: int = Field(0, ge=0)
    """Experts per mixture-of-experts layer; 0 for plain feed-forward layers (Shazeer et al. 2017)."""
    experts_per_token: int = Field(2, ge=1)
    """Experts per token, k."""
    experts_every: int = Field(2, ge=1)
    """Use experts in every n-th layer: 2 for the second, fourth, and so on."""
    expert_noise: bool = False
    """Noisy top-k gating in training (Shazeer et al. 2017, eq. 4)."""
    capacity_factor: float = Field(1.25, gt=0)
    """Expert capacity in training, as a multiple of an even share of the tokens; tokens above it are dropped."""
    balance_weight: float = Field(0.01, ge=0)
    """Weight of the load-balancing loss (Fedus et al. 2021, alpha)."""
    embeddings: Literal["auto", "shared", "separate"] = "auto"
    """shared or separate embeddings of source and target; auto shares them if the vocabulary is joint."""
    tie_output: bool = True
    """Tie output layer and target embedding (section 3.4)."""

    @model_validator(mode="after")
    def heads_divide_width(self) -> TransformerConfig:
        """Each head gets an equal share of the width, and sinusoids come in pairs."""
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared evenly by {self.heads} heads")
        return self

    @model_validator(mode="after")
    def positions_have_room(self) -> TransformerConfig:
        """Concatenated positions need something to concatenate and leave room for the embedding."""
        if self.position_use == "concatenate":
            if self.positions == "none":
                raise ValueError("there are no positions to concatenate: choose other --model.positions, or add them")
            if self.position_width >= self.width:
                raise ValueError(f"positions of width {self.position_width} leave nothing of the width {self.width}")
        return self

    @model_validator(mode="after")
    def experts_can_be_chosen(self) -> TransformerConfig:
        """There are at least two experts, enough for each token, and a layer that has them."""
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
        """Sums over places: the balance of the experts (1 is even), what they had no room for, and all places."""
        return SUMS if self.experts else ()

    @property
    def embedding_width(self) -> int:
        """The width without concatenated positions."""
        return self.width if self.position_use == "add" else self.width - self.position_width


# The paper puts the norm last; the small sizes put it first, or they learn far more slowly (docs/log.md).
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
"""Small enough for the laws."""


class LayerState(NamedTuple):
    """What one decoder layer keeps between steps."""

    past: KeysValues | LocalPast  # of the target so far
    memory: OfMemory[KeysValues]  # projected once


class LayerOutput(NamedTuple):
    """A layer's output and, if recorded, where it looked; in training, how its experts shared the work."""

    x: Tensor
    self_weights: Tensor | None
    cross_weights: Tensor | None = None
    routing: Routing | None = None


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in a residual."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.attention = make_self_attention(config)
        self.attention_residual = Residual(config.width, config.dropout, config.norm)
        self.feed_forward = make_feed_forward(config, layer)
        self.feed_forward_residual = Residual(config.width, config.dropout, config.norm)

    def forward(self, x: Tensor, mask: Tensor, record: bool) -> LayerOutput:
        """x (B, S, D), mask (B, S)."""
        attended = self.attention(self.attention_residual.before(x), mask, record=record)
        x = self.attention_residual.after(x, attended.context)
        fed, routing = feed(self.feed_forward, self.feed_forward_residual.before(x), mask)
        return LayerOutput(self.feed_forward_residual.after(x, fed), attended.weights, None, routing)


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the memory, feed-forward, each in a residual."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.attention = make_self_attention(config)
        self.attention_residual = Residual(config.width, config.dropout, config.norm)
        self.cross = make_cross_attention(config)
        self.cross_residual = Residual(config.width, config.dropout, config.norm)
        self.feed_forward = make_feed_forward(config, layer)
        self.feed_forward_residual = Residual(config.width, config.dropout, config.norm)

    def forward(self, x: Tensor, memory: Memory, real: Tensor, record: bool) -> LayerOutput:
        """All places at once: x (B, T, D), real (B, T)."""
        attended = self.attention(self.attention_residual.before(x), causal=True, record=record)
        x = self.attention_residual.after(x, attended.context)
        keys_values = self.cross.project(memory.states)
        crossed = self.cross(self.cross_residual.before(x), keys_values, memory.mask, record=record)
        x = self.cross_residual.after(x, crossed.context)
        fed, routing = feed(self.feed_forward, self.feed_forward_residual.before(x), real)
        return LayerOutput(self.feed_forward_residual.after(x, fed), attended.weights, crossed.weights, routing)

    def start(self, memory: Memory) -> LayerState:
        """An empty past, and the memory's keys and values."""
        return LayerState(self.attention.empty(memory.states), OfMemory(self.cross.project(memory.states)))

    def step(self, x: Tensor, state: LayerState, mask: Tensor, record: bool) -> tuple[LayerOutput, LayerState]:
        """One more place of N hypotheses: x (N, 1, D), mask (B, S)."""
        attended, past = self.attention.step(self.attention_residual.before(x), state.past, record=record)
        x = self.attention_residual.after(x, attended.context)
        queries = side_by_side(self.cross_residual.before(x).squeeze(1), mask.size(0))  # (B, W, D)
        crossed = self.cross.step(queries, state.memory.value, mask, state.past.place, record=record)
        x = self.cross_residual.after(x, crossed.context.reshape(x.shape))
        fed, _ = feed(self.feed_forward, self.feed_forward_residual.before(x), None)
        x = self.feed_forward_residual.after(x, fed)
        looks = None if crossed.weights is None else apart(crossed.weights)
        return LayerOutput(x, attended.weights, looks), LayerState(past, state.memory)


def make_self_attention(config: TransformerConfig) -> Any:
    """Attention to all places, or to those within the radius; both step alike, each with a cache of its own."""
    if config.radius is None:
        return SelfAttention(config.width, config.heads, config.attention_dropout)
    return LocalSelfAttention(config.width, config.heads, config.radius, config.attention_dropout)


def make_cross_attention(config: TransformerConfig) -> Any:
    """Attention to the whole memory, or to what is near the target's own place."""
    if config.cross_radius is None:
        return CrossAttention(config.width, config.heads, config.attention_dropout)
    band = Band(config.cross_radius, config.cross_pace)
    return LocalCrossAttention(config.width, config.heads, band, config.attention_dropout)


def make_feed_forward(config: TransformerConfig, layer: int) -> FeedForward | MixtureOfExperts:
    """One network, or experts in the last of every `experts_every` layers."""
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


def feed(network: FeedForward | MixtureOfExperts, x: Tensor, real: Tensor | None) -> tuple[Tensor, Routing | None]:
    """x (B, T, D) through one network, or its real places (B, T) through their experts."""
    if isinstance(network, MixtureOfExperts):
        return cast("tuple[Tensor, Routing | None]", network(x, real))
    return network(x), None


class Transformer(nn.Module):
    """Encoder and decoder stacks of attention and feed-forward layers; no recurrence, no convolution."""

    def __init__(self, config: TransformerConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, longest = config.width, config.max_positions
        self.width = width
        self.longest = longest if config.positions == "learned" else None
        shared = sizes.joint if config.embeddings == "auto" else config.embeddings == "shared"
        if shared and not sizes.joint:
            raise ValueError("shared embeddings need a joint vocabulary: set data.joint, or separate embeddings")
        target_table = embedding_table(sizes.target, config.embedding_width)
        source_table = target_table if shared else embedding_table(sizes.source, config.embedding_width)
        beside = config.position_width if config.position_use == "concatenate" else None
        self.source_embedding = Embedding(source_table, config.dropout, config.positions, longest, beside)
        self.target_embedding = Embedding(target_table, config.dropout, config.positions, longest, beside)
        self.encoder = nn.ModuleList(EncoderLayer(config, layer) for layer in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.decoder_layers))
        # Pre-norm leaves the last sum unnormalised (Xiong et al. 2020); post-norm has nothing left to do here.
        self.pre = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(width) if self.pre else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width) if self.pre else nn.Identity()
        self.plain = config.radius is None and config.cross_radius is None and not config.experts
        self.drops_attention = config.attention_dropout > 0
        self.output = OutputLayer(width, target_table, tied=config.tie_output)
        self.balance_weight = config.balance_weight

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """source.values (B, S) ids."""
        assert isinstance(source.values, Tensor)
        x = self.source_embedding(source.values)  # (B, S, D)
        if self.packs(x, record):
            return Memory(encode_rows(self, x, PackedLayout.of(source.mask)), source.mask)
        outputs: list[LayerOutput] = []
        for layer in self.encoder:
            outputs.append(layer(x, source.mask, record))
            x = outputs[-1].x
        looks = records("encoder-self", [output.self_weights for output in outputs])
        return Memory(self.encoder_norm(x), source.mask, attention=looks, auxiliary=self.asked(outputs))

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """prefix (B, T): the target shifted right by one, so that place t predicts token t."""
        real = prefix != Symbols.pad  # (B, T)
        x = self.target_embedding(prefix)  # (B, T, D)
        if self.packs(x, record) and self.packs(memory.states, record):
            return Decoded(decode_rows(self, x, PackedLayout.of(real), memory))
        outputs: list[LayerOutput] = []
        for layer in self.decoder:
            outputs.append(layer(x, memory, real, record))
            x = outputs[-1].x
        return Decoded(self.decoder_norm(x), decoder_records(outputs), self.asked(outputs))

    def start(self, memory: Memory) -> tuple[LayerState, ...] | RowState:
        """Empty caches, and the keys and values of the memory."""
        if self.steps_rows(memory):
            return start_rows(self, memory)
        return tuple(layer.start(memory) for layer in self.decoder_layers())

    def step(
        self, token: Tensor, state: tuple[LayerState, ...] | RowState, memory: Memory, *, record: bool = False
    ) -> Step:
        """token (N,)."""
        if isinstance(state, RowState):
            x = self.target_embedding(token[:, None], state.past.position).squeeze(1)  # (N, D)
            stepped = step_rows(self, x, state, memory.mask, record)
            looks = records("decoder-self", stepped.own) + records("cross", stepped.cross)
            return Step(stepped.output, stepped.state, looks)
        x = self.target_embedding(token[:, None], state[0].past.place)  # (N, 1, D)
        outputs: list[LayerOutput] = []
        states: list[LayerState] = []
        for layer, past in zip(self.decoder_layers(), state, strict=True):
            output, new = layer.step(x, past, memory.mask, record)
            outputs.append(output)
            states.append(new)
            x = output.x
        return Step(self.decoder_norm(x).squeeze(1), tuple(states), decoder_records(outputs))

    def native(self, given: Memory | Source) -> NativeDecoder | None:
        """All that a search in C needs from a memory or from a source, where there is one for this model."""
        widths = {self.source_embedding.table.size(1), self.target_embedding.table.size(1)}
        whole = self.plain and isinstance(self.output.projection, nn.Identity) and widths == {self.width}
        x = given.states if isinstance(given, Memory) else self.source_embedding.table
        return native_decoder(self, given) if whole and for_inference(x) and given.mask.size(1) <= LONGEST else None

    def settle(self) -> None:
        """Make once what every search in C needs, as the weights will hardly change any more."""
        if self.plain and for_inference(self.target_embedding.table):
            settle(self)

    def packs(self, x: Tensor, record: bool) -> bool:
        """Whether a batch (B, T, D) goes through the layers without its padding."""
        drops = self.training and self.drops_attention
        return self.plain and not record and not drops and x.size(1) <= LONGEST and runs_on_kernel(x)

    def steps_rows(self, memory: Memory) -> bool:
        """Whether hypotheses go through the layers by kernels that have no way back."""
        return for_inference(memory.states) and self.packs(memory.states, record=False)

    def encoder_layers(self) -> list[EncoderLayer]:
        """The encoder's layers with their type, which a module list forgets."""
        return cast("list[EncoderLayer]", self.encoder)

    def decoder_layers(self) -> list[DecoderLayer]:
        """Those of the decoder."""
        return cast("list[DecoderLayer]", self.decoder)

    def logits(self, outputs: Tensor) -> Tensor:
        """(..., D) to (..., V)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_product(self, outputs: Tensor) -> Product:
        """The output layer up to its product."""
        return self.output.product(outputs)

    def asked(self, outputs: list[LayerOutput]) -> Auxiliary | None:
        """That the experts of these layers share the work evenly; in training only."""
        return auxiliary_of((output.routing for output in outputs), self.balance_weight)


def records(kind: AttentionKind, looks: list[Tensor | None]) -> tuple[Attention, ...]:
    """One record a layer that was asked to keep its weights."""
    return tuple(Attention(kind, layer, weights) for layer, weights in enumerate(looks) if weights is not None)


def decoder_records(outputs: list[LayerOutput]) -> tuple[Attention, ...]:
    """Self-attention of every layer, then cross-attention of every layer."""
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
    unordered={"positions": "none", "position_use": "add", "radius": None, "cross_radius": None},
    costs_of=lambda config: FULL if config.radius is None else RESTRICTED,
)

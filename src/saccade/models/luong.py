"""Luong et al., Effective Approaches to Attention-based Neural Machine Translation, EMNLP 2015.

Attention comes after the decoder's top layer: h̃_t = tanh(W_c [c_t; h_t]) (eq. 5). Departures: the weights of local-p
attention are normalised after the Gaussian (eq. 10 multiplies softmax weights by it, so that they sum to less than 1);
the output layer can be tied to the target embedding.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from saccade.interface import Attention, Decoded, Memory, OfMemory, Product, Source, Step, VocabularySizes
from saccade.layers.attention import additive_scores, apart, dot_scores, masked_softmax, side_by_side, weighted_sum
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import FedRecurrent, Recurrent, reverse
from saccade.models.family import Costs, Family, ModelConfig
from saccade.ops.dropout import dropout
from saccade.ops.recurrent_cells import RecurrentState
from saccade.ops.single_head_attention import single_head_attention


class LuongConfig(ModelConfig):
    """Settings of attention after the decoder; the defaults are the paper's (section 4.1)."""

    width: int = Field(1000, ge=2)
    """Hidden size of each layer."""
    embedding: int = Field(1000, ge=1)
    """Embedding size."""
    layers: int = Field(4, ge=1)
    """Layers of the encoder and of the decoder, each."""
    score: Literal["dot", "general", "concat"] = "general"
    """Attention score function: dot, general or concat (section 3.1)."""
    attention: Literal["global", "local-p"] = "global"
    """global attention, or local-p: a window around a predicted position (section 3.2)."""
    window: int = Field(10, ge=1)
    """Half the window size of local-p attention, D; its Gaussian has σ = D/2."""
    input_feeding: bool = True
    """Input feeding: the attentional vector h̃ is an input of the next step (section 3.3)."""
    reverse_source: bool = False
    """Reverse the source sequence."""
    dropout: float = Field(0.2, ge=0, lt=1)
    """Dropout of the embeddings and of each layer's output."""
    tie_output: bool = False
    """Tie output layer and target embedding; a linear projection joins them if their widths differ."""


PRESETS = {
    "luong-tiny": LuongConfig(width=256, embedding=256, layers=1, dropout=0.2, tie_output=True),
    "luong-base": LuongConfig(),
}

MINIATURE = LuongConfig(width=16, embedding=16, layers=2, dropout=0.0)
"""The size that the contract tests use."""


class LuongState(NamedTuple):
    """What the decoder keeps between steps."""

    layers: tuple[RecurrentState, ...]
    attentional: Tensor  # (N, D) h̃_{t-1}
    keys: OfMemory[Tensor]  # (B, S, D) what states are compared with, projected once


class Looked(NamedTuple):
    """Attentional states, and where they looked."""

    attentional: Tensor  # (B, T, D) h̃
    weights: Tensor  # (B, T, S)


class Luong(nn.Module):
    """Recurrent stacks on both sides; the top of the decoder looks back at the top of the encoder."""

    longest = None  # a recurrent decoder has no last place

    def __init__(self, config: LuongConfig, sizes: VocabularySizes) -> None:
        super().__init__()
        width, embedding = config.width, config.embedding
        self.probability = config.dropout
        self.reverse_source = config.reverse_source
        self.score = config.score
        self.input_feeding = config.input_feeding
        self.source_embedding, self.target_embedding = token_embeddings(sizes, embedding, config.dropout)
        upper = range(config.layers - 1)
        self.encoder = nn.ModuleList([Recurrent("lstm", embedding, width)])
        self.encoder.extend(Recurrent("lstm", width, width) for _ in upper)
        first = FedRecurrent("lstm", embedding, width, width) if config.input_feeding else None
        self.decoder = nn.ModuleList([first or Recurrent("lstm", embedding, width)])
        self.decoder.extend(Recurrent("lstm", width, width) for _ in upper)
        self.key = nn.Identity() if config.score == "dot" else nn.Linear(width, width, bias=config.score == "concat")
        self.query = nn.Linear(width, width, bias=False) if config.score == "concat" else nn.Identity()
        self.energy = nn.Parameter(torch.empty(width)) if config.score == "concat" else None  # v_a
        if self.energy is not None:
            nn.init.normal_(self.energy, std=width**-0.5)
        self.window = PredictedWindow(width, config.window) if config.attention == "local-p" else None
        self.combine = nn.Linear(2 * width, width, bias=False)  # W_c
        self.output = OutputLayer(width, self.target_embedding.table, tied=config.tie_output)

    def encode(self, source: Source, *, record: bool = False) -> Memory:
        """source.values (B, S) ids; the summary is the last state of every layer."""
        assert isinstance(source.values, Tensor)
        x = self.source_embedding(source.values)  # (B, S, E)
        x = reverse(x, source.mask) if self.reverse_source else x
        lasts: list[RecurrentState] = []
        for layer in self.encoder:
            x, last = layer(x, source.mask)  # (B, S, D)
            x = self.drop(x)
            lasts.append(last)
        states = reverse(x, source.mask) if self.reverse_source else x  # the memory keeps the order of the source
        return Memory(states, source.mask, summary=tuple(lasts))

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """prefix (B, T), begin first."""
        embedded = self.target_embedding(prefix)  # (B, T, E)
        state = self.start(memory)
        if self.input_feeding:
            looked = self.fed(embedded, state, memory)
        else:
            x = embedded
            for layer, first in zip(self.decoder, state.layers, strict=True):
                x = self.drop(layer(x, None, first)[0])  # (B, T, D)
            looked = self.look(x, state.keys.value, memory)
        records = (Attention("cross", 0, looked.weights[:, None]),) if record else ()
        return Decoded(self.drop(looked.attentional), records)

    def fed(self, embedded: Tensor, state: LuongState, memory: Memory) -> Looked:
        """Input feeding: every step waits for the h̃ of the one before."""
        bottom = self.decoder[0]
        assert isinstance(bottom, FedRecurrent)
        projected = bottom.project(embedded)  # (B, T, 4D)
        looks: list[Looked] = []
        for known in projected.unbind(1):  # a slice a place would make a gradient of full size a place
            x, layers = self.advance(known, state)
            looks.append(self.look(x[:, None], state.keys.value, memory))
            state = LuongState(layers, looks[-1].attentional.squeeze(1), state.keys)
        return Looked(*(torch.cat(parts, 1) for parts in zip(*looks, strict=True)))

    def advance(self, inputs: Tensor, state: LuongState) -> tuple[Tensor, tuple[RecurrentState, ...]]:
        """One place through all layers: the projected (N, 4D) or plain (N, E) input to the top state (N, D)."""
        x, layers = inputs, []
        for layer, past in zip(self.decoder, state.layers, strict=True):
            if isinstance(layer, FedRecurrent):
                layers.append(layer(x, state.attentional, past))
            else:
                assert isinstance(layer, Recurrent)
                layers.append(layer.step(x, past))
            x = self.drop(layers[-1].hidden)
        return x, tuple(layers)

    def start(self, memory: Memory) -> LuongState:
        """Every decoder layer begins where its encoder layer ended; h̃_0 is zero."""
        nothing = torch.zeros_like(memory.summary[-1].hidden)
        return LuongState(memory.summary, nothing, OfMemory(self.key(memory.states)))

    def step(self, token: Tensor, state: LuongState, memory: Memory, *, record: bool = False) -> Step:
        """token (N,), N = B·W."""
        embedded = self.target_embedding(token)  # (N, E)
        bottom = self.decoder[0]
        x, layers = self.advance(bottom.project(embedded) if isinstance(bottom, FedRecurrent) else embedded, state)
        looked = self.look(side_by_side(x, len(memory.mask)), state.keys.value, memory)
        attentional = looked.attentional.flatten(0, 1)  # (N, D)
        records = (Attention("cross", 0, apart(looked.weights[:, None])),) if record else ()
        return Step(self.drop(attentional), LuongState(layers, attentional, state.keys), records)

    def look(self, states: Tensor, keys: Tensor, memory: Memory) -> Looked:
        """States h_t (B, T, D) to h̃_t: score, softmax, context, combination (section 3.1, eqs. 5 and 7)."""
        query = self.query(states)  # (B, T, D)
        # dot: h_t h̄_s; general: h_t W h̄_s, W in the keys; concat: v tanh(W [h_t; h̄_s]), W in two halves
        if self.window is None:
            context, weights = single_head_attention(query, keys, memory.states, memory.mask, self.energy)
        else:
            scores = dot_scores(query, keys) if self.energy is None else additive_scores(query, keys, self.energy)
            nearness, inside = self.window(states, memory.mask)  # (B, T, S)
            weights = masked_softmax(scores + nearness, memory.mask[:, None] & inside)
            context = weighted_sum(weights, memory.states)
        # weights (B, T, S), context (B, T, D)
        return Looked(torch.tanh(self.combine(torch.cat([context, states], -1))), weights)

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, in training."""
        return dropout(x, self.probability, self.training)

    def logits(self, outputs: Tensor) -> Tensor:
        """(…, D) to (…, V)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_product(self, outputs: Tensor) -> Product:
        """The output layer up to its product."""
        return self.output.product(outputs)


class PredictedWindow(nn.Module):
    """Local-p attention: p_t = S · σ(v_p tanh(W_p h_t)), and a Gaussian around it (eqs. 9, 10)."""

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width, bias=False)  # W_p
        self.place = nn.Parameter(torch.empty(width))  # v_p
        nn.init.normal_(self.place, std=width**-0.5)
        self.reach = reach

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """States (B, T, D), mask (B, S) to the Gaussian's logarithm and the window, both (B, T, S)."""
        furthest = mask.sum(1)[:, None] - 1  # (B, 1) places count from 0
        share = torch.sigmoid(torch.tanh(self.hidden(states)) @ self.place)  # (B, T)
        centre = furthest * share.to(torch.promote_types(share.dtype, torch.float32))  # bf16 cannot tell places apart
        away = torch.arange(mask.size(1), device=mask.device) - centre[:, :, None]  # (B, T, S)
        return -(away**2) / (2 * (self.reach / 2) ** 2), away.detach().abs() <= self.reach


FAMILY = Family(
    "Luong et al. 2015",
    Luong,
    LuongConfig,
    PRESETS,
    MINIATURE,
    Costs("O(n d^2)", "O(n)", "O(n)"),
    recipe={"training": {"learning_rate": 3e-3, "warmup_steps": 400}},
    variants=(
        {"score": "dot", "input_feeding": False},
        {"score": "concat"},
        {"attention": "local-p", "window": 2},
        {"reverse_source": True, "tie_output": True, "layers": 1},
    ),
)

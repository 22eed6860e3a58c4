"""Luong et al., Effective Approaches to Attention-based Neural Machine Translation, EMNLP 2015.

Attention comes after the decoder's top layer: h̃_t = tanh(W_c [c_t; h_t]) (eq. 5). Departures: the weights of local-p
attention are normalized after the Gaussian (eq. 10 multiplies the softmax by it, and the weights sum to less than 1);
the output layer can be tied to the target embedding.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from saccade.interface import Attention, Decoded, Memory, OutputProjection, PerSentence, Source, Step, VocabularySizes
from saccade.layers.attention import (
    additive_scores,
    dot_scores,
    group_by_sentence,
    split_hypotheses,
    weighted_sum,
)
from saccade.layers.embedding import OutputLayer, token_embeddings
from saccade.layers.recurrent import Recurrent, TwoInputRecurrent, recurrent_stack, reverse
from saccade.models.family import Costs, Family, RecurrentStackConfig
from saccade.ops.attention_reference import masked_softmax
from saccade.ops.dropout import dropout
from saccade.ops.recurrent_cells import RecurrentState
from saccade.ops.single_head_attention import single_head_attention


class LuongConfig(RecurrentStackConfig):
    """Settings of attention after the decoder; the defaults are the paper's (section 4.1)."""

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


PRESETS = {
    "luong-tiny": LuongConfig(width=256, embedding=256, layers=1, dropout=0.2, tie_output=True),
    "luong-base": LuongConfig(),
}

MINIATURE = LuongConfig(width=16, embedding=16, layers=2, dropout=0.0)
"""The size that the contract tests use."""


class LuongState(NamedTuple):
    """The decoder state between steps."""

    layers: tuple[RecurrentState, ...]
    attentional: Tensor  # (N, D) h̃_{t-1}
    keys: PerSentence[Tensor]  # (B, S, D), projected once


class AttentionalStates(NamedTuple):
    """Attentional hidden states and the attention weights behind them."""

    attentional: Tensor  # (B, T, D) h̃
    weights: Tensor  # (B, T, S)


class Luong(nn.Module):
    """Recurrent encoder and decoder; the top layer of the decoder attends to the top layer of the encoder."""

    max_target_positions = None  # a recurrent decoder has no maximum length

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
        first = TwoInputRecurrent("lstm", embedding, width, width) if config.input_feeding else None
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
        """Encode source.values (B, S), ids; `extra` is the last state of every layer."""
        assert isinstance(source.values, Tensor)
        x = self.source_embedding(source.values)  # (B, S, E)
        x = reverse(x, source.mask) if self.reverse_source else x
        x, lasts = recurrent_stack(self.encoder, x, source.mask, self.apply_dropout)  # (B, S, D)
        states = reverse(x, source.mask) if self.reverse_source else x  # the memory is in source order
        return Memory(states, source.mask, extra=lasts)

    def decode(self, prefix: Tensor, memory: Memory, *, record: bool = False) -> Decoded:
        """Decode prefix (B, T), from the begin symbol on."""
        embedded = self.target_embedding(prefix)  # (B, T, E)
        state = self.start(memory)
        if self.input_feeding:
            attended = self.decode_with_input_feeding(embedded, state, memory)
        else:
            x = embedded
            for layer, first in zip(self.decoder, state.layers, strict=True):
                x = self.apply_dropout(layer(x, None, first)[0])  # (B, T, D)
            attended = self.attend(x, state.keys.value, memory)
        records = (Attention("cross", 0, attended.weights[:, None]),) if record else ()
        return Decoded(self.apply_dropout(attended.attentional), records)

    def decode_with_input_feeding(self, embedded: Tensor, state: LuongState, memory: Memory) -> AttentionalStates:
        """Decode embedded (B, T, E) step by step: h̃_{t-1} is an input of step t."""
        bottom = self.decoder[0]
        assert isinstance(bottom, TwoInputRecurrent)
        projected = bottom.project(embedded)  # (B, T, 4D)
        steps: list[AttentionalStates] = []
        for inputs in projected.unbind(1):  # one slice per position would cost one full-size gradient per position
            x, layers = self.advance(inputs, state)
            steps.append(self.attend(x[:, None], state.keys.value, memory))
            state = LuongState(layers, steps[-1].attentional.squeeze(1), state.keys)
        return AttentionalStates(*(torch.cat(parts, 1) for parts in zip(*steps, strict=True)))

    def advance(self, inputs: Tensor, state: LuongState) -> tuple[Tensor, tuple[RecurrentState, ...]]:
        """Run all layers for one step: the input, projected (N, 4D) or embedded (N, E), to the top state (N, D)."""
        x, layers = inputs, []
        for layer, past in zip(self.decoder, state.layers, strict=True):
            if isinstance(layer, TwoInputRecurrent):
                layers.append(layer(x, state.attentional, past))
            else:
                assert isinstance(layer, Recurrent)
                layers.append(layer.step(x, past))
            x = self.apply_dropout(layers[-1].hidden)
        return x, tuple(layers)

    def start(self, memory: Memory) -> LuongState:
        """Return the initial state: for each decoder layer the last state of its encoder layer; h̃_0 is zero."""
        zeros = torch.zeros_like(memory.extra[-1].hidden)
        return LuongState(memory.extra, zeros, PerSentence(self.key(memory.states)))

    def step(self, token: Tensor, state: LuongState, memory: Memory, *, record: bool = False) -> Step:
        """Decode one position: token (N,), N = B·W."""
        embedded = self.target_embedding(token)  # (N, E)
        bottom = self.decoder[0]
        x, layers = self.advance(bottom.project(embedded) if isinstance(bottom, TwoInputRecurrent) else embedded, state)
        attended = self.attend(group_by_sentence(x, len(memory.mask)), state.keys.value, memory)
        attentional = attended.attentional.flatten(0, 1)  # (N, D)
        records = (Attention("cross", 0, split_hypotheses(attended.weights[:, None])),) if record else ()
        return Step(self.apply_dropout(attentional), LuongState(layers, attentional, state.keys), records)

    def attend(self, states: Tensor, keys: Tensor, memory: Memory) -> AttentionalStates:
        """Map states h_t (B, T, D) to h̃_t: score, softmax, context, combination (section 3.1, eqs. 5 and 7)."""
        query = self.query(states)  # (B, T, D)
        # dot: h_t h̄_s; general: h_t W h̄_s, W in the keys; concat: v tanh(W [h_t; h̄_s]), W in two halves
        if self.window is None:
            context, weights = single_head_attention(query, keys, memory.states, memory.mask, self.energy)
        else:
            scores = dot_scores(query, keys) if self.energy is None else additive_scores(query, keys, self.energy)
            log_gaussian, inside = self.window(states, memory.mask)  # (B, T, S)
            weights = masked_softmax(scores + log_gaussian, memory.mask[:, None] & inside)
            context = weighted_sum(weights, memory.states)
        # weights (B, T, S), context (B, T, D)
        return AttentionalStates(torch.tanh(self.combine(torch.cat([context, states], -1))), weights)

    def apply_dropout(self, x: Tensor) -> Tensor:
        """Apply dropout, in training."""
        return dropout(x, self.probability, self.training)

    def logits(self, outputs: Tensor) -> Tensor:
        """Return the logits (…, V) of outputs (…, D)."""
        return self.output(outputs)  # type: ignore[no-any-return]

    def output_projection(self, outputs: Tensor) -> OutputProjection:
        """Return the operands of the last matrix product of the output layer."""
        return self.output.operands(outputs)


class PredictedWindow(nn.Module):
    """The window of local-p attention: p_t = S · σ(v_p tanh(W_p h_t)), with a Gaussian around it (eqs. 9, 10)."""

    def __init__(self, width: int, half_width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width, bias=False)  # W_p
        self.position_vector = nn.Parameter(torch.empty(width))  # v_p
        nn.init.normal_(self.position_vector, std=width**-0.5)
        self.half_width = half_width  # D

    def forward(self, states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Map states (B, T, D) and mask (B, S) to the log of the Gaussian and the window's mask, both (B, T, S).

        `mask` is True at real positions.
        """
        last = mask.sum(1)[:, None] - 1  # (B, 1) positions count from 0
        fraction = torch.sigmoid(torch.tanh(self.hidden(states)) @ self.position_vector)  # (B, T)
        # In bf16 neighboring positions of a long source would be equal.
        center = last * fraction.to(torch.promote_types(fraction.dtype, torch.float32))
        distance = torch.arange(mask.size(1), device=mask.device) - center[:, :, None]  # (B, T, S)
        return -(distance**2) / (2 * (self.half_width / 2) ** 2), distance.detach().abs() <= self.half_width


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

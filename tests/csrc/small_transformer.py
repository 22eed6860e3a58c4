"""A small Transformer with random weights, given to the kernels as C structures without a model."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_int64, c_void_p, pointer

import torch
from torch import Tensor

from saccade.ops.int8_linear import Int8Weight, quantize
from saccade.ops.kernel_abi import (
    DecoderLayerWeights,
    DecoderStack,
    EncoderLayerWeights,
    EncoderStack,
    HypothesisBuffers,
    KVCacheView,
    LayerNormWeights,
    PackedMemory,
    SearchLimits,
    SourceBatch,
    StackShape,
    TokenTables,
    WeightForms,
)
from saccade.ops.kernel_library import kernel

LAYERS, HEADS, WIDTH, INNER, VOCABULARY, LONGEST = 2, 2, 24, 40, 60, 12
BEGIN, END = 1, 2
ENCODER_MATRICES = [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (INNER, WIDTH), (WIDTH, INNER)]
CROSS_MATRICES = [(WIDTH, WIDTH), (WIDTH, WIDTH), (2 * WIDTH, WIDTH)]


def table(rows: list[Tensor]) -> ctypes.Array[c_void_p]:
    return (c_void_p * len(rows))(*(row.data_ptr() for row in rows))


class SmallTransformer:
    """Weights, and the arguments of one call of each kernel; attributes may be changed before a call."""

    def __init__(self, sentences: int = 5, *, beam: int = 1, int8: bool = False) -> None:
        self.rng, self.kept = torch.Generator().manual_seed(0), []
        self.sentences, self.beam, self.int8 = sentences, beam, int8
        self.embedding, self.positions = self.random(VOCABULARY, WIDTH), self.random(LONGEST, WIDTH)
        self.output = self.random(VOCABULARY, WIDTH)
        self.int8_output = quantize(self.output) if int8 else None
        lengths = [1 + number % LONGEST for number in range(sentences)]
        self.cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
        self.tokens = torch.randint(3, VOCABULARY, (sum(lengths),), generator=self.rng)
        self.position_ids = torch.cat([torch.arange(length) for length in lengths])
        self.limits, self.suppressed = torch.full((sentences,), 6), torch.tensor([0, END])
        self.penalties = torch.arange(1.0, LONGEST + 1)
        self.encoder, self.decoder = self.stack(EncoderStack), self.stack(DecoderStack)
        self.kv = [self.random(sum(lengths), 2 * WIDTH) for _ in range(LAYERS)]
        self.first, self.counts = self.cu_seqlens[:-1].clone(), self.cu_seqlens.diff()
        self.steps = [[self.random(sentences, 3 * WIDTH) for _ in range(LAYERS)] for _ in range(4)]
        self.origin = torch.arange(sentences)[:, None].repeat(1, 4)

    def random(self, *shape: int) -> Tensor:
        self.kept.append(torch.randn(shape, generator=self.rng) / shape[-1] ** 0.5)
        return self.kept[-1]

    def norm(self) -> LayerNormWeights:
        return LayerNormWeights(self.random(WIDTH).data_ptr(), self.random(WIDTH).data_ptr(), 1e-5)

    def stack(self, kind):
        decoder = kind is DecoderStack
        layer = DecoderLayerWeights if decoder else EncoderLayerWeights
        layers = []
        for _ in range(LAYERS):
            matrices = [self.random(*shape) for shape in ENCODER_MATRICES + (CROSS_MATRICES if decoder else [])]
            biases = [self.random(len(matrix)) for matrix in matrices]
            biases[-1] = biases[-1][WIDTH:] if decoder else biases[-1]
            by_use = [x for pair in zip(matrices, biases, strict=True) for x in pair]
            own, fed, cross = by_use[:4], by_use[4:8], by_use[8:]  # cross: query, output, kv
            pointers = [*own, *cross[:2], *cross[4:], *cross[2:4], *fed]
            forms = WeightForms()
            if self.int8:
                self.kept.append([quantize(matrix) for matrix in matrices])
                forms.int8 = (Int8Weight * len(matrices))(*(form.structure for form in self.kept[-1]))
            norms = (LayerNormWeights * (3 if decoder else 2))(*(self.norm() for _ in range(3 if decoder else 2)))
            layers.append(layer(*(x.data_ptr() for x in pointers), forms, norms))
        return kind(StackShape(LAYERS, HEADS, WIDTH, INNER, 1), self.norm(), (layer * LAYERS)(*layers))

    def memory(self) -> PackedMemory:
        ranges = self.first.data_ptr(), self.counts.data_ptr(), len(self.first)
        return PackedMemory(table(self.kv), len(self.kv[0]), *ranges)

    def encode(self) -> Tensor:
        x = self.embedding[self.tokens].clone()
        out = torch.empty_like(x)
        pointers = self.cu_seqlens.data_ptr(), x.data_ptr(), out.data_ptr()
        kernel("encoder_forward", byref(self.encoder), self.sentences, *pointers)
        return out

    def step(self) -> Tensor:
        x = self.embedding[: self.sentences].clone()
        out, memory, positions = torch.empty_like(x), self.memory(), len(self.steps)
        steps = table([layer for step in self.steps for layer in step])
        sizes = (c_int64 * positions)(*(len(step[0]) for step in self.steps))
        view = KVCacheView(len(x), positions, positions, 3 * WIDTH, steps, self.origin.data_ptr())
        view.memory, view.first_sentence, view.beam, view.step_hypotheses = pointer(memory), 0, 1, sizes
        kernel("decoder_step", byref(self.decoder), byref(view), x.data_ptr(), out.data_ptr())
        return out

    def search(self, *, encode: bool = True, argmax: bool = False, stop: int = 0) -> list[list[int]]:
        """Tokens of the hypotheses of all sentences; the sentences are encoded, or their memory is given."""
        form = None if self.int8_output is None else pointer(self.int8_output.structure)
        tables = TokenTables(VOCABULARY, 1.0, *(x.data_ptr() for x in (self.embedding, self.positions, self.output)))
        tables.int8_output, tables.int8_argmax = form, form if argmax else None
        limits = SearchLimits(0, BEGIN, END, len(self.suppressed))
        limits.suppressed, limits.limits, limits.penalties = (
            x.data_ptr() for x in (self.suppressed, self.limits, self.penalties)
        )
        inputs = self.embedding, self.positions, self.cu_seqlens, self.tokens, self.position_ids
        sizes = VOCABULARY, LONGEST
        sources = SourceBatch(pointer(self.encoder), 1.0, *(x.data_ptr() for x in inputs), *sizes)
        room = int(self.limits.clamp(1, 2 * LONGEST).max()) * self.beam
        starts, counts = torch.arange(self.sentences) * room, torch.zeros(self.sentences, dtype=torch.int64)
        tokens, columns = (
            torch.zeros(self.sentences, room, dtype=torch.int64),
            torch.zeros(2, self.sentences, self.beam),
        )
        lengths, finished = torch.zeros(2, self.sentences, self.beam, dtype=torch.int64)
        logs = torch.zeros(tokens.shape)
        found = starts, counts, tokens, lengths, finished, logs, columns[0], columns[1]
        buffers = HypothesisBuffers(self.beam, *(x.data_ptr() for x in found))
        given = (byref(sources), PackedMemory()) if encode else (None, self.memory())
        flag = c_int(stop)
        arguments = byref(limits), self.sentences, self.beam, buffers, byref(flag)
        kernel("search", byref(self.decoder), byref(tables), *given, *arguments)
        assert counts.min() >= 1
        return tokens.tolist()

"""Export of any model of the interface to two ONNX graphs: one encodes a batch, one decodes one step.

    encoder.onnx       source, mask -> memory and the first state
    decoder.onnx       token, memory, state -> logits, next state
    saccade.json       names of inputs and outputs, special symbols, and how to run the graphs
    tokenizer.json …   in the format of Hugging Face

States are nested, but graphs have flat inputs: every tensor of a state is named by its path. Tensors that depend only
on the memory (such as projected keys) are outputs of the encoder and not of the decoder. Batch size and lengths are
dynamic.

The graphs are traced. Before anything is written, the traces are run on inputs of other sizes and compared with the
model: a model that cannot be traced is an error, and no file is written.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.errors import SaccadeError
from saccade.folder import write_json
from saccade.interface import Memory, Source, VocabularySizes
from saccade.interop.exported_tokenizers import save_tokenizers, tokenizer_files
from saccade.interop.pytree import Leaf, leaves, with_leaves
from saccade.interop.traceable import MAX_POSITIONS, lengths_recorded, traceable
from saccade.layers.masks import padding_mask
from saccade.ops.dispatch import without_kernels
from saccade.symbols import Symbols

ENCODER, DECODER, DESCRIPTION = "encoder.onnx", "decoder.onnx", "saccade.json"
OPSET = 17
STEPS = 5  # decoding steps before the traced step: enough that states of bounded length drop positions
TOLERANCE = 1e-4


class ExampleSizes(NamedTuple):
    """The source lengths of an example batch, and the number of tokens decoded before."""

    lengths: tuple[int, ...]
    steps: int


TRACED, OTHERS = ExampleSizes((7, 4, 5), STEPS), (ExampleSizes((3,), 0), ExampleSizes((11, 2, 9, 13), 12))


def save_onnx(folder: Path, model: Any, name: str, tokenizers: Tokenizers) -> None:
    """Write the files into an existing folder; `name` is the name of the model family."""
    check_library()
    joint = tokenizers.source is tokenizers.target
    sizes = VocabularySizes(tokenizers.source.size, tokenizers.target.size, joint)
    graphs = Graphs(traceable(model), sizes)
    graphs.save(folder, name)
    max_target_positions = model.max_target_positions or MAX_POSITIONS
    save_tokenizers(folder, tokenizers, max_target_positions)
    write_json(folder / DESCRIPTION, graphs.description(name, max_target_positions, tokenizer_files(tokenizers)))


def check_library() -> None:
    """Raise an error if the onnx package is not installed."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise SaccadeError("the package onnx is not installed", hint="pip install 'saccade[onnx]'") from None


class EncoderGraph(nn.Module):
    """`encode` and `start` as one function of tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        """Encode source ids (B, S), mask (B, S), True = real position; return the leaves of memory and first state.

        The leaves are cloned, because the outputs of a graph must be distinct tensors.
        """
        memory = self.model.encode(Source(source, mask))
        return tuple(leaf.tensor.clone() for leaf in parts_of(memory, self.model.start(memory)))


class DecoderGraph(nn.Module):
    """`step` and `logits` as one function of tensors; leaves that the model does not read come from `example`."""

    def __init__(self, model: Any, example: tuple[Any, Any], read: Sequence[bool]) -> None:
        super().__init__()
        self.model = model
        self.example = example
        self.read = read

    def forward(self, token: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        """Decode one token (B,) with the leaves that the model reads; return logits (B, V) and the next state."""
        given = iter(parts)
        constants = (leaf.tensor for leaf in leaves(self.example))
        chosen = [next(given) if read else tensor for read, tensor in zip(self.read, constants, strict=True)]
        (states, mask, extra), state = with_leaves(self.example, iter(chosen))
        step = self.model.step(token, state, Memory(states, mask, extra))
        return (self.model.logits(step.output), *(leaf.tensor.clone() for leaf in carried(step.state)))


def parts_of(memory: Memory, state: Any) -> list[Leaf]:
    """Return the leaves of a memory and a decoder state."""
    return [
        *leaves({"states": memory.states, "mask": memory.mask, "extra": memory.extra}, "memory"),
        *leaves(state, "state"),
    ]


def carried(state: Any) -> list[Leaf]:
    """Return the leaves of a state that change from step to step."""
    return [leaf for leaf in leaves(state, "state") if not leaf.memory_only]


class Example(NamedTuple):
    """An example batch with the memory and decoder state of the model."""

    source: Tensor
    mask: Tensor
    token: Tensor
    nesting: tuple[Any, Any]  # (states, mask, extra), state
    parts: list[Leaf]


class Graphs:
    """The two traced and verified graphs of a model."""

    def __init__(self, model: Any, sizes: VocabularySizes) -> None:
        self.model = model
        self.sizes = sizes
        self.example = self.example_of(TRACED)
        others = [self.example_of(sizes) for sizes in OTHERS]
        self.names = [leaf.name for leaf in self.example.parts]
        self.carried = [leaf.name for leaf in carried(self.example.nesting[1])]
        with suppress_output(), without_kernels(), torch.no_grad(), lengths_recorded(model):
            encoder = trace(EncoderGraph(model), (self.example.source, self.example.mask))
            everything = DecoderGraph(model, self.example.nesting, [True] * len(self.names))
            tensors = tuple(leaf.tensor for leaf in self.example.parts)
            decoder = trace(everything, (self.example.token, *tensors))
        for other in others:
            self.check(encoder, decoder, everything, other)
        self.read = leaves_read(decoder, len(self.names))
        self.axes = [
            dynamic_axes([example.parts[index].tensor for example in (self.example, *others)])
            for index in range(len(self.names))
        ]

    def example_of(self, sizes: ExampleSizes) -> Example:
        """Return a random batch with its state after `sizes.steps` decoding steps."""
        generator = torch.Generator().manual_seed(1)
        mask = padding_mask(torch.tensor(sizes.lengths))
        first = Symbols.unknown + 1 if self.sizes.source > Symbols.unknown + 1 else 0
        source = torch.randint(first, self.sizes.source, mask.shape, generator=generator).masked_fill(
            ~mask, Symbols.pad
        )
        token = torch.full((len(sizes.lengths),), Symbols.begin)
        with torch.no_grad(), without_kernels():
            memory = self.model.encode(Source(source, mask))
            state = self.model.start(memory)
            for _ in range(sizes.steps):
                state = self.model.step(token, state, memory).state
                token = torch.randint(0, self.sizes.target, token.shape, generator=generator)
        nesting = ((memory.states, memory.mask, memory.extra), state)
        return Example(source, mask, token, nesting, parts_of(memory, state))

    def check(self, encoder: Any, decoder: Any, plain: DecoderGraph, example: Example) -> None:
        """Raise an error if the traces differ from the model on an example of other sizes."""
        tensors = [leaf.tensor for leaf in example.parts]
        with torch.no_grad(), without_kernels():
            plain.example = example.nesting
            expected = plain(example.token, *tensors)
            encoded = EncoderGraph(self.model)(example.source, example.mask)
            plain.example = self.example.nesting
            try:
                found = decoder(example.token, *tensors)
                found_encoded = encoder(example.source, example.mask)
                same = all(map(is_close, (*found, *found_encoded), (*expected, *encoded)))
            except RuntimeError:
                same = False
        if not same:
            raise untraceable()

    def save(self, folder: Path, name: str) -> None:
        """Write both graphs."""
        read = [index for index, reads_leaf in enumerate(self.read) if reads_leaf]
        inputs = ["token", *(self.names[index] for index in read)]
        next_names = [f"next.{name}" for name in self.carried]
        axes = dict(zip(self.names, self.axes, strict=True))
        ids = {"source": {0: "batch", 1: "source_length"}, "mask": {0: "batch", 1: "source_length"}}
        encoder_axes = {**ids, **{name: axes[name] for name in self.names}}
        decoder_axes = {
            "token": {0: "batch"},
            "logits": {0: "batch"},
            **{name: axes[name] for name in inputs[1:]},
            **{f"next.{name}": next_step_axes(axes[name]) for name in self.carried},
        }
        decoder = DecoderGraph(self.model, self.example.nesting, self.read)
        tensors = [self.example.parts[index].tensor for index in read]
        with suppress_output(), without_kernels(), torch.no_grad(), lengths_recorded(self.model):
            try:
                write_graph(
                    folder / ENCODER,
                    EncoderGraph(self.model),
                    (self.example.source, self.example.mask),
                    (["source", "mask"], self.names),
                    encoder_axes,
                )
                write_graph(
                    folder / DECODER,
                    decoder,
                    (self.example.token, *tensors),
                    (inputs, ["logits", *next_names]),
                    decoder_axes,
                )
            except torch.onnx.OnnxExporterError as error:
                what = str(error).splitlines()[0]
                raise SaccadeError(
                    f"a model of the family {name} cannot be written as ONNX: {what}", hint="run it with Saccade itself"
                ) from None

    def description(self, name: str, max_target_positions: int, tokenizers: dict[str, str]) -> dict[str, Any]:
        """Return the content of saccade.json, which describes how to run the graphs."""
        symbols = Symbols()
        read = [name for name, reads_leaf in zip(self.names, self.read, strict=True) if reads_leaf]
        return {
            "format": "saccade-onnx",
            "version": 1,
            "family": name,
            "symbols": {"pad": symbols.pad, "begin": symbols.begin, "end": symbols.end, "unknown": symbols.unknown},
            "max_target_positions": max_target_positions,
            "tokenizers": tokenizers,
            "encoder": {"file": ENCODER, "inputs": ["source", "mask"], "outputs": self.names},
            "decoder": {
                "file": DECODER,
                "inputs": ["token", *read],
                "outputs": ["logits", *(f"next.{name}" for name in self.carried)],
                "carried": {f"next.{name}": name for name in self.carried if name in read},
            },
            "how": [
                "source has token ids, each row with the end symbol, then padded; mask is true at real tokens",
                "run the encoder once; its outputs are the first values of the decoder inputs of the same name",
                "start with the begin symbol; take the token with the largest logit, except pad, begin and unknown",
                "at each step, feed the last token, and each output in carried to the input that it names, until end",
                "for beam search, repeat the rows of all decoder inputs, and reorder them together",
            ],
        }


def write_graph(
    path: Path, graph: nn.Module, example: tuple[Tensor, ...], names: tuple[list[str], list[str]], axes: dict[str, Any]
) -> None:
    """Trace a module and write it as ONNX."""
    torch.onnx.export(
        graph.eval(),
        example,
        str(path),
        input_names=names[0],
        output_names=names[1],
        dynamic_axes={name: named for name, named in axes.items() if named},
        opset_version=OPSET,
        dynamo=False,  # the dynamo exporter specializes lengths that Python code compares, and needs another package
    )


def trace(graph: nn.Module, example: tuple[Tensor, ...]) -> Any:
    """Trace a module on an example."""
    try:
        return torch.jit.trace(graph.eval(), example, check_trace=False)  # type: ignore[no-untyped-call]
    except (RuntimeError, TypeError, ValueError):
        raise untraceable() from None


def untraceable() -> SaccadeError:
    """Return the error for a model whose operations depend on its input."""
    return SaccadeError(
        "this model cannot be traced: the number of its operations depends on the length of its input",
        hint="docs/guide/exporting.md lists the families that can be exported; run this one with Saccade",
    )


def leaves_read(decoder: Any, parts: int) -> list[bool]:
    """Return, for each leaf, whether a traced decoder reads it: a Transformer reads projected keys, not the memory."""
    inputs = list(decoder.inlined_graph.inputs())[-parts:] if parts else []
    return [bool(value.uses()) for value in inputs]


def is_close(found: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors are equal up to rounding."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return (
        torch.allclose(found, expected, atol=TOLERANCE) if found.is_floating_point() else torch.equal(found, expected)
    )


def dynamic_axes(tensors: Sequence[Tensor]) -> dict[int, str]:
    """Name the dimensions that differ between the examples: batch, source length, decoded length."""
    batches = [len(sizes.lengths) for sizes in (TRACED, *OTHERS)]
    sources = [max(sizes.lengths) for sizes in (TRACED, *OTHERS)]
    named: dict[int, str] = {}
    for axis, extents in enumerate(zip(*(tensor.shape for tensor in tensors), strict=True)):
        if list(extents) == batches:
            named[axis] = "batch"
        elif list(extents) == sources:
            named[axis] = "source_length"
        elif len(set(extents)) > 1:
            named[axis] = f"length_{axis}"
    return named


def next_step_axes(axes: dict[int, str]) -> dict[int, str]:
    """Return the dimension names of the next state, whose decoded length is one larger."""
    return {axis: f"next_{name}" if name.startswith("length") else name for axis, name in axes.items()}


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Suppress all output of the tracer and the exporter; the traces are verified afterwards.

    The exporter prints some warnings, and a whole graph on failure, from C++, so the file descriptors are redirected.
    """
    streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
    for stream in streams:
        stream.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    with open(os.devnull, "w") as null, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for number in saved:
                os.dup2(null.fileno(), number)
            with contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
                yield
        finally:
            for number, copy in saved.items():
                os.dup2(copy, number)
                os.close(copy)

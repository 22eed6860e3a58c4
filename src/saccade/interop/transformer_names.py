"""The parameter names and layouts of our Transformer in the Marian and Pegasus models of Hugging Face.

Both are the network of Vaswani et al. 2017: Marian with the norm after the residual sum, Pegasus with the norm before
the sublayer and one more at the end of each stack. Three things differ from ours:

- Queries, keys and values have one matrix each; ours are concatenated along the rows of one matrix.
- Position vectors have all sines in the first half and all cosines in the second; ours interleave them. So the
  dimensions of the residual stream are permuted: the rows of every matrix that writes to it, the columns of every
  matrix that reads from it, and norms and embeddings. The outputs are equal up to the order of summation.
- Embedding tables have several names that may or may not refer to one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Entry(NamedTuple):
    """One of our parameters and the Hugging Face parameters that it concatenates, along the rows."""

    ours: str
    theirs: tuple[str, ...]
    permutes_rows: bool = False  # True = its first dimension is the residual stream
    permutes_columns: bool = False  # True = its second dimension is the residual stream


def residual_permutation(width: int) -> Tensor:
    """Return the permutation from our residual dimensions to those of Hugging Face: sines first, then cosines."""
    return torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])


def entries(encoder_layers: int, decoder_layers: int, *, final_norms: bool) -> Iterator[Entry]:
    """Yield the entries of all parameters except the embedding and position tables."""
    for side, layers in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        for layer in range(layers):
            ours, theirs = f"{side}.{layer}", f"model.{side}.layers.{layer}"
            self_attention = tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv")
            yield from linear_reading_residual(f"{ours}.attention.query_key_value", *self_attention)
            yield from linear_writing_residual(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj")
            yield from norm(f"{ours}.attention_residual.norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                cross = f"{theirs}.encoder_attn"
                yield from linear_reading_residual(f"{ours}.cross.query", f"{cross}.q_proj")
                yield from linear_reading_residual(f"{ours}.cross.key_value", f"{cross}.k_proj", f"{cross}.v_proj")
                yield from linear_writing_residual(f"{ours}.cross.output", f"{cross}.out_proj")
                yield from norm(f"{ours}.cross_residual.norm", f"{cross}_layer_norm")
            yield from linear_reading_residual(f"{ours}.feed_forward.expand", f"{theirs}.fc1")
            yield from linear_writing_residual(f"{ours}.feed_forward.contract", f"{theirs}.fc2")
            yield from norm(f"{ours}.feed_forward_residual.norm", f"{theirs}.final_layer_norm")
        if final_norms:
            yield from norm(f"{side}_norm", f"model.{side}.layer_norm")


def linear_reading_residual(ours: str, *theirs: str) -> Iterator[Entry]:
    """Yield the entries of a linear layer that reads from the residual stream."""
    yield Entry(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), permutes_columns=True)
    yield Entry(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))


def linear_writing_residual(ours: str, theirs: str) -> Iterator[Entry]:
    """Yield the entries of a linear layer that writes to the residual stream."""
    yield Entry(f"{ours}.weight", (f"{theirs}.weight",), permutes_rows=True)
    yield Entry(f"{ours}.bias", (f"{theirs}.bias",), permutes_rows=True)


def norm(ours: str, theirs: str) -> Iterator[Entry]:
    """Yield the entries of a layer norm of the residual stream."""
    yield Entry(f"{ours}.weight", (f"{theirs}.weight",), permutes_rows=True)
    yield Entry(f"{ours}.bias", (f"{theirs}.bias",), permutes_rows=True)


def table(ours: str, theirs: str) -> Entry:
    """Return the entry of a table of vectors of the residual stream: embeddings, the output layer, positions."""
    return Entry(ours, (theirs,), permutes_columns=True)


def to_theirs(entry: Entry, tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Return the Hugging Face parameters of an entry, each with its own storage."""
    concatenated = permute_residual(tensors[entry.ours].detach(), entry, order)
    parts = concatenated.chunk(len(entry.theirs))
    return {name: part.clone().contiguous() for name, part in zip(entry.theirs, parts, strict=True)}


def to_ours(entry: Entry, tensors: Mapping[str, Tensor], order: Tensor) -> Tensor:
    """Return our parameter of an entry."""
    concatenated = torch.cat([tensors[name].float() for name in entry.theirs])
    return permute_residual(concatenated, entry, order.argsort())


def permute_residual(tensor: Tensor, entry: Entry, order: Tensor) -> Tensor:
    """Return a tensor with its residual-stream dimensions permuted."""
    if entry.permutes_rows:
        tensor = tensor.index_select(0, order)
    return tensor.index_select(1, order) if entry.permutes_columns else tensor

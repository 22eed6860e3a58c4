"""Log-probabilities of outputs with a gradient, in little memory: the backward pass recomputes the logits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from saccade.interface import Memory, select
from saccade.symbols import Symbols


class Output(NamedTuple):
    """An output of the model."""

    tokens: tuple[int, ...]  # without the end symbol
    finished: bool  # False: cut off at the maximum length; its probability is that of the prefix


def log_probabilities(
    model: Any, memory: Memory, rows: Sequence[int], outputs: Sequence[Output], symbols: Symbols, *, max_positions: int
) -> Tensor:
    """Return log P of each output given its sentence, which is a row of the memory: (N,).

    Outputs are batched by length, at most `max_positions` positions at a time, to limit the memory for logits.
    """
    order = sorted(range(len(outputs)), key=lambda number: len(outputs[number].tokens))
    device = memory.mask.device
    found: list[Tensor] = []
    for numbers in batch_by_length(order, [len(one.tokens) + 1 for one in outputs], max_positions):
        sentences = torch.tensor([rows[number] for number in numbers], device=device)
        targets = pad_outputs([outputs[number] for number in numbers], symbols).to(device)
        found.append(score_group(model, select(memory, sentences), targets, symbols))
    return torch.cat(found).index_select(0, torch.tensor(order, device=device).argsort())


def score_group(model: Any, memory: Memory, targets: Tensor, symbols: Symbols) -> Tensor:
    """Return log P (n,) of padded targets (n, T), each given its row of the memory.

    Padding does not reach the output layer. The mode of the model is unchanged: dropout is active in training.
    """
    mask = targets != symbols.pad  # (n, T)
    prefix = torch.cat([torch.full_like(targets[:, :1], symbols.begin), targets[:, :-1]], dim=1)
    decoded = model.decode(prefix.masked_fill(~mask, symbols.pad), memory)
    real = mask.flatten().nonzero().squeeze(1)  # (m,)
    outputs = decoded.outputs.flatten(0, 1).index_select(0, real)  # (m, D)
    tokens = targets.flatten().index_select(0, real)  # (m,)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    logs: Tensor = RecomputedLogProbabilities.apply(model.logits, outputs, tokens, *parameters)  # type: ignore[no-untyped-call]
    return logs.new_zeros(len(targets)).index_add(0, real // targets.size(1), logs)


class RecomputedLogProbabilities(torch.autograd.Function):
    """Output layer and log-probabilities of targets; the backward pass recomputes the logits instead of storing them.

    Unlike chunked cross-entropy it cannot compute the gradient in the forward pass: the weight of a token depends on
    all outputs of its sentence.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Callable[[Tensor], Tensor], outputs: Tensor, targets: Tensor, *parameters: nn.Parameter
    ) -> Tensor:
        """outputs (m, D), targets (m,) to (m,)."""
        ctx.save_for_backward(outputs, targets)
        ctx.logits, ctx.parameters = logits, parameters
        ctx.rng_state, ctx.autocast = get_rng_state(outputs.device), current_autocast(outputs.device)
        with no_gradient(outputs.device):
            return target_log_probabilities(logits(outputs), targets)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Propagate the gradient (m,) through the recomputed output layer, with equal dropout masks."""
        outputs, targets = ctx.saved_tensors
        devices = [outputs.device] if outputs.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.enable_grad(), ctx.autocast():
            set_rng_state(ctx.rng_state, outputs.device)
            leaf = outputs.detach().requires_grad_()
            logs = target_log_probabilities(ctx.logits(leaf), targets)
            gradients = torch.autograd.grad(logs, [leaf, *ctx.parameters], gradient, allow_unused=True)
        return (None, gradients[0], None, *gradients[1:])


def target_log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability of one target per row, at least in float32: (m, V), (m,) to (m,)."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.log_softmax(-1, dtype=wide).gather(1, targets[:, None]).squeeze(1)


def batch_by_length(order: Sequence[int], lengths: Sequence[int], max_positions: int) -> Iterator[list[int]]:
    """Group indices that are sorted by length into batches of at most `max_positions` positions with padding."""
    group: list[int] = []
    for number in order:
        if group and (len(group) + 1) * lengths[number] > max_positions:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def pad_outputs(outputs: Sequence[Output], symbols: Symbols) -> Tensor:
    """Pad outputs to one tensor (n, T); finished ones get an end symbol."""
    rows = [[*output.tokens, *[symbols.end] * output.finished] for output in outputs]
    longest = max(map(len, rows))
    return torch.tensor([row + [symbols.pad] * (longest - len(row)) for row in rows])


@contextlib.contextmanager
def no_gradient(device: torch.device) -> Iterator[None]:
    """Disable gradients, and autocast's cache: it would return weights without gradient later."""
    with torch.no_grad(), current_autocast(device)():
        yield


def current_autocast(device: torch.device) -> Callable[[], torch.autocast]:
    """Return a factory of autocast contexts with the current settings, but without cache."""
    kind = device.type
    enabled, kept = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return partial(torch.autocast, kind, dtype=kept, enabled=enabled, cache_enabled=False)


def get_rng_state(device: torch.device) -> list[Tensor]:
    """Return the states of the generators that layers on this device use."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_rng_state(state: Sequence[Tensor], device: torch.device) -> None:
    """Restore the states that `get_rng_state` returned."""
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)

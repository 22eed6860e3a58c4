"""Log-probabilities of given targets: forced decoding, all positions at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from saccade.interface import Decoder, Memory
from saccade.symbols import Symbols

OUTPUT_ROWS = 1024  # positions that pass the output layer at once: fast enough, and all at once would fill the memory


class Scores(NamedTuple):
    """The log-probabilities of targets."""

    token_log_probabilities: Tensor  # (B, T) 0 on padding
    mask: Tensor  # (B, T), True = a token or the end symbol
    log_probability: Tensor  # (B,) the sum of each row


@torch.inference_mode()
def score(model: Decoder, memory: Memory, targets: Tensor, symbols: Symbols) -> Scores:
    """Return the log-probability of every token of targets (B, T), each ended by the end symbol and then padded."""
    mask = targets != symbols.pad  # (B, T)
    begin = torch.full_like(targets[:, :1], symbols.begin)
    decoded = model.decode(torch.cat([begin, targets[:, :-1]], dim=1), memory)
    log_probabilities = [
        target_log_probabilities(model.logits(outputs), tokens)
        for outputs, tokens in zip(
            torch.split(decoded.outputs[mask], OUTPUT_ROWS), torch.split(targets[mask], OUTPUT_ROWS), strict=True
        )
    ]
    token_log_probabilities = torch.zeros(targets.shape, device=targets.device)
    token_log_probabilities[mask] = torch.cat(log_probabilities)
    return Scores(token_log_probabilities, mask, token_log_probabilities.sum(dim=1))


def target_log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability (M,) of one target (M,) for each row of logits (M, V)."""
    logits = logits.float()
    return logits.gather(1, targets[:, None]).squeeze(1) - logits.logsumexp(dim=1)

"""Training of unigram subword vocabularies (Kudo 2018, "Subword Regularization", section 3.2).

The trainer of the tokenizers library is not deterministic: its result depends on hash map order and on threads. This
one always gives the same vocabulary.

All words are concatenated into one string. An *edge* of the segmentation lattice is a piece at a position:
`edges[n - 1, p]` is the piece of length n that starts at position p, or `NONE`. The lattices of all words are processed
in parallel (vectorized over words).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_PIECE_LENGTH = 16
MAX_SEEDS = 1_000_000
SHRINK = 0.75  # the fraction of pieces kept in a pruning round
PRUNING_GOAL = 1.1  # times the size: pruning stops there, then the most probable pieces are kept
EM_STEPS = 2
MIN_EXPECTED = 0.5  # pieces with a smaller expected count are dropped after an EM step
NONE = -1  # no piece; as an index it selects the last score, which is -inf

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class ScoredPiece(NamedTuple):
    """A piece and its log probability."""

    piece: str
    score: float


@dataclass(frozen=True)
class Spans:
    """Spans of the string, longest first: the words with their counts, or the pieces."""

    starts: Integers
    lengths: Integers
    counts: Floats

    @property
    def nodes(self) -> Integers:
        """The first lattice node of each span; a span has length + 1 nodes."""
        return np.cumsum(self.lengths + 1) - (self.lengths + 1)

    def count_at_least(self, length: int) -> int:
        """Return the number of spans with at least this length; they come first."""
        return int(np.searchsorted(-self.lengths, -length, side="right"))


@dataclass(frozen=True)
class Pieces:
    """Candidate pieces; the first `required` are the alphabet and are always kept."""

    starts: Integers  # the first occurrence of the piece
    lengths: Integers
    scores: Floats  # log probabilities
    edges: NDArray[np.int32]  # (MAX_PIECE_LENGTH, characters)
    required: int

    def __len__(self) -> int:
        return len(self.starts)

    def keep(self, kept: NDArray[np.bool_]) -> Pieces:
        """Return the pieces where the mask is True."""
        new_index = np.append(np.where(kept, np.cumsum(kept) - 1, NONE), NONE).astype(np.int32)
        return Pieces(
            self.starts[kept], self.lengths[kept], self.scores[kept], new_index[self.edges], required=self.required
        )


def train_unigram(words: Mapping[str, int], size: int) -> list[ScoredPiece]:
    """Train a unigram vocabulary of at most `size` pieces on word counts; the most probable piece comes first."""
    words = split_at_rare_characters(words, size)
    ordered = sorted(words, key=lambda word: (-len(word), word))
    string = "".join(ordered)
    lengths = np.array([len(word) for word in ordered], dtype=np.int64)
    spans = Spans(np.cumsum(lengths) - lengths, lengths, np.array([words[word] for word in ordered], dtype=np.float64))
    pieces = seed_pieces(string, spans)
    goal = int(PRUNING_GOAL * size)
    while True:
        for _ in range(EM_STEPS):
            pieces = em_step(spans, pieces)
        if len(pieces) <= goal:
            break
        pieces = pieces.keep(prune(spans, pieces, max(goal, int(SHRINK * len(pieces)))))
    texts = [string[start : start + length] for start, length in zip(pieces.starts, pieces.lengths, strict=True)]
    scored = [ScoredPiece(text, float(score)) for text, score in zip(texts, pieces.scores, strict=True)]
    alphabet, others = scored[: pieces.required], scored[pieces.required :]
    best = sorted(others, key=descending_score_key)[: size - len(alphabet)]
    return sorted([*alphabet, *best], key=descending_score_key)


def descending_score_key(entry: ScoredPiece) -> tuple[float, str]:
    """Sort key of a vocabulary: by falling score, then by piece."""
    return -entry.score, entry.piece


def split_at_rare_characters(words: Mapping[str, int], size: int) -> Mapping[str, int]:
    """Split words at all but the `size` most frequent characters; the rare characters are unknown."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    rare = sorted(characters, key=lambda character: (-characters[character], character))[size:]
    if not rare:
        return words
    cut = re.compile(f"[{re.escape(''.join(rare))}]")
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for part in filter(None, cut.split(word)):
            parts[part] += count
    return parts


def seed_pieces(string: str, spans: Spans) -> Pieces:
    """Return the seed vocabulary: the alphabet and repeated substrings, scored by the characters that they cover."""
    characters = np.frombuffer(string.encode("utf-32-le"), dtype=np.uint32)
    to_end = np.repeat(spans.starts + spans.lengths, spans.lengths) - np.arange(len(string))
    weights = np.repeat(spans.counts, spans.lengths)
    alphabet, letters = np.unique(characters, return_inverse=True)
    edges = np.full((MAX_PIECE_LENGTH, len(string)), NONE, dtype=np.int32)
    starts: list[Integers] = []
    frequencies: list[Floats] = []
    positions = np.arange(len(string))
    names = letters.astype(np.int64)
    for length in range(1, MAX_PIECE_LENGTH + 1):
        if length > 1:  # a substring repeats only if its prefix does
            longer = to_end[positions] >= length
            positions, names = positions[longer], names[longer]
            names = names * len(alphabet) + letters[positions + length - 1]
        if not len(positions):
            break
        _, first, names = np.unique(names, return_index=True, return_inverse=True)
        frequency: Floats = np.bincount(names, weights=weights[positions]).astype(np.float64, copy=False)
        repeated = (frequency >= 2) | (length == 1)
        offset = sum(map(len, starts))
        starts.append(positions[first][repeated])
        frequencies.append(frequency[repeated])
        survives = repeated[names]
        positions, names = positions[survives], (np.cumsum(repeated) - 1)[names[survives]]
        edges[length - 1, positions] = offset + names
    lengths = np.repeat(np.arange(1, len(starts) + 1), [len(found) for found in starts])
    covered = np.concatenate(frequencies) * lengths
    kept = np.zeros(len(covered), dtype=bool)
    kept[np.argsort(-covered, kind="stable")[:MAX_SEEDS]] = True
    kept[: len(alphabet)] = True
    scores = np.log(covered) - np.log(covered[kept].sum())
    return Pieces(np.concatenate(starts), lengths, scores, edges, required=len(alphabet)).keep(kept)


def em_step(spans: Spans, pieces: Pieces) -> Pieces:
    """Perform one EM step; pieces with a small expected count are dropped."""
    expected = expected_counts(spans, pieces)
    kept = expected >= MIN_EXPECTED
    kept[: pieces.required] = True
    floored = np.maximum(expected[kept], MIN_EXPECTED)
    return replace(pieces.keep(kept), scores=digamma(floored) - digamma(floored.sum(keepdims=True)))


def expected_counts(spans: Spans, pieces: Pieces) -> Floats:
    """Compute the expected count of each piece over all segmentations of all words (forward-backward algorithm)."""
    edges, scores = pieces.edges, pieces.scores
    with_none = np.append(scores, -np.inf)
    nodes = spans.nodes
    forward = np.full(int((spans.lengths + 1).sum()), -np.inf)
    backward = forward.copy()
    forward[nodes] = 0.0
    backward[nodes + spans.lengths] = 0.0
    longest = int(spans.lengths.max())
    for end in range(1, longest + 1):
        active = slice(0, spans.count_at_least(end))
        paths = [
            forward[nodes[active] + end - length] + with_none[edges[length - 1, spans.starts[active] + end - length]]
            for length in range(1, min(MAX_PIECE_LENGTH, end) + 1)
        ]
        forward[nodes[active] + end] = np.logaddexp.reduce(paths, axis=0)
    for remaining in range(1, longest + 1):
        active = slice(0, spans.count_at_least(remaining))
        node = nodes[active] + spans.lengths[active] - remaining
        start = spans.starts[active] + spans.lengths[active] - remaining
        paths = [
            backward[node + length] + with_none[edges[length - 1, start]]
            for length in range(1, min(MAX_PIECE_LENGTH, remaining) + 1)
        ]
        backward[node] = np.logaddexp.reduce(paths, axis=0)
    # For each position: its lattice node, and the log-likelihood and count of its word.
    node = np.arange(len(edges[0])) + np.repeat(np.arange(len(nodes)), spans.lengths)
    log_likelihood = np.repeat(forward[nodes + spans.lengths], spans.lengths)
    counts = np.repeat(spans.counts, spans.lengths)
    expected = np.zeros(len(scores))
    for length in range(1, MAX_PIECE_LENGTH + 1):
        (here,) = np.nonzero(edges[length - 1] != NONE)
        piece = edges[length - 1, here]
        share = np.exp(forward[node[here]] + scores[piece] + backward[node[here] + length] - log_likelihood[here])
        expected += np.bincount(piece, weights=share * counts[here], minlength=len(scores))
    return expected


class BacktraceStep(NamedTuple):
    """The next piece, from the end, of the best segmentation of each unfinished span."""

    spans: Integers
    pieces: NDArray[np.int32]


def best_segmentations(spans: Spans, pieces: Pieces, *, divided: bool = False) -> Iterator[BacktraceStep]:
    """Viterbi algorithm with backtrace from the last piece to the first; `divided` forbids one-piece segmentations."""
    edges = pieces.edges
    with_none = np.append(pieces.scores, -np.inf)
    nodes = spans.nodes
    best = np.full(int((spans.lengths + 1).sum()), -np.inf)
    best[nodes] = 0.0
    steps = np.zeros(len(best), dtype=np.int64)  # the length of the last piece on the best path to each node
    for end in range(1, int(spans.lengths.max(initial=0)) + 1):
        active = slice(0, spans.count_at_least(end))
        paths = np.stack(
            [
                best[nodes[active] + end - length] + with_none[edges[length - 1, spans.starts[active] + end - length]]
                for length in range(1, min(MAX_PIECE_LENGTH, end) + 1)
            ]
        )
        if divided and end <= MAX_PIECE_LENGTH:
            paths[-1, spans.lengths[active] == end] = -np.inf
        choice = np.argmax(paths, axis=0)
        steps[nodes[active] + end] = choice + 1
        best[nodes[active] + end] = paths[choice, np.arange(len(choice))]
    ends = spans.lengths.copy()
    unfinished = np.arange(len(ends))
    while len(unfinished):
        step = steps[nodes[unfinished] + ends[unfinished]]
        ends[unfinished] -= step
        yield BacktraceStep(unfinished, edges[step - 1, spans.starts[unfinished] + ends[unfinished]])
        unfinished = unfinished[ends[unfinished] > 0]


def prune(spans: Spans, pieces: Pieces, goal: int) -> NDArray[np.bool_]:
    """Return a mask: True = the alphabet, and the pieces whose removal would reduce the likelihood most."""
    frequency = np.zeros(len(pieces))
    for backtrace in best_segmentations(spans, pieces):
        frequency += np.bincount(backtrace.pieces, weights=spans.counts[backtrace.spans], minlength=len(pieces))
    total = frequency.sum()
    (used,) = np.nonzero((frequency > 0) & (pieces.lengths > 1))
    used = used[np.argsort(-pieces.lengths[used], kind="stable")]
    piece_spans = Spans(pieces.starts[used], pieces.lengths[used], frequency[used])
    # If a piece is removed, its occurrences are segmented into the pieces of its second-best segmentation.
    parts = np.zeros(len(used))
    likelihood = np.zeros(len(used))
    for backtrace in best_segmentations(piece_spans, pieces, divided=True):
        likelihood[backtrace.spans] += np.log(frequency[backtrace.pieces] + piece_spans.counts[backtrace.spans])
        parts[backtrace.spans] += 1
    likelihood -= parts * np.log(total + piece_spans.counts * (parts - 1))
    loss = piece_spans.counts * (np.log(piece_spans.counts) - np.log(total) - likelihood)

    kept = np.zeros(len(pieces), dtype=bool)
    kept[: pieces.required] = True
    kept[used[np.argsort(-loss, kind="stable")[: goal - pieces.required]]] = True
    return kept


def digamma(values: Floats) -> Floats:
    """Return the derivative of log gamma: variational EM with it favors sparse vocabularies (Liang and Klein 2007)."""
    import torch  # imported here: tokenizing does not need torch

    result: Floats = torch.digamma(torch.from_numpy(values)).numpy()
    return result

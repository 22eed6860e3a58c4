"""Reading the vocabulary of an untrusted tokenizer file.

Only the pieces, the merges (bpe) and the scores (unigram) are read from it. The pipeline follows from the kind of the
tokenizer, because a file could contain a regex that takes hours on a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from saccade.untrusted_files import shown

MAX_CHARACTERS = 2**22  # of all unigram pieces together: the library builds a trie with one node per character


class Vocabulary(NamedTuple):
    """Pieces by id, with the merges of bpe or the scores of unigram."""

    pieces: list[str]
    merges: list[tuple[str, str]]  # bpe, in order of priority
    scores: list[float]  # unigram, one for each piece


def read_vocabulary(model: Any, *, scored: bool) -> Vocabulary:
    """Read the vocabulary from the `model` part of a tokenizer file; invalid content raises ValueError."""
    if not isinstance(model, dict):
        raise ValueError("it has no model")
    entries = model.get("vocab")
    if scored and isinstance(entries, list):
        return scored_pieces(entries)
    if not scored and isinstance(entries, dict):
        pieces = pieces_by_id(entries)
        return Vocabulary(pieces, read_merges(model.get("merges", []), set(pieces)), [])
    raise ValueError("it has no vocabulary for this kind of tokenizer")


def pieces_by_id(entries: Mapping[str, Any]) -> list[str]:
    """Return the pieces of `{piece: id}` in order of their ids, which must be 0 to n - 1."""
    pieces: list[str | None] = [None] * len(entries)
    for piece, index in entries.items():
        if type(index) is not int or not 0 <= index < len(pieces):
            raise ValueError(f"the id {shown(index)} of the piece {shown(piece)} is not in 0 to {len(pieces) - 1}")
        if pieces[index] is not None:
            raise ValueError(f"the id {index} belongs to two pieces")
        pieces[index] = check_piece(piece)
    return [piece for piece in pieces if piece is not None]


def read_merges(merges: Any, pieces: Collection[str]) -> list[tuple[str, str]]:
    """Check the merges of a bpe model: both parts and their concatenation must be pieces."""
    if not isinstance(merges, list):
        raise ValueError("its merges are not a list")
    found: dict[tuple[str, str], None] = {}
    for merge in merges:
        if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)):
            raise ValueError(f"the merge {shown(merge)} is not a pair of pieces")
        left, right = merge
        for piece in (left, right, left + right):
            if piece not in pieces:
                raise ValueError(f"the merge {shown(merge)} needs the piece {shown(piece)}, which is missing")
        if (left, right) in found:
            raise ValueError(f"the merge {shown(merge)} is given twice")
        found[left, right] = None
    return list(found)


def scored_pieces(entries: list[Any]) -> Vocabulary:
    """Return the pieces and scores of `[[piece, score], …]`; the id is the index in the list."""
    pieces: dict[str, float] = {}
    for entry in entries:
        if not (isinstance(entry, list) and len(entry) == 2 and type(entry[1]) in (int, float)):
            raise ValueError(f"{shown(entry)} is not a piece with a score")
        piece, score = check_piece(entry[0]), entry[1]
        if piece in pieces:
            raise ValueError(f"the piece {shown(piece)} is given twice")
        if abs(score) > 1e9:
            raise ValueError(f"the score {shown(score)} of the piece {shown(piece)} is not a log-probability")
        pieces[piece] = float(score)
    if sum(map(len, pieces)) > MAX_CHARACTERS:
        raise ValueError(f"its pieces have more than {MAX_CHARACTERS:,} characters together")
    return Vocabulary(list(pieces), [], list(pieces.values()))


def check_piece(piece: Any) -> str:
    """Require a non-empty string; an empty piece would match everywhere."""
    if not isinstance(piece, str) or not piece:
        raise ValueError(f"{shown(piece)} is not a piece")
    return piece


def check_pipeline(saved: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise ValueError if the pipeline of a file differs from ours; keys that it leaves out are not compared."""
    read = {"vocab", "merges"} & ours["model"].keys()
    model = {name: value for name, value in saved["model"].items() if name not in read}
    for name, part in {**saved, "model": model}.items():
        if name not in ours:
            raise ValueError(f"its key {shown(name)} is unknown")
        if not agrees(part, ours[name]):
            raise ValueError(f"its {name} is not that of this kind of tokenizer")


def agrees(saved: Any, ours: Any) -> bool:
    """Return whether a saved part of a pipeline equals ours, apart from keys that it leaves out."""
    if isinstance(saved, dict) and isinstance(ours, dict):
        return all(name in ours and agrees(value, ours[name]) for name, value in saved.items())
    if isinstance(saved, list) and isinstance(ours, list):
        return len(saved) == len(ours) and all(map(agrees, saved, ours))
    return type(saved) is type(ours) and bool(saved == ours)

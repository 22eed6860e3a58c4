"""The vocabulary in a tokenizer file, checked: anybody may have written the file.

Only the pieces, the merges (bpe) and the scores (unigram) are taken from it. How a text is cut follows from the kind of
the tokenizer: a file could bring a pattern that takes hours on a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from saccade.untrusted_files import shown

MOST_LETTERS = 2**22  # of all unigram pieces together: they become a tree with a node a letter


class Vocabulary(NamedTuple):
    """Pieces by id, and what the subword models know besides."""

    pieces: list[str]
    merges: list[tuple[str, str]]  # bpe, the first to be made first
    scores: list[float]  # unigram, one a piece


def read_vocabulary(model: Any, *, scored: bool) -> Vocabulary:
    """The vocabulary in the `model` part of a tokenizer file, or a ValueError that says what is wrong with it."""
    if not isinstance(model, dict):
        raise ValueError("it has no model")
    entries = model.get("vocab")
    if scored and isinstance(entries, list):
        return scored_pieces(entries)
    if not scored and isinstance(entries, dict):
        pieces = pieces_by_id(entries)
        return Vocabulary(pieces, read_merges(model.get("merges", []), set(pieces)), [])
    raise ValueError("it has no vocabulary of this kind of tokenizer")


def pieces_by_id(entries: Mapping[str, Any]) -> list[str]:
    """The pieces of `{piece: id}`, where the ids are 0, 1, 2 … in any order."""
    pieces: list[str | None] = [None] * len(entries)
    for piece, place in entries.items():
        if type(place) is not int or not 0 <= place < len(pieces):
            raise ValueError(f"the id {shown(place)} of the piece {shown(piece)} is none of 0 to {len(pieces) - 1}")
        if pieces[place] is not None:
            raise ValueError(f"the id {place} belongs to two pieces")
        pieces[place] = check_piece(piece)
    return [piece for piece in pieces if piece is not None]


def read_merges(merges: Any, pieces: Collection[str]) -> list[tuple[str, str]]:
    """The merges of a bpe model: each makes a piece out of two."""
    if not isinstance(merges, list):
        raise ValueError("its merges are no list")
    found: dict[tuple[str, str], None] = {}
    for merge in merges:
        if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)):
            raise ValueError(f"the merge {shown(merge)} is no pair of pieces")
        left, right = merge
        for piece in (left, right, left + right):
            if piece not in pieces:
                raise ValueError(f"the merge {shown(merge)} needs the piece {shown(piece)}, which is not there")
        if (left, right) in found:
            raise ValueError(f"the merge {shown(merge)} stands twice")
        found[left, right] = None
    return list(found)


def scored_pieces(entries: list[Any]) -> Vocabulary:
    """The pieces and scores of `[[piece, score], …]`; an id is a place in the list."""
    pieces: dict[str, float] = {}
    for entry in entries:
        if not (isinstance(entry, list) and len(entry) == 2 and type(entry[1]) in (int, float)):
            raise ValueError(f"{shown(entry)} is no piece with its score")
        piece, score = check_piece(entry[0]), entry[1]
        if piece in pieces:
            raise ValueError(f"the piece {shown(piece)} stands twice")
        if abs(score) > 1e9:
            raise ValueError(f"the score {shown(score)} of the piece {shown(piece)} is no log-probability")
        pieces[piece] = float(score)
    if sum(map(len, pieces)) > MOST_LETTERS:
        raise ValueError(f"its pieces have more than {MOST_LETTERS:,} letters together")
    return Vocabulary(list(pieces), [], list(pieces.values()))


def check_piece(piece: Any) -> str:
    """A piece is a text that is not empty; an empty one would be found everywhere, without end."""
    if not isinstance(piece, str) or not piece:
        raise ValueError(f"{shown(piece)} is no piece")
    return piece


def check_pipeline(found: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse a file that says anything about its pipeline which is not so; what it leaves out is as in ours."""
    taken = {"vocab", "merges"} & ours["model"].keys()
    model = {name: value for name, value in found["model"].items() if name not in taken}
    for name, part in {**found, "model": model}.items():
        if name not in ours:
            raise ValueError(f"its part {shown(name)} is unknown")
        if not agrees(part, ours[name]):
            raise ValueError(f"its {name} is not the one of this kind of tokenizer")


def agrees(found: Any, ours: Any) -> bool:
    """Whether two parts of a pipeline are the same, but for keys that another version of the library left out."""
    if isinstance(found, dict) and isinstance(ours, dict):
        return all(name in ours and agrees(value, ours[name]) for name, value in found.items())
    if isinstance(found, list) and isinstance(ours, list):
        return len(found) == len(ours) and all(map(agrees, found, ours))
    return type(found) is type(ours) and bool(found == ours)

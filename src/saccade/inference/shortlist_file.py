"""Vocabulary shortlists from a file: which target tokens a sentence may be translated to.

They are the likely translations of its source tokens and the most frequent target tokens. The file is a lexicon of
pieces instead of words (`saccade lexicon --pieces RUN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from saccade.data.lexicon.lexicon_file import parse_entry
from saccade.data.reading.pair_files import read_lines
from saccade.data.reading.text_lines import FileError
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.inference.batching import SourceIds
from saccade.untrusted_files import shown

ALWAYS_ALLOWED = 256  # first ids of the vocabulary: symbols, letters, then the most frequent pieces


@dataclass(frozen=True)
class Shortlist:
    """The target tokens that each source token may be translated to."""

    translations: Mapping[int, tuple[int, ...]]
    always: range
    allow_copies: bool  # whether a source token may be copied: both sides share one vocabulary

    def allowed_tokens(self, source: SourceIds) -> list[int]:
        """Return the target tokens allowed for a source; with several tokenizers the first one counts."""
        ids = source[0]
        tokens = set(self.always).union(*(self.translations.get(token, ()) for token in set(ids)))
        return list(tokens.union(ids) if self.allow_copies else tokens)


def read_shortlist(path: str | Path, tokenizers: Tokenizers) -> Shortlist:
    """Return the shortlist in a lexicon file whose entries are pieces of these tokenizers."""
    sources, targets = ids_of_pieces(tokenizers.source), ids_of_pieces(tokenizers.target)
    translations: dict[int, set[int]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        entry = parse_entry(line, path, number, normalization=None)
        source, target = sources.get(entry.source), targets.get(entry.target)
        if source is None or target is None:
            side, piece = ("source", entry.source) if source is None else ("target", entry.target)
            raise FileError(
                "pieces",
                f"{shown(piece)} is not in the model's {side} vocabulary",
                file=path,
                line=number,
                hint="learn a lexicon of the model's pieces: saccade lexicon --pieces RUN",
            )
        translations.setdefault(source, set()).add(target)
    return Shortlist(
        {source: tuple(sorted(tokens)) for source, tokens in translations.items()},
        range(min(ALWAYS_ALLOWED, tokenizers.target.size)),
        allow_copies=tokenizers.source is tokenizers.target,
    )


def ids_of_pieces(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the id of every piece of a vocabulary."""
    return {piece: token for token, piece in enumerate(tokenizer.vocabulary)}

"""Which tokens a sentence may be translated to: the likely translations of its pieces, and the commonest tokens.

The file is a lexicon of pieces instead of words (`saccade lexicon --pieces RUN`).
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
from saccade.inference.batching import Reading
from saccade.untrusted_files import shown

ALWAYS = 256  # tokens from the beginning of the vocabulary: the symbols, the letters, then the commonest pieces


@dataclass(frozen=True)
class Shortlist:
    """The target tokens that each source token may become."""

    translations: Mapping[int, tuple[int, ...]]
    always: range
    copies: bool  # whether a source token may be written as it is: both sides have one vocabulary

    def tokens(self, reading: Reading) -> list[int]:
        """What a source may be translated to; of several readings the first one counts."""
        ids = reading[0]
        found = set(self.always).union(*(self.translations.get(token, ()) for token in set(ids)))
        return list(found.union(ids) if self.copies else found)


def read_shortlist(path: str | Path, tokenizers: Tokenizers) -> Shortlist:
    """Read a lexicon of the pieces of these tokenizers."""
    sources, targets = ids_of(tokenizers.source), ids_of(tokenizers.target)
    translations: dict[int, set[int]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        entry = parse_entry(line, path, number, normalization=None)
        source, target = sources.get(entry.source), targets.get(entry.target)
        if source is None or target is None:
            piece = entry.source if source is None else entry.target
            raise FileError(
                "pieces",
                f"{shown(piece)} is no piece of the model's {'source' if source is None else 'target'} vocabulary",
                file=path,
                line=number,
                do="learn a lexicon of its pieces: saccade lexicon --pieces RUN",
            )
        translations.setdefault(source, set()).add(target)
    return Shortlist(
        {source: tuple(sorted(some)) for source, some in translations.items()},
        range(min(ALWAYS, tokenizers.target.size)),
        copies=tokenizers.source is tokenizers.target,
    )


def ids_of(tokenizer: Tokenizer) -> dict[str, int]:
    """Every piece of a vocabulary with its id."""
    return {piece: token for token, piece in enumerate(tokenizer.vocabulary)}

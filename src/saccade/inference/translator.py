"""Raw text in, raw text out: a loaded model that translates, scores and explains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.checkpoint import GENERATION, ModelFolder, find_model_folder, load_model_folder
from saccade.config import build, merge
from saccade.data.lexicon import Lexicon, read_lexicon
from saccade.data.text import normalize
from saccade.data.tokenizer import Tokenizer
from saccade.data.tokenizer_pair import Tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.ensemble import Ensemble, Mean, shares_of
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.scoring import score
from saccade.decoding.search import search
from saccade.errors import SaccadeError
from saccade.inference.agreement import check_same_target, same_reading
from saccade.inference.device import choose_device
from saccade.inference.explanation import Explanation, alignment_of
from saccade.inference.side_by_side import side_by_side, workers_for
from saccade.inference.unknown_words import align, check_attends, replaced_text, words_of
from saccade.interface import Source, Translates
from saccade.symbols import Symbols

WINDOW = 2048  # sentences read at a time from a stream: enough to sort by length, little enough to hold


@dataclass(frozen=True)
class Candidate:
    """One output for one input."""

    text: str
    tokens: tuple[int, ...]
    score: float  # what candidates are ranked by: log-probability after the penalties
    log_probability: float
    pieces: tuple[str, ...]
    token_log_probabilities: tuple[float, ...]  # of the pieces, and of the end if it was reached


@dataclass(frozen=True)
class Translation:
    """One input with its outputs, best first."""

    source: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The best output."""
        return self.candidates[0].text


@dataclass(frozen=True)
class ScoredPair:
    """What the model thinks of a given target."""

    log_probability: float
    count: int  # tokens, the end included


Reading = tuple[list[int], ...]
"""The ids of one source text; several for an ensemble whose members read it in different pieces, one a member."""


class Translator:
    """A model with its tokenizers and decoding defaults."""

    def __init__(
        self,
        model: Translates,
        tokenizers: Tokenizers,
        decoding: DecodingConfig,
        device: torch.device | str = "cpu",
        *,
        source_tokenizers: Sequence[Tokenizer] = (),
        lexicon: Lexicon | None = None,
    ) -> None:
        """On a CPU several threads call the model at once, each with its own batch: it must keep nothing between calls.

        `source_tokenizers` are those of an ensemble's members, if they differ; else `tokenizers.source` reads.

        `lexicon` is for the decoding setting `replace_unknown="lexicon"`.
        """
        self.model = model
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.device = torch.device(device)
        self.source_tokenizers = tuple(source_tokenizers) or (tokenizers.source,)
        self.lexicon = lexicon

    @property
    def symbols(self) -> Symbols:
        """The ids that the search must know."""
        return self.tokenizers.target.symbols

    @overload
    def translate(self, texts: str, **decoding: Any) -> str: ...

    @overload
    def translate(self, texts: Sequence[str], **decoding: Any) -> list[str]: ...

    def translate(self, texts: str | Sequence[str], **decoding: Any) -> str | list[str]:
        """The best output for one text (a string) or for each of several (a list).

        Keywords are decoding settings: `translate(texts, beam=1)`.
        """
        settings = self.settings(decoding)
        if isinstance(texts, str):
            return next(self.stream([texts], settings)).text
        return [translation.text for translation in self.stream(texts, settings)]

    def settings(self, changes: Mapping[str, Any]) -> DecodingConfig:
        """The model's decoding defaults with some changed."""
        return (
            build(DecodingConfig, merge(self.decoding.model_dump(), changes), where="decoding")
            if changes
            else self.decoding
        )

    def stream(
        self, texts: Iterable[str], settings: DecodingConfig | None = None, prefixes: Iterable[str] | None = None
    ) -> Iterator[Translation]:
        """Translate any number of texts in order, a window at a time; memory does not grow with the input."""
        settings = settings or self.decoding
        lines, starts = iter(texts), iter(prefixes) if prefixes is not None else None
        first = 0
        while window := list(islice(lines, WINDOW)):
            forced = list(islice(starts, len(window))) if starts is not None else None
            if forced is not None and len(forced) != len(window):
                raise SaccadeError(f"{first + len(forced)} prefixes for more sources", do="give one prefix a line")
            yield from self.translate_window(window, settings, forced, first)
            first += len(window)

    def translate_window(
        self, texts: Sequence[str], settings: DecodingConfig, prefixes: Sequence[str] | None = None, first: int = 0
    ) -> list[Translation]:
        """Translate texts in batches of like length; `first` is the place of the first one in the user's input."""
        self.check_replacement(settings)
        sources = self.read(texts)
        forced = self.tokenizers.target.encode_batch(prefixes) if prefixes is not None else [[]] * len(texts)

        def decode(rows: list[int]) -> list[list[Hypothesis]]:
            with torch.inference_mode():
                memory = self.model.encode(self.source_of([sources[row] for row in rows]))
            return search(
                self.model,
                memory,
                settings.for_search,
                self.symbols,
                prefixes=[forced[row] for row in rows] if prefixes is not None else None,
                indices=[first + row for row in rows],
            )

        lengths = [longest(source) for source in sources]
        workers = workers_for(settings.batch_tokens, self.device)
        batches = list(length_batches(lengths, settings.batch_tokens // workers))
        decoded = side_by_side(decode, batches, workers)
        found = {
            row: hypotheses
            for rows, several in zip(batches, decoded, strict=True)
            for row, hypotheses in zip(rows, several, strict=True)
        }
        nothing = (Candidate("", (), 0.0, 0.0, (), ()),)  # an empty line stays an empty line
        outputs = {row: tuple(map(self.candidate, hypotheses)) for row, hypotheses in found.items()}
        if settings.replace_unknown != "none":
            outputs |= self.without_unknown(texts, sources, outputs, settings, prefixes)
        return [Translation(text, outputs.get(row, nothing)) for row, text in enumerate(texts)]

    def candidate(self, hypothesis: Hypothesis) -> Candidate:
        """A hypothesis as text."""
        target = self.tokenizers.target
        return Candidate(
            normalize(target.decode(hypothesis.tokens), "none"),  # bytes can spell a line break; an output is one line
            hypothesis.tokens,
            hypothesis.score,
            hypothesis.log_probability,
            tuple(target.pieces(hypothesis.tokens)),
            hypothesis.token_log_probabilities,
        )

    def without_unknown(
        self,
        texts: Sequence[str],
        sources: Sequence[Reading],
        outputs: Mapping[int, tuple[Candidate, ...]],
        settings: DecodingConfig,
        prefixes: Sequence[str] | None,
    ) -> dict[int, tuple[Candidate, ...]]:
        """The rows with an unknown word in an output, with a source word or a lexicon's entry in its place."""
        unknown = self.symbols.unknown
        cases = [(row, rank) for row, some in outputs.items() for rank in range(len(some))]
        cases = [(row, rank) for row, rank in cases if unknown in outputs[row][rank].tokens]
        changed = {row: list(outputs[row]) for row, _ in cases}
        target = self.tokenizers.target
        source_words = {row: words_of(self.tokenizers.source, texts[row]) for row in changed}
        forced = {row: words_of(target, prefixes[row]) for row in changed} if prefixes is not None else {}
        lexicon = self.lexicon if settings.replace_unknown == "lexicon" else None
        lengths = [max(longest(sources[row]), len(outputs[row][rank].tokens)) + 1 for row, rank in cases]
        for batch in length_batches(lengths, settings.batch_tokens):
            some = [cases[place] for place in batch]
            tokens = [outputs[row][rank].tokens for row, rank in some]
            alignments = align(self.model, self.source_of([sources[row] for row, _ in some]), tokens, self.symbols)
            for (row, rank), alignment in zip(some, alignments, strict=True):
                candidate = changed[row][rank]
                words, given = source_words[row], forced.get(row)
                text = replaced_text(target, candidate.tokens, alignment, words, lexicon, given)
                changed[row][rank] = replace(candidate, text=text)
        return {row: tuple(candidates) for row, candidates in changed.items()}

    def check_replacement(self, settings: DecodingConfig) -> None:
        """Refuse to replace unknown words where it cannot be done: before anything is decoded."""
        if settings.replace_unknown == "none":
            return
        if settings.replace_unknown == "lexicon" and self.lexicon is None:
            raise SaccadeError(
                "unknown words should be looked up in a lexicon, and there is none",
                do="name one with --lexicon FILE, load(…, lexicon=FILE) in Python, or set replace-unknown to source",
            )
        self.check_explainable()
        check_attends(self.model, self.source_batch([[self.tokenizers.source.symbols.unknown]]))

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[ScoredPair]:
        """The log-probability of each target given its source, by forced decoding."""
        if len(sources) != len(targets):
            raise SaccadeError(f"{len(sources)} sources and {len(targets)} targets", do="give one target a source")
        source_ids = self.read(sources)
        target_ids = self.tokenizers.target.encode_batch(targets)
        lengths = [max(longest(s), len(t)) + 1 for s, t in zip(source_ids, target_ids, strict=True)]
        scored: dict[int, ScoredPair] = {}
        for rows in length_batches(lengths, self.decoding.batch_tokens):
            with torch.inference_mode():
                memory = self.model.encode(self.source_of([source_ids[row] for row in rows]))
                ended = [torch.tensor([*target_ids[row], self.symbols.end]) for row in rows]
                padded = pad_sequence(ended, batch_first=True, padding_value=self.symbols.pad).to(self.device)
                scores = score(self.model, memory, padded, self.symbols)
            for place, row in enumerate(rows):
                scored[row] = ScoredPair(float(scores.log_probability[place]), len(ended[place]))
        return [scored[row] for row in range(len(sources))]

    @torch.inference_mode()
    def explain(self, text: str, target: str | Sequence[int] | None = None, **decoding: Any) -> Explanation:
        """Where the model looks while it writes its own output, or a given target (a text, or the ids of one)."""
        self.check_explainable()
        encoding = self.tokenizers.source.encode(text)
        if not encoding.ids:
            raise SaccadeError("there is nothing to look at in an empty text", do="give a sentence")
        source = self.source_batch([encoding.ids])
        memory = self.model.encode(source, record=True)
        if target is None:
            settings = self.settings({**decoding, "nbest": 1})
            tokens = list(search(self.model, memory, settings.for_search, self.symbols)[0][0].tokens)
        else:
            tokens = self.tokenizers.target.encode(target).ids if isinstance(target, str) else list(target)
        prefix = torch.tensor([[self.symbols.begin, *tokens]], device=self.device)
        decoded = self.model.decode(prefix, memory, record=True)
        attention = memory.attention + decoded.attention
        return Explanation(
            source=text,
            target=self.tokenizers.target.decode(tokens),
            source_pieces=(*encoding.pieces, "</s>"),
            target_pieces=(*self.tokenizers.target.pieces(tokens), "</s>"),
            attention=attention,
            alignment=alignment_of(attention),
        )

    def check_explainable(self) -> None:
        """Refuse an ensemble whose members do not read the same pieces: their attention has no common columns."""
        if len(self.source_tokenizers) > 1:
            raise SaccadeError(
                "the models of this ensemble read the source in different pieces, so there is no alignment of all",
                do="explain one of them, or name models with one source tokenizer",
            )

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """The ids of each text, as every source tokenizer reads it."""
        return list(zip(*(tokenizer.encode_batch(texts) for tokenizer in self.source_tokenizers), strict=True))

    def source_of(self, readings: Sequence[Reading]) -> Source:
        """Texts that were read as what the model encodes: one padded source, or one a member of an ensemble."""
        return source_from(readings, self.source_tokenizers, self.device)

    def source_batch(self, sequences: Sequence[Sequence[int]]) -> Source:
        """Id sequences of the one source tokenizer, each ended by the end symbol, as one padded source."""
        return self.source_of([(list(ids),) for ids in sequences])


def longest(reading: Reading) -> int:
    """How many ids a text has, by the tokenizer that makes most of it."""
    return max(map(len, reading))


def source_from(readings: Sequence[Reading], tokenizers: Sequence[Tokenizer], device: torch.device) -> Source:
    """One padded source of what one tokenizer read; a tuple of sources where there are several tokenizers."""
    columns = zip(tokenizers, zip(*readings, strict=True), strict=True)
    sources = tuple(padded_source(column, tokenizer.symbols, device) for tokenizer, column in columns)
    return sources[0] if len(sources) == 1 else Source(sources, sources[0].mask)


def padded_source(sequences: Sequence[Sequence[int]], symbols: Symbols, device: torch.device) -> Source:
    """Id sequences, each ended by the end symbol, as one padded source."""
    rows = [torch.tensor([*ids, symbols.end]) for ids in sequences]
    values = pad_sequence(rows, batch_first=True, padding_value=symbols.pad).to(device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    mask: Tensor = torch.arange(values.size(1), device=device) < lengths[:, None]
    return Source(values, mask)


def length_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Rows of like length together, longest first, so that what does not fit fails at once; empty rows are left out."""
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: -lengths[row])
    batch: list[int] = []
    for row in order:
        if batch and (len(batch) + 1) * lengths[batch[0]] > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def load(
    path: str | Path | Sequence[str | Path],
    device: str = "auto",
    *,
    mean: Mean = "arithmetic",
    weights: Sequence[float] | None = None,
    lexicon: str | Path | None = None,
) -> Translator:
    """A translator from a run directory or a model folder, on the fastest device there is.

    Several paths are an ensemble: the models decode together, by the `mean` of their probabilities, with `weights` if
    they should not count alike. Decoding defaults are those of the first. `lexicon` is a file of words that unknown
    ones can be replaced by.
    """
    place = choose_device(device)
    paths = [path] if isinstance(path, str | Path) else list(path)
    shares_of(weights, len(paths))  # refused before the models are read
    folders = [find_model_folder(Path(name)) for name in paths]
    translators = [translator_from(load_model_folder(folder, place), place, where=str(folder)) for folder in folders]
    found = translators[0]
    if len(translators) > 1:
        found = together(translators, [str(name) for name in paths], mean=mean, weights=weights)
    found.lexicon = None if lexicon is None else read_lexicon(lexicon)
    return found


def translator_from(folder: ModelFolder, device: torch.device | str = "cpu", where: str = "model") -> Translator:
    """A translator from a model folder in memory."""
    decoding = build(DecodingConfig, folder.generation, where=str(Path(where) / GENERATION))
    return Translator(folder.model, folder.tokenizers, decoding, device)


def together(
    translators: Sequence[Translator],
    names: Sequence[str],
    *,
    mean: Mean = "arithmetic",
    weights: Sequence[float] | None = None,
) -> Translator:
    """Several translators as one, with the decoding defaults of the first; `names` are for errors."""
    first = translators[0]
    check_same_target([translator.tokenizers.target for translator in translators], names)
    readers = [translator.tokenizers.source for translator in translators]
    source_tokenizers = readers[:1] if same_reading(readers) else readers
    example = source_from([([],) * len(source_tokenizers)], source_tokenizers, first.device)
    ensemble = Ensemble([translator.model for translator in translators], example, mean=mean, weights=weights)
    return Translator(ensemble, first.tokenizers, first.decoding, first.device, source_tokenizers=source_tokenizers)

"""Raw text in, raw text out: a loaded model that translates, scores and explains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

import torch
from torch.nn.utils.rnn import pad_sequence

from saccade.config import build, merge
from saccade.data.lexicon.lexicon_file import Lexicon
from saccade.data.reading.normalization import normalize
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.scoring import score
from saccade.decoding.search import SearchRequest, search
from saccade.errors import SaccadeError
from saccade.inference.batching import Reading, length_batches, longest, source_from
from saccade.inference.engine import Engine, Found, TorchEngine, Work
from saccade.inference.engines import Engines, Exporter
from saccade.inference.explanation import Explanation, alignment_of
from saccade.inference.opening import Deferred
from saccade.inference.shortlist import Shortlist
from saccade.inference.streaming import AtHand, read_windows
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
    token_log_probabilities: tuple[float, ...]  # of the pieces, and of the end if it was reached; none if nobody asked


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


class Translator:
    """A model with its tokenizers and decoding defaults."""

    def __init__(
        self,
        model: Translates | Deferred[Translates],
        tokenizers: Tokenizers,
        decoding: DecodingConfig,
        device: torch.device | str = "cpu",
        *,
        source_tokenizers: Sequence[Tokenizer] = (),
        lexicon: Lexicon | None = None,
        shortlist: Shortlist | None = None,
        exporter: Exporter | None = None,
    ) -> None:
        """On a CPU several threads call the model at once, each with its own batch: it must keep nothing between calls.

        `source_tokenizers` are those of an ensemble's members, if they differ; else `tokenizers.source` reads.

        `lexicon` is for the decoding setting `replace_unknown="lexicon"`, a `shortlist` keeps every search to likely
        translations of its source; without an `exporter` torch does everything.
        """
        self.load_model: Callable[[], Translates] = model if isinstance(model, Deferred) else lambda: model
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.device = torch.device(device)
        self.source_tokenizers = tuple(source_tokenizers) or (tokenizers.source,)
        self.lexicon = lexicon
        self.shortlist = shortlist
        torch_engine = TorchEngine(self.load_model, self.source_tokenizers, self.symbols, self.device)
        self.engines = Engines(torch_engine, tokenizers.target.size, exporter)

    @property
    def model(self) -> Translates:
        """The model itself; CTranslate2 does without it."""
        return self.load_model()

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
            return next(self.stream([texts], settings, scores=False)).text
        return [translation.text for translation in self.stream(texts, settings, scores=False)]

    def settings(self, changes: Mapping[str, Any]) -> DecodingConfig:
        """The model's decoding defaults with some changed."""
        return (
            build(DecodingConfig, merge(self.decoding.model_dump(), changes), where="decoding")
            if changes
            else self.decoding
        )

    def stream(
        self,
        texts: Iterable[str],
        settings: DecodingConfig | None = None,
        prefixes: Iterable[str] | None = None,
        *,
        scores: bool = True,
        at_hand: AtHand | None = None,
    ) -> Iterator[Translation]:
        """Translate any number of texts in order, a window at a time; memory does not grow with the input.

        Without `scores` those of the candidates may be missing, which saves time. An engine that works by itself does
        so while the next window is read, as long as `at_hand` says that there is no waiting for it: the texts of a list
        always are, those of an iterator by default never.
        """
        settings = settings or self.decoding
        ahead = self.engine(settings, prefixes=prefixes is not None).works_ahead
        at_hand = at_hand or (lambda: isinstance(texts, Sequence))
        waiting: Callable[[], list[Translation]] | None = None
        for window in read_windows(texts, prefixes, WINDOW, at_hand if ahead else None):
            if window is not None:
                begun = self.begin(window.texts, settings, window.prefixes, window.first, scores=scores)
                if waiting is not None:
                    yield from waiting()
                waiting = begun
            if waiting is not None and (window is None or not ahead):
                yield from waiting()
                waiting = None
        if waiting is not None:
            yield from waiting()

    def engine(self, settings: DecodingConfig, *, prefixes: bool = False) -> Engine:
        """The engine that some work is for, or an error if it cannot be done."""
        if self.shortlist is not None and settings.sample:
            raise SaccadeError("a shortlist is for searches, not for drawing", do="leave the shortlist or sample out")
        return self.engines.choose(settings.for_search, prefixes=prefixes, shortlist=self.shortlist is not None)

    def allowed(self, sources: Sequence[Reading]) -> list[list[int]] | None:
        """The tokens that each source may be translated to; None: all."""
        return None if self.shortlist is None else [self.shortlist.tokens(source) for source in sources]

    def translate_window(
        self,
        texts: Sequence[str],
        settings: DecodingConfig,
        prefixes: Sequence[str] | None = None,
        first: int = 0,
        *,
        scores: bool = True,
    ) -> list[Translation]:
        """Translate texts in batches of like length; `first` is the place of the first one in the user's input."""
        return self.begin(texts, settings, prefixes, first, scores=scores)()

    def begin(
        self,
        texts: Sequence[str],
        settings: DecodingConfig,
        prefixes: Sequence[str] | None,
        first: int,
        *,
        scores: bool,
    ) -> Callable[[], list[Translation]]:
        """Begin to translate some texts; what is returned waits for the end of it."""
        self.check_replacement(settings)
        sources = self.read(texts)
        forced = None if prefixes is None else self.tokenizers.target.encode_batch(prefixes)
        indices = range(first, first + len(texts))
        work = Work(sources, settings.for_search, indices, forced, self.allowed(sources), scores)
        decoded = self.engine(settings, prefixes=prefixes is not None).begin(work)
        return partial(self.finish, texts, sources, settings, prefixes, decoded)

    def finish(
        self,
        texts: Sequence[str],
        sources: Sequence[Reading],
        settings: DecodingConfig,
        prefixes: Sequence[str] | None,
        decoded: Callable[[], Found],
    ) -> list[Translation]:
        """Wait for the hypotheses of some texts, and write them out."""
        nothing = (Candidate("", (), 0.0, 0.0, (), ()),)  # an empty line stays an empty line
        with closing(decoded()) as found:  # one by one, while others are still searched
            outputs = {row: tuple(map(self.candidate, hypotheses)) for row, hypotheses in found}
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
        cases = [(row, rank) for row, some in sorted(outputs.items()) for rank in range(len(some))]
        cases = [(row, rank) for row, rank in cases if unknown in outputs[row][rank].tokens]
        changed = {row: list(outputs[row]) for row, _ in cases}
        target = self.tokenizers.target
        source_words = {row: words_of(self.tokenizers.source, texts[row]) for row in changed}
        forced = {row: words_of(target, prefixes[row]) for row in changed} if prefixes is not None else {}
        lexicon = self.lexicon if settings.replace_unknown == "lexicon" else None
        lengths = [max(longest(sources[row]), len(outputs[row][rank].tokens)) + 1 for row, rank in cases]
        for batch in length_batches(lengths, settings.tokens_at_once):
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
        for rows in length_batches(lengths, self.decoding.tokens_at_once):
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
            allowed = self.allowed([(encoding.ids,)])
            request = SearchRequest(memory, settings.for_search, self.symbols, allowed=allowed)
            tokens = list(search(self.model, request)[0][0].tokens)
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

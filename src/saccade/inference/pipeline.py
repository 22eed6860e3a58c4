"""From texts to translations: tokenize, split long sources, search, detokenize, replace unknown words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from saccade.data.reading.normalization import normalize
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.inference.batching import SourceIds, length_batches, max_ids
from saccade.inference.distinct_outputs import (
    WIDER_SEARCHES,
    ShortListReport,
    merge_duplicates,
    merges_duplicates,
    wider_search_settings,
)
from saccade.inference.engines.engine import DecodeRequest, DecodeResults
from saccade.inference.long_sources import (
    DEFAULT_MAX_SOURCE,
    TOKENIZED_AT_ONCE,
    LongSourceReport,
    SplitText,
    join_parts,
    split_text,
)
from saccade.inference.translation import EMPTY, Candidate, Translation
from saccade.inference.unknown_words import align, text_with_replacements
from saccade.inference.words import words_of

if TYPE_CHECKING:
    from saccade.inference.translator import Translator

WINDOW = 2048  # sentences read at a time from a stream: enough to sort by length, few enough to hold in memory
PART_INDEX = 2**40  # the random numbers of part p of input i have the key i + p * PART_INDEX

Results = Callable[[], Iterator[Translation]]
"""A function that waits for the translations of submitted texts and yields them in order."""


class Texts(NamedTuple):
    """Texts that are translated together."""

    texts: Sequence[str]
    indices: Sequence[int]  # in the user's input: they key the random numbers, and errors name them
    prefixes: Sequence[str] | None = None

    def subset(self, numbers: Sequence[int]) -> Texts:
        """Some of the texts."""
        prefixes = None if self.prefixes is None else [self.prefixes[number] for number in numbers]
        return Texts([self.texts[number] for number in numbers], [self.indices[number] for number in numbers], prefixes)


class Pipeline:
    """All steps for the texts of one stream, with one set of decoding settings."""

    def __init__(self, translator: Translator, settings: DecodingConfig, *, scores: bool) -> None:
        self.translator = translator
        self.settings = settings
        self.scores = scores
        self.long_sources = LongSourceReport(settings)
        self.short_lists = ShortListReport(settings)

    def report(self) -> None:
        """Report, at the end of the stream, what happened to several of its inputs."""
        self.long_sources.finish()
        self.short_lists.finish()

    def submit(self, given: Texts, limit: int | None) -> Results:
        """Submit texts to an engine; sources of more than `limit` tokens are searched later, one after the other."""
        translator, settings = self.translator, self.settings
        translator.check_replacement(settings)
        split = self.split_long(given, limit)
        sources = translator.source_ids(["" if index in split else text for index, text in enumerate(given.texts)])
        if limit is not None:
            for index, source in enumerate(sources):
                if max_ids(source) > limit and index not in split:
                    split[index] = self.split(given, index, limit)
                    sources[index] = ([],) * len(source)
        forced = None if given.prefixes is None else translator.tokenizers.target.encode_batch(given.prefixes)
        allowed = translator.allowed_tokens(sources)
        request = DecodeRequest(sources, settings.for_search, given.indices, forced, allowed, self.scores)
        results = translator.engine(settings, prefixes=forced is not None).submit(request)
        return partial(self.finish, given, request, split, results)

    def finish(
        self,
        given: Texts,
        request: DecodeRequest,
        split: Mapping[int, SplitText],
        results: Callable[[], DecodeResults],
    ) -> Iterator[Translation]:
        """Wait for the hypotheses of submitted texts, and yield their translations in order.

        Long texts come last in time: those before the first of them are yielded before its search begins.
        """
        outputs = self.distinct_outputs(given, request, results)
        for index, text in enumerate(given.texts):
            if index in split:
                yield self.translate_parts(given, index, split[index])
            else:
                yield Translation(text, outputs.get(index, (EMPTY,)))

    def outputs(
        self, given: Texts, request: DecodeRequest, results: Callable[[], DecodeResults]
    ) -> dict[int, tuple[Candidate, ...]]:
        """Return the outputs of every source of a request; empty sources have none."""
        with closing(results()) as finished:  # detokenize finished sources while others are still searched
            outputs = {index: tuple(map(self.candidate, hypotheses)) for index, hypotheses in finished}
        if self.settings.replace_unknown != "none":
            outputs |= self.replace_unknown(given, request.sources, outputs)
        return outputs

    def distinct_outputs(
        self, given: Texts, request: DecodeRequest, results: Callable[[], DecodeResults]
    ) -> dict[int, tuple[Candidate, ...]]:
        """Return the n best outputs of every source, with different texts; sources with fewer are searched again."""
        outputs = self.outputs(given, request, results)
        if not merges_duplicates(self.settings):
            return outputs
        count, settings = self.settings.nbest, request.settings
        distinct = {index: merge_duplicates(candidates) for index, candidates in outputs.items()}
        for _ in range(WIDER_SEARCHES):
            # A search that finds fewer hypotheses than requested has found all.
            few = [
                index
                for index, candidates in distinct.items()
                if len(candidates) < count and len(outputs[index]) >= settings.nbest
            ]
            wider = wider_search_settings(settings)
            engine = self.translator.engine_or_none(wider, prefixes=request.prefixes is not None)
            if not few or engine is None:
                break
            settings = wider
            subset = replace(request.subset(few), settings=settings)
            found = self.outputs(given.subset(few), subset, engine.submit(subset))
            for number, candidates in found.items():
                index = few[number]
                outputs[index] = candidates
                distinct[index] = merge_duplicates([*distinct[index], *candidates])
        for index, candidates in distinct.items():
            if len(candidates) < count:
                self.short_lists.add(given.indices[index] % PART_INDEX)
        return {index: candidates[:count] for index, candidates in distinct.items()}

    def split_long(self, given: Texts, limit: int | None) -> dict[int, SplitText]:
        """Split the texts that are too long to be tokenized in one call, if they have more than `limit` tokens."""
        if limit is None:
            return {}
        long = [index for index, text in enumerate(given.texts) if len(text) > TOKENIZED_AT_ONCE]
        split = {index: self.split(given, index, limit) for index in long}
        return {index: text for index, text in split.items() if text.tokens > limit}

    def split(self, given: Texts, index: int, limit: int) -> SplitText:
        """Split or truncate a text, with a warning."""
        truncates = self.settings.long_source == "truncate"
        text = split_text(given.texts[index], self.translator.source_tokenizers, limit, at_sentences=not truncates)
        if text.tokens > limit:
            self.long_sources.add(given.indices[index], text, limit)
        return text.truncated() if truncates else text

    def translate_parts(self, given: Texts, index: int, split: SplitText) -> Translation:
        """Translate the parts of a long text, and join their outputs; a forced prefix belongs to the first part."""
        found: list[Translation] = []
        for first in range(0, len(split.parts), WINDOW):
            parts = split.parts[first : first + WINDOW]
            indices = [given.indices[index] + number * PART_INDEX for number in range(first, first + len(parts))]
            prefixes = None
            if given.prefixes is not None and first == 0:
                prefixes = [given.prefixes[index], *[""] * (len(parts) - 1)]
            found += self.submit(Texts(parts, indices, prefixes), limit=None)()
        return join_parts(given.texts[index], split, found, self.settings, given.indices[index])

    def candidate(self, hypothesis: Hypothesis) -> Candidate:
        """Return a hypothesis with its text."""
        target = self.translator.tokenizers.target
        return Candidate(
            normalize(target.decode(hypothesis.tokens), "none"),  # byte tokens can spell a line break; keep one line
            hypothesis.tokens,
            hypothesis.score,
            hypothesis.log_probability,
            tuple(target.pieces(hypothesis.tokens)),
            hypothesis.token_log_probabilities,
            finished=hypothesis.finished,
        )

    def replace_unknown(
        self, given: Texts, sources: Sequence[SourceIds], outputs: Mapping[int, tuple[Candidate, ...]]
    ) -> dict[int, tuple[Candidate, ...]]:
        """Return the outputs that contain unknown words, with source words or lexicon entries instead."""
        translator, symbols = self.translator, self.translator.symbols
        keys = [
            (index, rank)
            for index, candidates in sorted(outputs.items())
            for rank, candidate in enumerate(candidates)
            if symbols.unknown in candidate.tokens
        ]
        changed = {index: list(outputs[index]) for index, _ in keys}
        target, prefixes = translator.tokenizers.target, given.prefixes
        source_words = {index: words_of(translator.tokenizers.source, given.texts[index]) for index in changed}
        prefix_words = {} if prefixes is None else {index: words_of(target, prefixes[index]) for index in changed}
        lexicon = translator.lexicon if self.settings.replace_unknown == "lexicon" else None
        lengths = [max(max_ids(sources[index]), len(outputs[index][rank].tokens)) + 1 for index, rank in keys]
        for batch in length_batches(lengths, self.settings.tokens_at_once):
            batch_keys = [keys[number] for number in batch]
            tokens = [outputs[index][rank].tokens for index, rank in batch_keys]
            source = translator.collate([sources[index] for index, _ in batch_keys])
            alignments = align(translator.plan, source, tokens, symbols)
            for (index, rank), alignment in zip(batch_keys, alignments, strict=True):
                candidate = changed[index][rank]
                text = text_with_replacements(
                    *(target, candidate.tokens, alignment, source_words[index], lexicon, prefix_words.get(index))
                )
                changed[index][rank] = replace(candidate, text=text)
        return {index: tuple(candidates) for index, candidates in changed.items()}


def source_limit(settings: DecodingConfig, max_positions: int | None) -> int | None:
    """Return the maximum number of tokens of a source, without the end symbol; `max_positions` counts it."""
    if settings.max_source == 0:
        return None
    limit = DEFAULT_MAX_SOURCE if settings.max_source is None else settings.max_source
    return limit if max_positions is None else max(1, min(limit, max_positions - 1))

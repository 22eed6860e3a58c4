"""Raw text in, raw text out: a loaded model that translates, scores and explains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, overload

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from saccade.arguments import check_call, check_mapping, check_text, check_texts, is_iterable, list_texts, read_texts
from saccade.config import build, merge
from saccade.data.lexicon.lexicon_file import Lexicon
from saccade.data.reading.normalization import normalize
from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.data.tokenizers.tokenizer_pair import Tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.scoring import score
from saccade.decoding.search import SearchRequest, search
from saccade.errors import SaccadeError, UsageError
from saccade.inference.batching import SourceIds, collate_sources, length_batches, max_ids
from saccade.inference.deferred_model import DeferredModel
from saccade.inference.device import choose_device
from saccade.inference.engines.ctranslate2_export import CTranslate2Exporter
from saccade.inference.engines.engine import Engine, Precision
from saccade.inference.engines.selection import EngineSelector
from saccade.inference.engines.torch_engine import TorchEngine
from saccade.inference.explanation import Explanation, alignment_of
from saccade.inference.optional_plan import inference_plan
from saccade.inference.pipeline import WINDOW, Pipeline, Results, Texts, source_limit
from saccade.inference.shortlist_file import Shortlist
from saccade.inference.streaming import InputReady, read_windows
from saccade.inference.translation import ScoredPair, Translation
from saccade.inference.unknown_words import check_cross_attention, words_with_replacements
from saccade.inference.words import piece_words_of_output, piece_words_of_text, with_replacements, words_of
from saccade.interface import Decoder, EncoderDecoder, Source, TranslationModel
from saccade.symbols import Symbols
from saccade.untrusted_files import shown


class Translator:
    """A model with its tokenizers and decoding defaults."""

    @check_call
    def __init__(
        self,
        model: TranslationModel | DeferredModel[TranslationModel],
        tokenizers: Tokenizers,
        decoding: DecodingConfig,
        device: torch.device | str = "cpu",
        *,
        source_tokenizers: Sequence[Tokenizer] = (),
        lexicon: Lexicon | None = None,
        shortlist: Shortlist | None = None,
        exporter: CTranslate2Exporter | None = None,
        precision: Precision = "float32",
    ) -> None:
        """On a CPU several threads call the model at once, each with its own batch: it must keep no state.

        `source_tokenizers` are those of the members of an ensemble if they differ, by default `tokenizers.source`.

        The `lexicon` serves the decoding setting `replace_unknown="lexicon"`; a `shortlist` restricts every search to
        likely translations of its source. Without an `exporter` every request goes to torch.
        """
        check_parts(model, tokenizers, decoding)
        self.load_model: Callable[[], TranslationModel] = model if isinstance(model, DeferredModel) else lambda: model
        self.precision: Precision = precision
        self.load_plan = DeferredModel(lambda: inference_plan(self.load_model(), quantize=precision == "int8"))
        self.tokenizers = tokenizers
        self.decoding = decoding
        self.last_settings: tuple[list[tuple[str, type, Any]], DecodingConfig, DecodingConfig] | None = None
        self.device = device if isinstance(device, torch.device) else choose_device(device)
        self.source_tokenizers = tuple(source_tokenizers) or (tokenizers.source,)
        self.lexicon = lexicon
        self.shortlist = shortlist
        self.exporter = exporter
        torch_engine = TorchEngine(self.load_plan, self.source_tokenizers, self.symbols, self.device)
        self.engines = EngineSelector(torch_engine, tokenizers.target.size, exporter)

    @property
    def model(self) -> TranslationModel:
        """The model; loaded on first access, because CTranslate2 with a cached export does not need it."""
        return self.load_model()

    @property
    def plan(self) -> EncoderDecoder:
        """The plan of the model: the same methods, compiled for inference where possible."""
        return self.load_plan()

    @property
    def symbols(self) -> Symbols:
        """The ids of the special symbols."""
        return self.tokenizers.target.symbols

    @overload
    def translate(self, texts: str, *, nbest: int, **decoding: Any) -> list[str]: ...

    @overload
    def translate(self, texts: str, **decoding: Any) -> str: ...

    @overload
    def translate(self, texts: Iterable[str], *, nbest: int, **decoding: Any) -> list[list[str]]: ...

    @overload
    def translate(self, texts: Iterable[str], **decoding: Any) -> list[str]: ...

    @check_call
    def translate(self, texts: str | Iterable[str], **decoding: Any) -> str | list[str] | list[list[str]]:
        """Translate one text (a string) or several (a list or another iterable).

        The result is the best output, or a list with the best output of each text. With `nbest=n` each output is a list
        of n, best first. Keywords are decoding settings: `translate(texts, beam=1)`.
        """
        settings = self.settings(decoding)
        translations = self.stream([texts] if isinstance(texts, str) else texts, settings, scores=False)
        if "nbest" in decoding:
            lists = [[candidate.text for candidate in translation.candidates] for translation in translations]
            return lists[0] if isinstance(texts, str) else lists
        outputs = [translation.text for translation in translations]
        return outputs[0] if isinstance(texts, str) else outputs

    @check_call
    def settings(self, changes: Mapping[str, Any]) -> DecodingConfig:
        """Return the model's decoding defaults with changes."""
        check_mapping(changes, "changes", hint='give a dict such as {"beam": 1}')
        if not changes:
            return self.decoding
        # Building a config takes 5 % of the time of one short sentence: that of the last call is kept.
        key = [(name, type(value), value) for name, value in changes.items()]
        reusable = all(isinstance(value, int | float | str) for value in changes.values())
        if reusable and self.last_settings is not None:
            last_key, last_defaults, last = self.last_settings
            if last_defaults is self.decoding and last_key == key:
                return last
        found = build(DecodingConfig, merge(self.decoding.model_dump(), changes), where="decoding")
        if reusable:
            self.last_settings = key, self.decoding, found
        return found

    @check_call
    def stream(
        self,
        texts: Iterable[str],
        settings: DecodingConfig | None = None,
        prefixes: Iterable[str] | None = None,
        *,
        scores: bool = True,
        input_ready: InputReady | None = None,
    ) -> Iterator[Translation]:
        """Translate any number of texts in order, a window at a time; memory does not grow with the input.

        Without `scores` those of the candidates may be missing, which is faster. An engine that runs in the background
        does so while the next window is read, unless `input_ready` says that reading would block. By default reading
        a sequence never blocks, and reading an iterator may block.
        """
        check_texts(texts, "texts")
        check_settings(settings)
        if prefixes is not None:
            check_texts(prefixes, "prefixes")
            if isinstance(texts, Sized) and isinstance(prefixes, Sized) and len(texts) != len(prefixes):
                raise SaccadeError(
                    f"{len(prefixes)} prefixes for {len(texts)} texts", hint="give one prefix per text; it may be empty"
                )
            prefixes = read_texts(prefixes, "prefixes")
        input_ready = input_ready or (lambda: isinstance(texts, Sequence))
        return self.stream_windows(
            read_texts(texts, "texts"), settings or self.decoding, prefixes, scores=scores, input_ready=input_ready
        )

    def stream_windows(
        self,
        texts: Iterable[str],
        settings: DecodingConfig,
        prefixes: Iterable[str] | None,
        *,
        scores: bool,
        input_ready: InputReady,
    ) -> Iterator[Translation]:
        """Translate checked texts, a window at a time."""
        background = self.engine(settings, prefixes=prefixes is not None).runs_in_background
        pipeline, limit = Pipeline(self, settings, scores=scores), self.source_limit(settings)
        pending: Results | None = None
        for window in read_windows(texts, prefixes, WINDOW, input_ready if background else None):
            if window is not None:
                indices = range(window.first_index, window.first_index + len(window.texts))
                submitted = pipeline.submit(Texts(window.texts, indices, window.prefixes), limit)
                if pending is not None:
                    yield from pending()
                pending = submitted
            if pending is not None and (window is None or not background):
                yield from pending()
                pending = None
        if pending is not None:
            yield from pending()
        pipeline.report()

    def engine(self, settings: DecodingConfig, *, prefixes: bool = False) -> Engine:
        """Return the engine for requests with these settings; raise an error if there is none."""
        if self.shortlist is not None and settings.sample:
            raise SaccadeError("sampling does not support a shortlist", hint="leave out the shortlist or sample")
        return self.engines.choose(settings.for_search, prefixes=prefixes, shortlist=self.shortlist is not None)

    def engine_or_none(self, settings: DecodingConfig, *, prefixes: bool = False) -> Engine | None:
        """Return the engine for requests with these settings; None if the chosen engine does not support them."""
        try:
            return self.engine(settings, prefixes=prefixes)
        except UsageError:
            return None

    def allowed_tokens(self, sources: Sequence[SourceIds]) -> list[list[int]] | None:
        """Return the target tokens that each source may be translated to; None without a shortlist."""
        return None if self.shortlist is None else [self.shortlist.allowed_tokens(source) for source in sources]

    def translate_window(
        self,
        texts: Sequence[str],
        settings: DecodingConfig,
        prefixes: Sequence[str] | None = None,
        first_index: int = 0,
        *,
        scores: bool = True,
    ) -> list[Translation]:
        """Translate texts in batches of similar length; `first_index` is that of the first text in the user's input."""
        texts = list_texts(texts, "texts")
        pipeline = Pipeline(self, settings, scores=scores)
        indices = range(first_index, first_index + len(texts))
        found = list(pipeline.submit(Texts(texts, indices, prefixes), self.source_limit(settings))())
        pipeline.report()
        return found

    def source_limit(self, settings: DecodingConfig) -> int | None:
        """Return the maximum number of tokens of a source that is searched as one; None without a limit."""
        return source_limit(
            settings, self.model.max_target_positions if self.exporter is None else self.exporter.max_positions
        )

    def check_replacement(self, settings: DecodingConfig) -> None:
        """Raise an error, before anything is decoded, if unknown words cannot be replaced."""
        if settings.replace_unknown == "none":
            return
        if settings.replace_unknown == "lexicon" and self.lexicon is None:
            raise SaccadeError(
                "replace-unknown is lexicon, but no lexicon is loaded",
                hint="name one with --lexicon FILE, load(…, lexicon=FILE) in Python, or set replace-unknown to source",
            )
        self.check_explainable()
        check_cross_attention(self.plan, self.source_batch([[self.tokenizers.source.symbols.unknown]]))

    @check_call
    def score(self, sources: Iterable[str], targets: Iterable[str]) -> list[ScoredPair]:
        """Return the log-probability of each target given its source, by forced decoding."""
        sources, targets = list_texts(sources, "sources"), list_texts(targets, "targets")
        if len(sources) != len(targets):
            raise SaccadeError(f"{len(sources)} sources but {len(targets)} targets", hint="give one target per source")
        source_ids = self.source_ids(sources)
        target_ids = self.tokenizers.target.encode_batch(targets)
        lengths = [max(max_ids(s), len(t)) + 1 for s, t in zip(source_ids, target_ids, strict=True)]
        scored: dict[int, ScoredPair] = {}
        for batch in length_batches(lengths, self.decoding.tokens_at_once):
            with torch.inference_mode():
                memory = self.plan.encode(self.collate([source_ids[index] for index in batch]))
                ended = [torch.tensor([*target_ids[index], self.symbols.end]) for index in batch]
                padded = pad_sequence(ended, batch_first=True, padding_value=self.symbols.pad).to(self.device)  # (B, T)
                scores = score(self.plan, memory, padded, self.symbols)
            for row, index in enumerate(batch):
                scored[index] = ScoredPair(float(scores.log_probability[row]), len(ended[row]))
        return [scored[index] for index in range(len(sources))]

    @check_call
    @torch.inference_mode()
    def explain(self, text: str, target: str | Sequence[int] | None = None, **decoding: Any) -> Explanation:
        """Return the attention weights for the model's own output, or for a given target (a text or token ids).

        Unknown words of its own output are shown as their replacements, if the settings replace them.
        """
        check_text(text, "text", hint="explain one text at a time")
        self.check_explainable()
        encoding = self.tokenizers.source.encode(text)
        if not encoding.ids:
            raise SaccadeError("an empty text has no attention to explain", hint="give a sentence")
        source = self.source_batch([encoding.ids])
        memory = self.plan.encode(source, record=True)
        settings = self.settings({**decoding, "nbest": 1})
        replaces = target is None and settings.replace_unknown != "none"
        if replaces:
            self.check_replacement(settings)
        if target is None:
            allowed = self.allowed_tokens([(encoding.ids,)])
            request = SearchRequest(memory, settings.for_search, self.symbols, allowed=allowed)
            tokens = list(search(self.plan, request)[0][0].tokens)
        else:
            tokens = self.target_tokens(target)
        prefix = torch.tensor([[self.symbols.begin, *tokens]], device=self.device)
        decoded = self.plan.decode(prefix, memory, record=True)
        attention = memory.attention + decoded.attention
        alignment = alignment_of(attention)
        if isinstance(target, str):
            output, target_words = target, piece_words_of_text(self.tokenizers.target, target)
        else:
            output = self.tokenizers.target.decode(tokens)
            target_words = piece_words_of_output(self.tokenizers.target, tokens)
        if replaces:
            lexicon = self.lexicon if settings.replace_unknown == "lexicon" else None
            source_text = words_of(self.tokenizers.source, text)
            words = words_with_replacements(self.tokenizers.target, tokens, alignment.cpu(), source_text, lexicon)
            output = " ".join(word.text for word in words)
            texts = {position: word.text for word in words for position in word.unknown}
            target_words = with_replacements(target_words, texts)
        source_words = piece_words_of_text(self.tokenizers.source, text)
        return Explanation(
            source=text,
            target=normalize(output, "none"),
            source_pieces=source_words.pieces,
            target_pieces=target_words.pieces,
            attention=attention,
            alignment=alignment,
            source_words=source_words,
            target_words=target_words,
        )

    def target_tokens(self, target: str | Sequence[int]) -> list[int]:
        """Return the token ids of a target that is given as a text or as token ids."""
        if isinstance(target, str):
            return self.tokenizers.target.encode(target).ids
        size, hint = self.tokenizers.target.size, "give a text, or a list of token ids"
        if isinstance(target, bytes) or not is_iterable(target):
            raise SaccadeError(f"target is {shown(target)}, neither a text nor token ids", hint=hint)
        tokens: list[int] = []
        for index, token in enumerate(target):
            if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token < size:
                what = f"target[{index}] is {shown(token)}, not a token id from 0 to {size - 1:,}"
                raise SaccadeError(what, hint=hint)
            tokens.append(int(token))
        return tokens

    def check_explainable(self) -> None:
        """Raise an error for an ensemble with several source tokenizers: its attention has no common positions."""
        if len(self.source_tokenizers) > 1:
            raise SaccadeError(
                "the models of this ensemble have different source tokenizers, so there is no common alignment",
                hint="explain one of them, or use models with one source tokenizer",
            )

    def source_ids(self, texts: Sequence[str]) -> list[SourceIds]:
        """Return the ids of each text, one list per source tokenizer."""
        return list(zip(*(tokenizer.encode_batch(texts) for tokenizer in self.source_tokenizers), strict=True))

    def collate(self, batch: Sequence[SourceIds]) -> Source:
        """Return the input of `encode` for a batch of texts: one padded source, or one per member of an ensemble."""
        return collate_sources(batch, self.source_tokenizers, self.device)

    def source_batch(self, sequences: Sequence[Sequence[int]]) -> Source:
        """Return one padded source (B, S) from ids of the only source tokenizer, each with an end symbol appended."""
        return self.collate([(list(ids),) for ids in sequences])


def check_parts(model: object, tokenizers: object, decoding: object) -> None:
    """Raise an error unless a translator is built from a model, its tokenizers and its decoding defaults."""
    hint = "load a model folder instead: saccade.load(path)"
    if not isinstance(model, DeferredModel | Decoder):
        raise SaccadeError(f"model is {shown(model)}, not a model", hint=hint)
    if not isinstance(tokenizers, Tokenizers):
        raise SaccadeError(f"tokenizers is {shown(tokenizers)}, not a pair of tokenizers", hint=hint)
    if not isinstance(decoding, DecodingConfig):
        raise SaccadeError(f"decoding is {shown(decoding)}, not a DecodingConfig", hint=hint)


def check_settings(settings: object) -> None:
    """Raise an error unless decoding settings are a DecodingConfig, or None."""
    if settings is not None and not isinstance(settings, DecodingConfig):
        hint = 'make them with translator.settings({"beam": 1})'
        raise SaccadeError(f"settings is {shown(settings)}, not decoding settings", hint=hint)

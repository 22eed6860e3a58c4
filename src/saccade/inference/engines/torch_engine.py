"""The torch engine: every model, every setting, every device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import torch

from saccade.data.tokenizers.tokenizer import Tokenizer
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.search import SearchRequest, search
from saccade.decoding.stop_flag import StopFlag
from saccade.inference.batching import collate_sources, even_batches, max_ids
from saccade.inference.engines.engine import DecodeRequest, DecodeResults
from saccade.interface import EncoderDecoder
from saccade.parallel_map import parallel_map_unordered, worker_count
from saccade.symbols import Symbols

MIN_WORKER_TOKENS = 256  # a batch with fewer source tokens is not split over another thread
MIN_THREAD_TOKENS = 128  # a shorter request is over before Ctrl-C matters; a thread would add a third to its time


class TorchEngine:
    """Encodes the sources of a request and searches with `decoding/`."""

    name = "torch"
    runs_in_background = False

    def __init__(
        self,
        load_model: Callable[[], EncoderDecoder],
        source_tokenizers: Sequence[Tokenizer],
        symbols: Symbols,
        device: torch.device,
    ) -> None:
        """`load_model` returns the model; it is first called when the first request runs."""
        self.load_model = load_model
        self.source_tokenizers = source_tokenizers
        self.symbols = symbols
        self.device = device

    def submit(self, request: DecodeRequest) -> Callable[[], DecodeResults]:
        """Return a function that decodes the request when its results are fetched."""
        return partial(self.decode, request)

    def decode(self, request: DecodeRequest) -> DecodeResults:
        """Decode all sources in batches of similar length; on a CPU, several batches run in parallel threads.

        Ctrl-C, or a caller that closes the generator, ends the searches after their current step.
        """
        model, batch_tokens, stop = self.load_model(), request.settings.tokens_at_once, StopFlag()

        def decode_batch(indices: list[int]) -> list[list[Hypothesis]]:
            batch = request.subset(indices)
            source = collate_sources(batch.sources, self.source_tokenizers, self.device)
            restrictions = batch.prefixes, batch.input_indices, batch.allowed, request.scores, stop
            return search(model, SearchRequest(source, request.settings, self.symbols, *restrictions))

        lengths = [max_ids(source) for source in request.sources]
        workers = worker_count(batch_tokens, self.device)
        workers = max(1, min(workers, -(-sum(lengths) // MIN_WORKER_TOKENS)))
        batches = even_batches(lengths, batch_tokens // workers, workers)
        on_stop = stop.set if self.runs_in_thread(sum(lengths) + request.settings.min_length) else None
        with closing(parallel_map_unordered(decode_batch, batches, workers, stop=on_stop)) as results:
            for number, hypotheses in results:
                yield from zip(batches[number], hypotheses, strict=True)

    def runs_in_thread(self, tokens: int) -> bool:
        """Return whether a search of that many tokens runs in a thread: in the main thread Ctrl-C waits for its end.

        Autocast and the current CUDA device are settings of the calling thread.
        """
        if tokens < MIN_THREAD_TOKENS:
            return False
        in_main_thread = threading.current_thread() is threading.main_thread()
        return in_main_thread and self.device.type == "cpu" and not torch.is_autocast_enabled("cpu")

"""Whether a trained model keeps its promises on real data: what can be computed in two ways must agree.

    cached = uncached     `step` after `step`, with a state that is reordered half way, against `decode` at once
    alone = in a batch    a sentence by itself against the same one in a batch with padding, and what search makes of it
    explicit = fused      the path that records the attention against the fast one
    scorer = search       the log-probabilities that a search reports against those of forced decoding
    saved = loaded        the model against what comes back from a folder on disk, to the last bit

All differences are of log-probabilities, over the whole vocabulary where both ways have one.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saccade.data.reading.pair_files import Pair
from saccade.decoding.config import DecodingConfig
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.scoring import score
from saccade.decoding.search import SearchRequest, search
from saccade.errors import SaccadeError
from saccade.inference.batching import Reading, longest
from saccade.inference.loading import translator_from
from saccade.inference.translator import Translator
from saccade.interface import Decodes, Memory, Source, Translates, select
from saccade.model_folder import ModelFolder, load_model_folder, save_model_folder, weights_of
from saccade.symbols import Symbols

BATCH = 16  # sentences that stand together: enough for much padding, few enough to record all attention
ROWS = 256  # places that pass the output layer together
SAMPLES = 2

# Sums in another order round differently. A float32 has 24 bits, so a log-probability of -10 is exact to 1e-6 at best,
# and after the sums of some ten layers to about 1e-5: a trained model of four layers shows 8e-6, and 5e-3 if a scale is
# off by a thousandth. The limit stands between the two, a hundred times above the noise: deeper models are noisier.
FLOAT32_TOLERANCE = 1e-3
# A bfloat16 has 8 bits and a float16 has 11, so that 10 is rounded to 0.06 and to 0.008; the same model shows 0.12 and
# 0.015. There is little room between this noise and a fault: a model is best verified in float32.
TOLERANCES = {torch.bfloat16: 0.5, torch.float16: 0.05}


@dataclass(frozen=True)
class Equivalence:
    """Two ways to one result, and how far apart they came out."""

    name: str
    largest_difference: float  # infinite where the two cannot be compared
    tolerance: float
    passed: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Plain data; JSON has no infinity, so one is null."""
        difference = self.largest_difference if math.isfinite(self.largest_difference) else None
        return {**asdict(self), "largest_difference": difference}


class Example(NamedTuple):
    """A pair as ids, without ends."""

    source: Reading
    target: list[int]


class Forced(NamedTuple):
    """Some examples as one batch for `decode`."""

    source: Source
    prefix: Tensor  # (B, T) begin first
    mask: Tensor  # (B, T), True = real


def verify(
    folder: ModelFolder, pairs: Sequence[Pair], device: torch.device | str = "cpu", where: str = "model"
) -> Iterator[Equivalence]:
    """Every equivalence of a model folder in memory, one after the other."""
    translator = translator_from(folder, device, where)
    examples = read_examples(translator, pairs)
    yield cached_and_uncached(translator, examples)
    yield alone_and_in_a_batch(translator, examples)
    yield explicit_and_fused(translator, examples)
    yield scorer_and_search(translator, examples)
    yield saved_and_loaded(folder, translator, examples)


def read_examples(translator: Translator, pairs: Sequence[Pair]) -> list[Example]:
    """The pairs that the model can hold, as ids; a source without text is nothing to encode."""
    sources = translator.read([pair.source for pair in pairs])
    targets = translator.tokenizers.target.encode_batch([pair.target for pair in pairs])
    limit = translator.model.longest or math.inf
    examples = [
        Example(source, target)
        for source, target in zip(sources, targets, strict=True)
        if longest(source) and max(longest(source), len(target)) < limit
    ]
    if not examples:
        raise SaccadeError(
            f"none of {len(pairs):,} pairs has a source and fits the model",
            do="give other pairs with --source and --target",
        )
    return examples


@torch.inference_mode()
def cached_and_uncached(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """Stepping with a state against decoding all places; half way the rows change places, as in a beam search."""
    model, largest, places = translator.model, 0.0, 0
    for rows in mixed_batches(examples):
        batch = forced(translator, [examples[row] for row in rows])
        memory = model.encode(batch.source)
        whole = model.decode(batch.prefix, memory).outputs[batch.mask]  # (M, D)
        stepped = stepped_outputs(model, batch, memory)[batch.mask]
        largest = max(largest, largest_difference(model, stepped, whole))
        places += len(whole)
    return judged("cached = uncached", model, largest, f"{len(examples):,} sentences, {places:,} places")


@torch.inference_mode()
def alone_and_in_a_batch(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """Sentences by themselves against a batch, by forced decoding, greedy search and beam search."""
    model, largest, tolerance = translator.model, 0.0, tolerance_of(translator.model)
    greedy, beam = Outputs("greedy", settings(translator, 1)), Outputs("beam", settings(translator, widest(translator)))
    padding, room = 0, 0
    for rows in mixed_batches(examples):
        batch = forced(translator, [examples[row] for row in rows])
        memory = model.encode(batch.source)
        together = model.decode(batch.prefix, memory).outputs
        written = {
            each.name: search(model, SearchRequest(batch.source, each.config, translator.symbols))
            for each in (greedy, beam)
        }
        padding += int((~batch.source.mask).sum() + (~batch.mask).sum())
        room += batch.source.mask.numel() + batch.mask.numel()
        for place, row in enumerate(rows):
            single = forced(translator, [examples[row]])
            own = model.encode(single.source)
            alone = model.decode(single.prefix, own).outputs[0]  # (T, D)
            largest = max(largest, largest_difference(model, together[place, : len(alone)], alone))
            for each in (greedy, beam):
                [[best, *_]] = search(model, SearchRequest(single.source, each.config, translator.symbols))
                each.compare(best, written[each.name][place][0], model, own, translator.symbols)
    # Both choose what is best for them: two that differ by up to the tolerance each can part at twice the tolerance.
    ties = max(greedy.margins, default=0.0) <= 2 * tolerance
    detail = f"{len(examples):,} sentences, {padding / room:.0%} of the batches is padding; {greedy}; {beam}"
    return Equivalence("alone = in a batch", largest, tolerance, largest <= tolerance and ties, detail)


@torch.inference_mode()
def explicit_and_fused(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """The path that records against the fast one, in the encoder, in `decode` and in `step`."""
    model, largest, records = translator.model, 0.0, 0
    for rows in mixed_batches(examples):
        batch = forced(translator, [examples[row] for row in rows])
        memory, recorded = model.encode(batch.source), model.encode(batch.source, record=True)
        whole, explained = model.decode(batch.prefix, memory), model.decode(batch.prefix, recorded, record=True)
        stepped = stepped_outputs(model, batch, memory), stepped_outputs(model, batch, recorded, record=True)
        for fast, slow in ((whole.outputs, explained.outputs), stepped):
            largest = max(largest, largest_difference(model, slow[batch.mask], fast[batch.mask]))
        records = len(recorded.attention) + len(explained.attention)
    return judged("explicit = fused", model, largest, f"{len(examples):,} sentences, {records} attentions recorded")


@torch.inference_mode()
def scorer_and_search(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """What every search reports of its outputs against forced decoding of the same tokens."""
    model, symbols, largest, count = translator.model, translator.symbols, 0.0, 0
    searches = [
        settings(translator, 1),
        settings(translator, widest(translator), nbest=widest(translator)),
        settings(translator, 1, sample=True, nbest=SAMPLES),
    ]
    for rows in mixed_batches(examples):
        source = forced(translator, [examples[row] for row in rows]).source
        memory = model.encode(source)
        for config in searches:
            found = search(model, SearchRequest(source, config, symbols, indices=rows))  # which may encode by itself
            outputs = [(row, each) for row, several in enumerate(found) for each in several]
            outputs = [(row, each) for row, each in outputs if written_symbols(each, symbols)]
            largest = max(largest, reported_difference(model, memory, outputs, symbols)) if outputs else largest
            count += len(outputs)
    largest = largest if count else math.inf  # a model that finds every output impossible has nothing to compare
    return judged("scorer = search", model, largest, f"{count:,} outputs of greedy search, beam search and sampling")


def reported_difference(
    model: Decodes, memory: Memory, outputs: Sequence[tuple[int, Hypothesis]], symbols: Symbols
) -> float:
    """How far the log-probabilities of outputs, each with its row of the memory, are from those of forced decoding."""
    device, largest = memory.mask.device, 0.0
    rows = torch.tensor([row for row, _ in outputs], device=device)
    ids = [torch.tensor(written_symbols(output, symbols)) for _, output in outputs]
    targets = pad_sequence(ids, batch_first=True, padding_value=symbols.pad).to(device)
    scores = score(model, select(memory, rows), targets, symbols)
    for number, (_, output) in enumerate(outputs):
        scored = scores.token_log_probabilities[number][scores.mask[number]].cpu()
        total = scores.log_probability[number : number + 1].cpu()
        largest = max(largest, difference(torch.tensor(output.token_log_probabilities), scored))
        # A sum of n terms may be n times as far off.
        largest = max(largest, difference(torch.tensor([output.log_probability]), total) / max(1, len(scored)))
    return largest


@torch.inference_mode()
def saved_and_loaded(folder: ModelFolder, translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """A model against itself after a journey to the disk: files, settings, weights, ids and logits, to the last bit."""
    name = "saved = loaded"
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model"
        try:
            save_model_folder(path, folder)
            loaded = load_model_folder(path, translator.device)  # checks every file against the manifest
        except SaccadeError as error:
            return Equivalence(name, math.inf, 0.0, False, f"{Path(error.where or '').name}: {error.what}")
        files = len(list(path.iterdir())) - 1
    faults = [
        what
        for what, same in (
            ("settings", loaded.choice == folder.choice and dict(loaded.generation) == dict(folder.generation)),
            ("tokenizers", same_ids(translator, translator_from(loaded, translator.device), examples)),
        )
        if not same
    ]
    weights, returned = weights_of(folder.model), weights_of(loaded.model)
    faults += [f"the tensor '{key}'" for key in sorted(weights) if not same_bits(weights[key], returned.get(key))]
    largest = 0.0
    for rows in mixed_batches(examples):
        batch = forced(translator, [examples[row] for row in rows])
        models = (folder.model, loaded.model)
        outputs = [model.decode(batch.prefix, model.encode(batch.source)).outputs[batch.mask] for model in models]
        for one, other in zip(*(torch.split(each, ROWS) for each in outputs), strict=True):
            largest = max(largest, difference(folder.model.logits(one), loaded.model.logits(other)))
    if faults:
        detail = f"another one came back: {', '.join(faults[:3])}{' …' if len(faults) > 3 else ''}"
    else:
        detail = f"{files} files match their SHA-256, {len(weights)} tensors and all logits are equal to the last bit"
    return Equivalence(name, largest, 0.0, not faults and largest == 0, detail)


@dataclass
class Outputs:
    """What one search makes of sentences alone and in a batch."""

    name: str
    config: DecodingConfig
    count: int = 0
    margins: list[float] = field(default_factory=list)  # of the outputs that differ

    def compare(
        self, alone: Hypothesis, together: Hypothesis, model: Decodes, memory: Memory, symbols: Symbols
    ) -> None:
        """Count a pair of outputs; if they differ, note how close the choice was."""
        self.count += 1
        if (alone.tokens, alone.finished) != (together.tokens, together.finished):
            if self.config.beam == 1:
                self.margins.append(margin(model, memory, alone, together, symbols))
            else:
                # Where a beam is cut, a tie may decide which of two lives on, and their ends may be far apart: the
                # scores tell how far, but they do not tell a fault from a tie.
                self.margins.append(abs(alone.score - together.score))

    def __str__(self) -> str:
        if not self.margins:
            return f"{self.name} outputs are the same"
        apart = "best and second are" if self.config.beam == 1 else "the scores are"
        return (
            f"{len(self.margins)} of {self.count} {self.name} outputs differ, where {apart} at most "
            f"{max(self.margins):.1e} apart"
        )


def margin(model: Decodes, memory: Memory, one: Hypothesis, other: Hypothesis, symbols: Symbols) -> float:
    """How far apart the log-probabilities of the first two symbols are in which two greedy outputs differ."""
    pairs = zip(written_symbols(one, symbols), written_symbols(other, symbols), strict=False)
    parting = next(((place, pair) for place, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    if parting is None:  # one of them is no output at all
        return math.inf
    place, (first, second) = parting
    prefix = torch.tensor([[symbols.begin, *one.tokens[:place]]], device=memory.mask.device)
    log_probabilities = model.logits(model.decode(prefix, memory).outputs[0, -1]).log_softmax(-1, dtype=torch.float32)
    return difference(log_probabilities[first : first + 1], log_probabilities[second : second + 1])


def written_symbols(hypothesis: Hypothesis, symbols: Symbols) -> list[int]:
    """The tokens of an output, and its end if it was reached."""
    return [*hypothesis.tokens, *([symbols.end] if hypothesis.finished else [])]


def settings(translator: Translator, beam: int, *, sample: bool = False, nbest: int = 1) -> DecodingConfig:
    """The model's own decoding settings, but for what decides which search it is."""
    plain = {"coverage_beta": 0.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return translator.settings({**plain, "beam": beam, "sample": sample, "nbest": nbest})


def widest(translator: Translator) -> int:
    """The width of the model's own beam, or the narrowest that is one."""
    return max(2, translator.decoding.beam)


def mixed_batches(examples: Sequence[Example]) -> list[list[int]]:
    """The numbers of all examples in batches, long and short ones together, so that there is padding."""
    order = sorted(range(len(examples)), key=lambda row: longest(examples[row].source) + len(examples[row].target))
    count = math.ceil(len(order) / BATCH)
    return [order[first::count] for first in range(count)]


def forced(translator: Translator, examples: Sequence[Example]) -> Forced:
    """Examples as one batch on the translator's device."""
    symbols = translator.symbols
    rows = [torch.tensor([symbols.begin, *example.target]) for example in examples]
    prefix = pad_sequence(rows, batch_first=True, padding_value=symbols.pad).to(translator.device)
    return Forced(translator.source_of([example.source for example in examples]), prefix, prefix != symbols.pad)


def stepped_outputs(model: Decodes, batch: Forced, memory: Memory, *, record: bool = False) -> Tensor:
    """The outputs (B, T, D) of one step a place; half way all rows are turned round with `select`."""
    prefix, length = batch.prefix, batch.prefix.size(1)
    order = torch.arange(len(prefix), device=prefix.device)
    state, outputs = model.start(memory), []
    for place in range(length):
        if place == length // 2:
            state, memory, prefix, order = select((state, memory, prefix, order), order.flip(0))
        output, state, _ = model.step(prefix[:, place], state, memory, record=record)
        outputs.append(output[order.argsort()])
    return torch.stack(outputs, dim=1)


def largest_difference(model: Decodes, one: Tensor, other: Tensor) -> float:
    """The largest difference of two log-probabilities, from outputs (M, D) of the same places."""
    return max(
        difference(*(model.logits(outputs).log_softmax(dim=-1, dtype=torch.float32) for outputs in both))
        for both in zip(torch.split(one, ROWS), torch.split(other, ROWS), strict=True)
    )


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference of two entries; what is not a number differs without limit."""
    apart = (one - other).abs().masked_fill(one == other, 0.0)  # two infinities are equal
    return float(apart.masked_fill(apart.isnan(), math.inf).max()) if apart.numel() else 0.0


def tolerance_of(model: Translates) -> float:
    """How far two ways to one log-probability may be apart, by the coarsest numbers of the model."""
    return max(TOLERANCES.get(parameter.dtype, FLOAT32_TOLERANCE) for parameter in model.parameters())


def judged(name: str, model: Translates, largest: float, detail: str) -> Equivalence:
    """An equivalence that holds if its largest difference is within the model's tolerance."""
    tolerance = tolerance_of(model)
    return Equivalence(name, largest, tolerance, largest <= tolerance, detail)


def same_ids(one: Translator, other: Translator, examples: Sequence[Example]) -> bool:
    """Whether two translators turn the same ids into texts and back."""
    texts = [one.tokenizers.target.decode(example.target) for example in examples]
    texts += [one.tokenizers.source.decode(example.source[0]) for example in examples]
    return one.read(texts) == other.read(texts) and (
        one.tokenizers.target.encode_batch(texts) == other.tokenizers.target.encode_batch(texts)
    )


def same_bits(one: Tensor, other: Tensor | None) -> bool:
    """Whether two tensors are equal to the last bit, zeros with a sign included."""
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))

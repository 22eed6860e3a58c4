"""Consistency checks of a trained model on real data: two ways to compute the same result must agree.

    cached = uncached     `step` after `step`, with a state that is reordered in the middle, and `decode`
    alone = in a batch    a sentence alone and in a batch with padding: forced decoding and search
    explicit = fused      attention that records its weights, and the fused kernel
    scorer = search       log-probabilities that a search reports, and those of forced decoding
    saved = loaded        a model in memory, and after saving and loading, to the last bit

Differences are between log-probabilities, over the whole vocabulary if both ways compute it.
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
from saccade.inference.batching import SourceIds, max_ids
from saccade.inference.loading import translator_from
from saccade.inference.translator import Translator
from saccade.interface import Decoder, Memory, Source, TranslationModel, select
from saccade.model_folder import ModelFolder, load_model_folder, save_model_folder, weights_of
from saccade.symbols import Symbols

BATCH = 16  # sentences: enough for much padding, few enough to record all attention weights
OUTPUT_ROWS = 256  # positions that pass the output layer at once
SAMPLES = 2

# Sums in another order round differently. A float32 has 24 bits, so a log-probability of -10 is exact to 1e-6 at best,
# and after the sums of some ten layers to about 1e-5: a trained model of four layers shows 8e-6, and 5e-3 if a scale is
# wrong by a thousandth. The tolerance lies between the two, a hundred times above the noise: deeper models are noisier.
FLOAT32_TOLERANCE = 1e-3
# A bfloat16 has 8 bits and a float16 has 11, so that 10 is rounded to 0.06 and to 0.008; the same model shows 0.12 and
# 0.015. There is little room between this noise and a bug: verify in float32 if possible.
TOLERANCES = {torch.bfloat16: 0.5, torch.float16: 0.05}


@dataclass(frozen=True)
class Equivalence:
    """The result of one check: two ways to compute a result, and their largest difference."""

    name: str
    largest_difference: float  # infinite if the two cannot be compared
    tolerance: float
    passed: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data; an infinite difference becomes null, because JSON has no infinity."""
        difference = self.largest_difference if math.isfinite(self.largest_difference) else None
        return {**asdict(self), "largest_difference": difference}


class Example(NamedTuple):
    """A sentence pair as ids, without end symbols."""

    source: SourceIds
    target: list[int]


class TeacherForcedBatch(NamedTuple):
    """Examples as a batch for `decode`."""

    source: Source
    prefix: Tensor  # (B, T) the targets, begin symbol first
    mask: Tensor  # (B, T), True = real


def verify(
    folder: ModelFolder, pairs: Sequence[Pair], device: torch.device | str = "cpu", where: str = "model"
) -> Iterator[Equivalence]:
    """Yield the results of all checks of a model folder in memory."""
    translator = translator_from(folder, device, where)
    examples = usable_examples(translator, pairs)
    yield check_cached_decoding(translator, examples)
    yield check_batching(translator, examples)
    yield check_explicit_attention(translator, examples)
    yield check_scores(translator, examples)
    yield check_saving(folder, translator, examples)


def usable_examples(translator: Translator, pairs: Sequence[Pair]) -> list[Example]:
    """Return the pairs as ids, without those that have an empty source or are too long for the model."""
    sources = translator.source_ids([pair.source for pair in pairs])
    targets = translator.tokenizers.target.encode_batch([pair.target for pair in pairs])
    limit = translator.model.max_target_positions or math.inf
    examples = [
        Example(source, target)
        for source, target in zip(sources, targets, strict=True)
        if max_ids(source) and max(max_ids(source), len(target)) < limit
    ]
    if not examples:
        raise SaccadeError(
            f"none of {len(pairs):,} pairs has a source and fits the model",
            hint="give other pairs with --source and --target",
        )
    return examples


@torch.inference_mode()
def check_cached_decoding(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """cached = uncached: `step` with a state against `decode`; in the middle the state is reordered as in a beam."""
    model, largest, positions = translator.plan, 0.0, 0
    for indices in mixed_batches(examples):
        batch = teacher_forced(translator, [examples[index] for index in indices])
        memory = model.encode(batch.source)
        uncached = model.decode(batch.prefix, memory).outputs[batch.mask]  # (M, D)
        cached = stepped_outputs(model, batch, memory)[batch.mask]  # (M, D)
        largest = max(largest, largest_difference(model, cached, uncached))
        positions += len(uncached)
    return equivalence_result(
        "cached = uncached", translator.model, largest, f"{len(examples):,} sentences, {positions:,} positions"
    )


@torch.inference_mode()
def check_batching(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """alone = in a batch: forced decoding, greedy search and beam search of each sentence, alone and in a batch."""
    model, largest, tolerance = translator.plan, 0.0, tolerance_of(translator.model)
    greedy = OutputComparison("greedy", search_settings(translator, 1))
    beam = OutputComparison("beam", search_settings(translator, beam_width(translator)))
    padding, size = 0, 0
    for indices in mixed_batches(examples):
        batch = teacher_forced(translator, [examples[index] for index in indices])
        batched = model.decode(batch.prefix, model.encode(batch.source)).outputs  # (B, T, D)
        hypotheses = {each.name: decode(translator, batch.source, each.settings) for each in (greedy, beam)}
        padding += int((~batch.source.mask).sum() + (~batch.mask).sum())
        size += batch.source.mask.numel() + batch.mask.numel()
        for row, index in enumerate(indices):
            single = teacher_forced(translator, [examples[index]])
            memory = model.encode(single.source)
            alone = model.decode(single.prefix, memory).outputs[0]  # (T, D)
            largest = max(largest, largest_difference(model, batched[row, : len(alone)], alone))
            for each in (greedy, beam):
                [[best, *_]] = decode(translator, single.source, each.settings)
                each.compare(best, hypotheses[each.name][row][0], model, memory, translator.symbols)
    # Each path may be off by the tolerance, so two tokens within twice the tolerance may swap ranks.
    only_ties = max(greedy.gaps, default=0.0) <= 2 * tolerance
    detail = f"{len(examples):,} sentences, {padding / size:.0%} of the batches is padding; {greedy}; {beam}"
    return Equivalence("alone = in a batch", largest, tolerance, largest <= tolerance and only_ties, detail)


@torch.inference_mode()
def check_explicit_attention(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """explicit = fused: outputs with and without recorded attention, in the encoder, in `decode` and in `step`."""
    model, largest, records = translator.plan, 0.0, 0
    for indices in mixed_batches(examples):
        batch = teacher_forced(translator, [examples[index] for index in indices])
        memory, recorded = model.encode(batch.source), model.encode(batch.source, record=True)
        fused, explicit = model.decode(batch.prefix, memory), model.decode(batch.prefix, recorded, record=True)
        stepped = stepped_outputs(model, batch, memory), stepped_outputs(model, batch, recorded, record=True)
        for one, other in ((fused.outputs, explicit.outputs), stepped):
            largest = max(largest, largest_difference(model, other[batch.mask], one[batch.mask]))
        records = len(recorded.attention) + len(explicit.attention)
    return equivalence_result(
        "explicit = fused", translator.model, largest, f"{len(examples):,} sentences, {records} attention records"
    )


@torch.inference_mode()
def check_scores(translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """scorer = search: log-probabilities that every search reports, and forced decoding of the same tokens."""
    model, symbols, largest, count = translator.plan, translator.symbols, 0.0, 0
    searches = [
        search_settings(translator, 1),
        search_settings(translator, beam_width(translator), nbest=beam_width(translator)),
        search_settings(translator, 1, sample=True, nbest=SAMPLES),
    ]
    for indices in mixed_batches(examples):
        source = teacher_forced(translator, [examples[index] for index in indices]).source
        memory = model.encode(source)
        for settings in searches:
            hypotheses = decode(translator, source, settings, indices)  # may run its own encoder
            outputs = [(row, output) for row, nbest in enumerate(hypotheses) for output in nbest]
            outputs = [(row, output) for row, output in outputs if output_symbols(output, symbols)]
            largest = max(largest, score_difference(model, memory, outputs, symbols)) if outputs else largest
            count += len(outputs)
    largest = largest if count else math.inf  # a model that gives every output probability 0 has nothing to compare
    return equivalence_result(
        "scorer = search", translator.model, largest, f"{count:,} outputs of greedy search, beam search and sampling"
    )


def decode(
    translator: Translator, source: Source, settings: DecodingConfig, indices: Sequence[int] | None = None
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each row of a source, best first."""
    return search(translator.plan, SearchRequest(source, settings, translator.symbols, indices=indices))


def score_difference(
    model: Decoder, memory: Memory, outputs: Sequence[tuple[int, Hypothesis]], symbols: Symbols
) -> float:
    """Return the largest difference of log-probabilities between a search and forced decoding; outputs name rows."""
    device, largest = memory.mask.device, 0.0
    rows = torch.tensor([row for row, _ in outputs], device=device)
    ids = [torch.tensor(output_symbols(output, symbols)) for _, output in outputs]
    targets = pad_sequence(ids, batch_first=True, padding_value=symbols.pad).to(device)  # (N, T)
    scores = score(model, select(memory, rows), targets, symbols)
    for number, (_, output) in enumerate(outputs):
        scored = scores.token_log_probabilities[number][scores.mask[number]].cpu()
        total = scores.log_probability[number : number + 1].cpu()
        largest = max(largest, difference(torch.tensor(output.token_log_probabilities), scored))
        # The rounding errors of n terms add up in their sum.
        largest = max(largest, difference(torch.tensor([output.log_probability]), total) / max(1, len(scored)))
    return largest


@torch.inference_mode()
def check_saving(folder: ModelFolder, translator: Translator, examples: Sequence[Example]) -> Equivalence:
    """saved = loaded: files, settings, weights, ids and logits before and after saving, to the last bit."""
    name = "saved = loaded"
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model"
        try:
            save_model_folder(path, folder)
            loaded = load_model_folder(path, translator.device)  # verifies every file against the manifest
        except SaccadeError as error:
            return Equivalence(name, math.inf, 0.0, False, f"{Path(error.where or '').name}: {error.what}")
        files = len(list(path.iterdir())) - 1
    faults = []
    if loaded.choice != folder.choice or dict(loaded.generation) != dict(folder.generation):
        faults.append("settings")
    if not equal_ids(translator, translator_from(loaded, translator.device), examples):
        faults.append("tokenizers")
    weights, returned = weights_of(folder.model), weights_of(loaded.model)
    faults += [f"the tensor '{key}'" for key in sorted(weights) if not equal_bits(weights[key], returned.get(key))]
    largest = 0.0
    for indices in mixed_batches(examples):
        batch = teacher_forced(translator, [examples[index] for index in indices])
        models = (folder.model, loaded.model)
        outputs = [model.decode(batch.prefix, model.encode(batch.source)).outputs[batch.mask] for model in models]
        for one, other in zip(*(torch.split(output, OUTPUT_ROWS) for output in outputs), strict=True):
            largest = max(largest, difference(folder.model.logits(one), loaded.model.logits(other)))
    if faults:
        detail = f"changed by saving and loading: {', '.join(faults[:3])}{' …' if len(faults) > 3 else ''}"
    else:
        detail = f"{files} files match their SHA-256, {len(weights)} tensors and all logits are equal to the last bit"
    return Equivalence(name, largest, 0.0, not faults and largest == 0, detail)


@dataclass
class OutputComparison:
    """Outputs of one search for sentences alone and in a batch."""

    name: str
    settings: DecodingConfig
    count: int = 0
    gaps: list[float] = field(default_factory=list)  # one for each pair of outputs that differ

    def compare(self, alone: Hypothesis, batched: Hypothesis, model: Decoder, memory: Memory, symbols: Symbols) -> None:
        """Count a pair of outputs; if they differ, note how close the decision was."""
        self.count += 1
        if (alone.tokens, alone.finished) != (batched.tokens, batched.finished):
            if self.settings.beam == 1:
                self.gaps.append(decision_gap(model, memory, alone, batched, symbols))
            else:
                # A tie at the edge of the beam may decide which of two hypotheses survives, and their final scores may
                # be far apart: the gap is reported, but it does not distinguish a bug from a tie.
                self.gaps.append(abs(alone.score - batched.score))

    def __str__(self) -> str:
        if not self.gaps:
            return f"{self.name} outputs are equal"
        what = "best and second are" if self.settings.beam == 1 else "the scores are"
        different = f"{len(self.gaps)} of {self.count} {self.name} outputs differ"
        return f"{different}, where {what} at most {max(self.gaps):.1e} apart"


def decision_gap(model: Decoder, memory: Memory, one: Hypothesis, other: Hypothesis, symbols: Symbols) -> float:
    """Return the gap in log-probability between the first two different tokens of two greedy outputs."""
    pairs = zip(output_symbols(one, symbols), output_symbols(other, symbols), strict=False)
    different = next(((position, pair) for position, pair in enumerate(pairs) if pair[0] != pair[1]), None)
    if different is None:  # one of them is the impossible output
        return math.inf
    position, (first, second) = different
    prefix = torch.tensor([[symbols.begin, *one.tokens[:position]]], device=memory.mask.device)
    log_probabilities = model.logits(model.decode(prefix, memory).outputs[0, -1]).log_softmax(-1, dtype=torch.float32)
    return difference(log_probabilities[first : first + 1], log_probabilities[second : second + 1])


def output_symbols(hypothesis: Hypothesis, symbols: Symbols) -> list[int]:
    """Return the tokens of an output, and the end symbol if it was reached."""
    return [*hypothesis.tokens, *([symbols.end] if hypothesis.finished else [])]


def search_settings(translator: Translator, beam: int, *, sample: bool = False, nbest: int = 1) -> DecodingConfig:
    """Return the model's decoding settings, changed to greedy search, beam search or sampling."""
    plain = {"coverage_beta": 0.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return translator.settings({**plain, "beam": beam, "sample": sample, "nbest": nbest})


def beam_width(translator: Translator) -> int:
    """Return the model's beam size, at least 2."""
    return max(2, translator.decoding.beam)


def mixed_batches(examples: Sequence[Example]) -> list[list[int]]:
    """Return the indices of all examples in batches that mix short and long ones, so that there is padding."""
    order = sorted(
        range(len(examples)), key=lambda index: max_ids(examples[index].source) + len(examples[index].target)
    )
    count = math.ceil(len(order) / BATCH)
    return [order[first::count] for first in range(count)]


def teacher_forced(translator: Translator, examples: Sequence[Example]) -> TeacherForcedBatch:
    """Return examples as one batch on the translator's device."""
    symbols = translator.symbols
    prefixes = [torch.tensor([symbols.begin, *example.target]) for example in examples]
    prefix = pad_sequence(prefixes, batch_first=True, padding_value=symbols.pad).to(translator.device)  # (B, T)
    source = translator.collate([example.source for example in examples])
    return TeacherForcedBatch(source, prefix, prefix != symbols.pad)


def stepped_outputs(model: Decoder, batch: TeacherForcedBatch, memory: Memory, *, record: bool = False) -> Tensor:
    """Return the outputs (B, T, D) of one `step` per position; in the middle, `select` reverses the batch order."""
    prefix, length = batch.prefix, batch.prefix.size(1)
    order = torch.arange(len(prefix), device=prefix.device)
    state, outputs = model.start(memory), []
    for position in range(length):
        if position == length // 2:
            state, memory, prefix, order = select((state, memory, prefix, order), order.flip(0))
        output, state, _ = model.step(prefix[:, position], state, memory, record=record)
        outputs.append(output[order.argsort()])
    return torch.stack(outputs, dim=1)


def largest_difference(model: Decoder, one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two log-probabilities, from two outputs (M, D) of the same positions."""
    return max(
        difference(*(model.logits(outputs).log_softmax(dim=-1, dtype=torch.float32) for outputs in pair))
        for pair in zip(torch.split(one, OUTPUT_ROWS), torch.split(other, OUTPUT_ROWS), strict=True)
    )


def difference(one: Tensor, other: Tensor) -> float:
    """Return the largest absolute difference of two tensors; NaN counts as infinite, equal infinities as 0."""
    absolute = (one - other).abs().masked_fill(one == other, 0.0)
    return float(absolute.masked_fill(absolute.isnan(), math.inf).max()) if absolute.numel() else 0.0


def tolerance_of(model: TranslationModel) -> float:
    """Return the tolerance for differences of log-probabilities, by the least precise dtype of the model."""
    return max(TOLERANCES.get(parameter.dtype, FLOAT32_TOLERANCE) for parameter in model.parameters())


def equivalence_result(name: str, model: TranslationModel, largest: float, detail: str) -> Equivalence:
    """Return the result of a check that passes if the largest difference is within the model's tolerance."""
    tolerance = tolerance_of(model)
    return Equivalence(name, largest, tolerance, largest <= tolerance, detail)


def equal_ids(one: Translator, other: Translator, examples: Sequence[Example]) -> bool:
    """Return whether two translators tokenize and detokenize equally."""
    texts = [one.tokenizers.target.decode(example.target) for example in examples]
    texts += [one.tokenizers.source.decode(example.source[0]) for example in examples]
    return one.source_ids(texts) == other.source_ids(texts) and (
        one.tokenizers.target.encode_batch(texts) == other.tokenizers.target.encode_batch(texts)
    )


def equal_bits(one: Tensor, other: Tensor | None) -> bool:
    """Return whether two tensors are bitwise equal, including the signs of zeros."""
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))

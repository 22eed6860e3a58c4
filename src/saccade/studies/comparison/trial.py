"""A short trial of a model on its own data: seconds per update and per validation on this machine."""

from __future__ import annotations

import time
from itertools import islice

import torch

from saccade.data.sampling.batch_sampler import BatchSampler
from saccade.inference.translator import Translator
from saccade.model_folder import vocabulary_sizes
from saccade.studies.comparison.budget import Speed
from saccade.training.compute_settings import configure_process, resolve_compute
from saccade.training.config import RunConfig
from saccade.training.loop import make_loop
from saccade.training.objectives.factory import make_likelihood
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.preflight.batch_trial import synchronize
from saccade.training.runs.data import RunData
from saccade.training.validation import group_by_source, validate

TIMED_UPDATES = 20
WARM_UP_UPDATES = 3  # they load kernels and allocate memory
MIN_TIMED_UPDATES = 3
MAX_SHARE = 0.1  # of the budget, after the minimum of updates
LEARNING_RATE = 1e-4  # small enough that no model diverges in a few updates


def tokens_per_update(data: RunData, config: RunConfig) -> float:
    """Mean target tokens per update, end symbols included."""
    batches = BatchSampler.from_config(data.train, config.data, config.training.seed).batches_per_epoch
    updates = -(-batches // config.training.accumulate)
    return data.train.statistics.target_tokens / max(1, updates)


def measure_speed(data: RunData, config: RunConfig, budget_seconds: float) -> Speed:
    """Train a fresh model for some updates, validate it once, and discard it."""
    training = config.training
    compute = resolve_compute(training)
    device = compute.device
    configure_process(training)
    torch.manual_seed(training.seed)
    choice = config.choice()
    model = choice.build(vocabulary_sizes(data.tokenizers)).to(device)
    likelihood = make_likelihood(training, choice, training.r_drop)
    loop = make_loop(
        model,
        lambda _: likelihood,
        BatchSampler.from_config(data.train, config.data, training.seed),
        training,
        learning_rate=lambda _: LEARNING_RATE,
        symbols=data.tokenizers.target.symbols,
        device=device,
        autocast=compute.autocast,
    )
    model.train()
    times: list[float] = []
    started = time.perf_counter()
    last = started
    for _ in islice(loop.updates(), WARM_UP_UPDATES + TIMED_UPDATES):
        synchronize(device)
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) >= WARM_UP_UPDATES + MIN_TIMED_UPDATES and now - started > MAX_SHARE * budget_seconds:
            break
    timed = times[WARM_UP_UPDATES:]
    translator = Translator(model, data.tokenizers, config.decoding, device)
    seconds = sum(timed) / len(timed)
    if data.valid is None:
        return Speed(seconds, 0.0)
    sentences = len(group_by_source(data.valid.pairs or [], training.valid_sentences)[0])
    loss = validation_seconds(data, config, translator, 0)
    return Speed(
        seconds, validation_seconds(data, config, translator, sentences) if sentences else loss, loss, sentences
    )


def validation_seconds(data: RunData, config: RunConfig, translator: Translator, sentences: int) -> float:
    """Return the seconds of one validation; output lengths are fixed: an untrained model predicts no end symbol."""
    assert data.valid is not None
    ratio = data.train.statistics.target_tokens / max(1, data.train.statistics.source_tokens)
    lengths = {"max_length": 0, "min_length": 0, "max_length_factor": ratio, "max_length_offset": 5}
    translator.decoding = translator.decoding.model_copy(update=lengths)
    started = time.perf_counter()
    validate(
        translator,
        data.valid,
        Likelihood(config.training.label_smoothing),
        metrics=config.training.metrics,
        batch_tokens=config.data.batch_tokens,
        sentences=sentences,
        samples=0,
        beam=config.training.valid_beam,
    )
    return time.perf_counter() - started

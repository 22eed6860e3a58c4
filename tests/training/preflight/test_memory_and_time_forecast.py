from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from test_process_memory import alone

from saccade.data.cache.corpus_statistics import CorpusStatistics
from saccade.data.sampling.batches import Batch
from saccade.errors import SaccadeError
from saccade.interface import VocabularySizes
from saccade.models.registry import choose
from saccade.symbols import Symbols
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.objectives.objective import Loss
from saccade.training.preflight import batch_trial
from saccade.training.preflight.batch_trial import BatchShape, random_batch
from saccade.training.preflight.memory_and_time_forecast import Forecast, forecast, longest_shape, typical_shape

SIZES = VocabularySizes(50, 60)
CPU = torch.device("cpu")
STATISTICS = CorpusStatistics(
    pairs=100, source_tokens=700, target_tokens=900, longer_tokens=1000, longest_source=12, longest_target=20
)


def build_model() -> Any:
    torch.manual_seed(1)
    settings = {"width": 16, "heads": 2, "feed_forward": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.3}
    return choose({"preset": "transformer-tiny", **settings}).build(SIZES)


def make_forecast(model: Any, objective: Any = None, **changes: Any) -> Forecast:
    settings: dict[str, Any] = {"batch_tokens": 200, "accumulate": 1, "sizes": SIZES}
    return forecast(
        model,
        objective or Likelihood(0.1),
        changes.pop("statistics", STATISTICS),
        device=CPU,
        symbols=Symbols(),
        **{**settings, **changes},
    )


class Recorded(Likelihood):
    """Records the batches and the mode of the model."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.batches: list[tuple[BatchShape, bool, bool]] = []

    def loss(self, model: Any, batch: Batch) -> Loss:
        shape = BatchShape(*batch.target.shape[:1], batch.source.mask.size(1), batch.target.size(1))
        self.batches.append((shape, model.training, torch.is_grad_enabled()))
        return super().loss(model, batch)


def train(model: Any, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = random_batch(BatchShape(5, 6, 7), Symbols(), SIZES)
    for _ in range(steps):
        optimizer.zero_grad()
        Likelihood(0.1).loss(model, batch).total.backward()
        optimizer.step()


def test_forecast_does_not_change_training() -> None:
    with_forecast, without = build_model(), build_model()
    for model in (with_forecast, without):
        model.train()
        torch.manual_seed(7)
        train(model, 2)
        if model is with_forecast:
            make_forecast(model, accumulate=4)
        train(model, 3)
    for one, other in zip(with_forecast.parameters(), without.parameters(), strict=True):
        assert torch.equal(one, other)


def test_forecast_restores_model_and_generators() -> None:
    model = build_model().eval()
    parts = list(model.modules())
    parts[-1].train()
    modes = [part.training for part in parts]
    gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    make_forecast(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in parts] == modes
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_longest_batch_is_run() -> None:
    objective = Recorded()
    found = make_forecast(build_model(), objective)
    assert found.longest_batch == BatchShape(10, 20, 20)
    assert (found.longest_batch, True, True) in objective.batches
    assert (BatchShape(20, 7, 9), True, True) in objective.batches  # the typical one: 200 tokens, 10 a pair
    assert found.peak_bytes > 0


def test_r_drop_doubles_the_cost() -> None:
    alone("test_memory_and_time_forecast", "compare_passes")  # this process may have kept memory from other tests


def compare_passes() -> None:
    model = build_model()
    once, twice = (make_forecast(model, Likelihood(0.1, r_drop=weight), batch_tokens=20_000) for weight in (0.0, 1.0))
    assert twice.peak_bytes > once.peak_bytes + 5_000_000


def test_longer_validation_data_is_run_as_validation() -> None:
    objective = Recorded()
    make_forecast(build_model(), objective, valid=CorpusStatistics(pairs=1, longest_source=100, longest_target=9))
    assert (BatchShape(2, 100, 100), False, False) in objective.batches
    assert objective.batches[-1] == (BatchShape(20, 7, 9), True, True)


def test_validation_uses_the_validation_objective() -> None:
    objective, judge = Recorded(), Recorded()
    valid = CorpusStatistics(pairs=1, longest_source=100, longest_target=9)
    make_forecast(build_model(), objective, valid=valid, validation_objective=judge)
    assert judge.batches == [(BatchShape(1, 100, 100), False, False), (BatchShape(2, 100, 100), False, False)]
    assert all(shape.source < 100 for shape, *_ in objective.batches)


def test_more_tokens_need_more_memory_and_time() -> None:
    alone("test_memory_and_time_forecast", "compare_forecasts")  # this process may have kept memory from other tests


def compare_forecasts() -> None:
    model = build_model()
    small, large = (make_forecast(model, batch_tokens=tokens) for tokens in (400, 50_000))
    assert large.peak_bytes > small.peak_bytes + 10_000_000
    assert large.seconds_a_batch > small.seconds_a_batch


def test_batch_that_does_not_fit_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("memory_and_time_forecast", "batch_trial"):
        monkeypatch.setattr(f"saccade.training.preflight.{module}.available_memory", lambda _: 1000)
    objective = Recorded()
    found = make_forecast(build_model(), objective)
    assert BatchShape(10, 20, 20) not in [shape for shape, _, _ in objective.batches]
    assert not found.fits
    (warning,) = found.warnings()
    assert warning.startswith("the longest batch is expected to need")
    assert "--data.batch-tokens" in warning


def test_slow_batch_is_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_trial, "MAX_SECONDS", 1e-9)
    objective = Recorded()
    found = make_forecast(build_model(), objective)
    assert max(shape.rows for shape, _, _ in objective.batches) == 1
    assert found.longest_batch.rows == 10
    assert found.seconds_a_batch > 0


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("out"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_error_gives_advice(error: Exception) -> None:
    class Greedy(Likelihood):
        def loss(self, model: Any, batch: Batch) -> Loss:
            raise error

    model = build_model().eval()
    with pytest.raises(SaccadeError, match=r"10 pairs of 20 and 20 tokens(?s:.*)--data\.batch-tokens"):
        make_forecast(model, Greedy())
    assert not model.training


def test_other_errors_are_not_hidden() -> None:
    class Faulty(Likelihood):
        def loss(self, model: Any, batch: Batch) -> Loss:
            raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        make_forecast(build_model(), Faulty())


def test_times_follow_from_the_number_of_batches() -> None:
    found = make_forecast(build_model(), batches_an_epoch=50, total_updates=1000, accumulate=2, processes=2)
    assert found.epoch_seconds == pytest.approx(25 * found.seconds_a_batch)
    assert found.total_seconds == pytest.approx(1000 * found.seconds_a_batch)
    assert found.target_tokens_a_second == pytest.approx(900 / found.epoch_seconds)
    assert make_forecast(build_model()).total_seconds is None


def test_shapes_of_degenerate_corpora() -> None:
    assert longest_shape(STATISTICS, 5) == BatchShape(1, 20, 20)
    assert typical_shape(STATISTICS, 5) == BatchShape(1, 7, 9)
    assert longest_shape(CorpusStatistics(), 10) == typical_shape(CorpusStatistics(), 10) == BatchShape(10, 1, 1)


def test_random_batches_have_the_format_of_real_ones() -> None:
    batch = random_batch(BatchShape(300, 4, 6), Symbols(), SIZES)
    assert set(batch.target[:, :-1].flatten().tolist()) == set(range(4, 60))
    assert int(batch.source.values.max()) == 49
    assert bool((batch.target[:, -1] == Symbols.end).all())
    assert bool((batch.prefix[:, 0] == Symbols.begin).all())
    assert torch.equal(batch.prefix[:, 1:], batch.target[:, :-1])
    assert (batch.source_tokens, batch.target_tokens) == (1200, 1800)


def test_forecast_as_text_and_json() -> None:
    found = Forecast(BatchShape(16, 256, 250), 1_250_000_000, 8_000_000_000, 0.456, 8123.4, 100.0, 4000.0)
    assert found.lines() == [
        "memory: 1.25 GB of 8.00 GB with the longest batch (16 pairs of 256 and 250 tokens)",
        "time: 0.46 s per batch, 8,123 target tokens per second; an epoch 2 min, the run 1 h 07 min, "
        "without validation",
    ]
    assert found.warnings() == []
    values = json.loads(json.dumps(found.to_json()))
    assert values["longest_batch"] == {"rows": 16, "source": 256, "target": 250}
    assert values["fits"] is True

"""A stop flag ends every search after its current step."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from fake_model import SYMBOLS, FakeModel
from plans.transformers import sharp_model, source_of
from saccade.decoding.config import DecodingConfig
from saccade.decoding.search import SearchRequest, search
from saccade.decoding.stop_flag import SearchStoppedError, StopFlag
from saccade.interface import Source, Step
from saccade.plans.transformer_plan import TransformerPlan

SEARCHES = [{"beam": 1}, {"beam": 4}, {"sample": True}]


def source(*lengths: int) -> Source:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Source(torch.full(mask.shape, 5) * mask, mask)


@pytest.mark.parametrize("changes", SEARCHES)
def test_a_search_stops_after_the_step_in_which_the_flag_is_set(changes: dict[str, Any]) -> None:
    stop = StopFlag()

    class Stopping(FakeModel):
        def step(self, *arguments: Any, **options: Any) -> Step:
            if len(self.steps) == 2:
                stop.set()
            return super().step(*arguments, **options)

    model = Stopping(end_bias=-20.0)
    config = DecodingConfig(max_length=40, **changes)
    with pytest.raises(SearchStoppedError):
        search(model, SearchRequest(source(3, 2), config, SYMBOLS, stop=stop))
    assert len(model.steps) == 3


@pytest.mark.parametrize("changes", SEARCHES)
def test_a_flag_that_is_not_set_changes_nothing(changes: dict[str, Any]) -> None:
    model, config = FakeModel(), DecodingConfig(max_length=9, **changes)
    found = [search(model, SearchRequest(source(3, 2), config, SYMBOLS, stop=stop)) for stop in (None, StopFlag())]
    assert found[0] == found[1]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("beam", "count", "length"), [(1, 4000, 30), (4, 4000, 30), (1, 200, 500)])
def test_a_compiled_search_stops_within_a_step(beam: int, count: int, length: int) -> None:
    """The last search is stopped in its encoder."""
    plan = TransformerPlan(sharp_model({"norm": "pre", "width": 64, "heads": 4, "feed_forward": 256}))
    given = source_of([[*([5] * length), 2]] * count)
    config = DecodingConfig(beam=beam, min_length=900, max_length=1000)
    stop = StopFlag()
    timer = threading.Timer(0.3, stop.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(SearchStoppedError), torch.inference_mode():  # it would take minutes
        search(plan, SearchRequest(given, config, SYMBOLS, stop=stop))
    assert time.monotonic() - began < 20
    timer.join()

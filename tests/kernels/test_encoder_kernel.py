"""A few places through all layers of an encoder in one call, against layer after layer."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from laws.subjects import build_model, make_batch
from saccade.kernels import without_kernels
from saccade.models import transformer_rows

SENTENCES = [[1], [7], [9, 2, 5], [3, 3, 3, 3], [40], [transformer_rows.FEW_PLACES]]


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def calls(monkeypatch):
    """How often the kernel was called."""
    seen, encode_few = [], transformer_rows.encode_few

    def counted(*given):
        seen.append(1)
        return encode_few(*given)

    monkeypatch.setattr(transformer_rows, "encode_few", counted)
    return seen


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("width", [16, 20, 128])
@pytest.mark.parametrize("lengths", SENTENCES, ids=str)
@torch.no_grad()
def test_it_is_what_the_layers_give_one_by_one(lengths, width, norm, calls):
    changes = {"norm": norm, "width": width, "feed_forward": 2 * width + 3, "heads": 4, "encoder_layers": 3}
    model = build_model(("transformer", changes)).eval()
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms too
    source = make_batch(lengths, [2] * len(lengths)).source
    with without_kernels():
        expected = model.encode(source).states
    found = model.encode(source).states
    assert len(calls) == (int(source.mask.sum()) <= transformer_rows.FEW_PLACES)
    assert calls or sum(lengths) >= transformer_rows.FEW_PLACES
    assert_close(found[source.mask], expected[source.mask], rtol=1e-4, atol=1e-4)


def test_whoever_learns_or_drops_units_takes_the_layers(calls):
    model, source = build_model(("transformer", {"dropout": 0.5})), make_batch([3], [2]).source
    model.eval().encode(source)
    with torch.no_grad():
        model.train().encode(source)
        assert not calls
        model.eval().encode(source)
    assert calls

"""Contract tests of the model interface over every registered model."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import SEPARATE, SIZES, build_model, choice_of, make_batch, registered_models, take
from saccade.data.config import DataConfig
from saccade.data.reading.pair_files import Pair
from saccade.data.tokenizers.tokenizer_pair import train_tokenizers
from saccade.decoding.config import DecodingConfig
from saccade.decoding.search import SearchRequest, search
from saccade.inference.loading import translator_from
from saccade.interface import Decoder, Encoder, Source, VocabularySizes, reorder, select
from saccade.model_folder import ModelFolder, load_model_folder, save_model_folder
from saccade.models.registry import load_family
from saccade.ops.dispatch import without_kernels
from saccade.symbols import Symbols
from saccade.training.config import TrainingConfig
from saccade.training.gradient_accumulation import accumulate
from saccade.training.objectives.likelihood import Likelihood
from saccade.training.optimizers import make_optimizer, scale_and_clip

pytestmark = pytest.mark.parametrize("subject", registered_models())
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture
def model(subject):
    return build_model(subject)


@pytest.fixture
def batch():
    return make_batch([7, 4, 1, 5], [6, 3, 5, 1])


def logits_of(model, batch, *, record=False):
    memory = model.encode(batch.source, record=record)
    return model.logits(model.decode(batch.prefix, memory, record=record).outputs)


def test_model_satisfies_the_protocols(model):
    assert isinstance(model, Encoder)
    assert isinstance(model, Decoder)


@pytest.mark.usefixtures("grad_mode")
def test_an_empty_batch_has_empty_outputs(model):
    none = torch.zeros(0, 3, dtype=torch.int64)
    memory = model.encode(Source(none, none.bool()))
    assert model.logits(model.decode(none, memory).outputs).shape == (0, 3, SIZES.target)
    step = model.step(none[:, 0], model.start(memory), memory)
    assert model.logits(step.output).shape == (0, SIZES.target)


@pytest.mark.usefixtures("grad_mode")
def test_steps_equal_decode(model, batch):
    memory = model.encode(batch.source)
    with without_kernels():
        expected = model.decode(batch.prefix, memory).outputs
    state = model.start(memory)
    for position in range(batch.prefix.size(1)):
        output, state, _ = model.step(batch.prefix[:, position], state, memory)
        real = batch.target_mask[:, position]
        assert_close(output[real], expected[real, position], **CLOSE)


@pytest.mark.usefixtures("grad_mode")
def test_recorded_steps_equal_recorded_decode(model, batch):
    memory = model.encode(batch.source)
    expected = {(r.kind, r.layer): r.weights for r in model.decode(batch.prefix, memory, record=True).attention}
    state = model.start(memory)
    for position in range(batch.prefix.size(1)):
        step = model.step(batch.prefix[:, position], state, memory, record=True)
        state = step.state
        real = batch.target_mask[:, position]
        assert {(record.kind, record.layer) for record in step.attention} == expected.keys()
        for record in step.attention:
            row = expected[record.kind, record.layer][:, :, position : position + 1, : record.weights.size(-1)]
            assert_close(record.weights[real], row[real], **CLOSE)


@pytest.mark.usefixtures("grad_mode")
def test_padding_does_not_change_outputs(model, batch):
    together = logits_of(model, batch)
    for row in range(len(batch.indices)):
        alone = take(batch, [row])
        length = alone.prefix.size(1)
        assert_close(together[row : row + 1, :length], logits_of(model, alone), **CLOSE)
    wider = dataclasses.replace(batch, source=pad_source(batch.source, 5))
    assert_close(logits_of(model, wider)[batch.target_mask], together[batch.target_mask], **CLOSE)


@pytest.mark.usefixtures("grad_mode")
def test_padding_content_does_not_change_outputs(model, batch):
    noisy = batch.source.values.masked_fill(~batch.source.mask, 9)
    other = dataclasses.replace(batch, source=Source(noisy, batch.source.mask))
    assert torch.equal(logits_of(model, other)[batch.target_mask], logits_of(model, batch)[batch.target_mask])


def pad_source(source: Source, extra: int) -> Source:
    values = torch.nn.functional.pad(source.values, (0, extra))
    return Source(values, torch.nn.functional.pad(source.mask, (0, extra)))


@pytest.mark.usefixtures("grad_mode")
def test_decoder_is_causal(model, batch):
    before = logits_of(model, batch)
    for position in range(1, batch.prefix.size(1)):
        prefix = batch.prefix.clone()
        prefix[:, position] = (prefix[:, position] + 7) % (SIZES.target - 4) + 4
        after = logits_of(model, dataclasses.replace(batch, prefix=prefix))
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.allclose(after[:, position], before[:, position])


@pytest.mark.usefixtures("grad_mode")
def test_select_commutes_with_step(model, batch):
    memory = model.encode(batch.source)
    state = model.start(memory)
    for position in range(2):
        state = model.step(batch.prefix[:, position], state, memory).state
    rows = torch.tensor([2, 0, 0, 3, 1])
    token = batch.prefix[:, 2]
    stepped = model.step(token, state, memory)
    selected = model.step(token[rows], select(state, rows), select(memory, rows))
    assert_close(selected.output, stepped.output[rows], **CLOSE)
    again = model.step(token[rows], selected.state, select(memory, rows)).output
    assert_close(again, model.step(token[rows], select(stepped.state, rows), select(memory, rows)).output, **CLOSE)


@pytest.mark.usefixtures("grad_mode")
def test_copied_state_can_be_stepped_alone(model, batch):
    memory = model.encode(batch.source)
    state = model.step(batch.prefix[:, 0], model.start(memory), memory).state
    copied = detached_copy(state)
    expected = model.step(batch.prefix[:, 1], state, memory)
    del state
    again = model.step(batch.prefix[:, 1], copied, memory)
    assert torch.equal(again.output, expected.output)


def detached_copy(state):
    """A deep copy of a state; only leaves of the autograd graph can be copied, so tensors are detached first."""
    memo = {id(part): part.detach().clone() for part in tensors_of(state)}
    return copy.deepcopy(state, memo)


def tensors_of(state):
    if isinstance(state, torch.Tensor):
        yield state
    elif dataclasses.is_dataclass(state):
        yield from tensors_of([getattr(state, field.name) for field in dataclasses.fields(state)])
    elif isinstance(state, tuple | list):
        for part in state:
            yield from tensors_of(part)


@pytest.mark.usefixtures("grad_mode")
def test_hypotheses_of_a_sentence_share_its_memory(model, batch):
    memory = model.encode(batch.source)
    state = model.start(memory)
    state = model.step(batch.prefix[:, 0], state, memory).state
    rows = torch.arange(4).repeat_interleave(3)
    token = torch.randint(4, SIZES.target, (12,), generator=torch.Generator().manual_seed(5))
    apart = model.step(token, select(state, rows), select(memory, rows), record=True)
    shared = model.step(token, reorder(state, rows, None), memory, record=True)
    assert_close(shared.output, apart.output, **CLOSE)
    for one, other in zip(shared.attention, apart.attention, strict=True):
        assert_close(one.weights, other.weights, **CLOSE)
    order = torch.tensor([11, 9, 9, 2, 0, 1])  # hypotheses of the last and the first sentence, which are kept
    kept = torch.tensor([3, 0])
    again = model.step(token[order], reorder(shared.state, order, kept), select(memory, kept)).output
    alone = model.step(token[order], select(apart.state, order), select(memory, rows[order])).output
    assert_close(again, alone, **CLOSE)


@pytest.mark.parametrize("sizes", [SIZES, SEPARATE], ids=["joint", "separate"])
def test_every_parameter_has_a_gradient_and_is_updated(subject, sizes):
    model = build_model(subject, sizes).train()
    batch = make_batch([9, 9, 8, 9], [9, 8, 9, 9], sizes)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, TrainingConfig())
    loss = accumulate(model, Likelihood(0.1), [batch], keys=[1])
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    scale_and_clip(model.parameters(), loss.count, 1.0)
    optimizer.param_groups[0]["lr"] = 1e-3
    optimizer.step()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def test_training_in_bfloat16(subject):
    model = build_model(subject).train()
    batch = make_batch([9, 9, 8, 9], [9, 8, 9, 9])
    full = accumulate(model, Likelihood(0.1), [batch], keys=[1])
    model.zero_grad(set_to_none=True)
    half = accumulate(model, Likelihood(0.1), [batch], keys=[1], autocast=bfloat16)
    assert abs(half.total / full.total - 1) < 0.05
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    with bfloat16(), torch.no_grad():
        found = search(
            model.eval(), SearchRequest(model.encode(batch.source), DecodingConfig(beam=2, max_length=5), Symbols())
        )
    assert all(math.isfinite(hypothesis.score) for row in found for hypothesis in row)


def bfloat16():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_saved_model_equals_loaded_model(subject, tmp_path):
    pairs = [Pair("drei kleine Katzen", "three small cats"), Pair("zwei große Hunde", "two big dogs")] * 5
    tokenizers = train_tokenizers(pairs, DataConfig(tokenizer="bpe", vocabulary=60))
    sizes = VocabularySizes(tokenizers.source.size, tokenizers.target.size, True)
    model = build_model(subject, sizes)
    folder = ModelFolder(model, choice_of(subject), tokenizers, DecodingConfig(beam=2, max_length=12).model_dump())
    save_model_folder(tmp_path / "model", folder)
    loaded = load_model_folder(tmp_path / "model")
    batch = make_batch([5, 3], [4, 4], sizes)
    assert torch.equal(logits_of(model, batch), logits_of(loaded.model, batch))
    sentences = ["drei große Hunde", "", "zwei Katzen"]
    outputs = translator_from(loaded).translate(sentences)
    assert outputs == translator_from(folder).translate(sentences)
    assert outputs[1] == ""


@pytest.mark.usefixtures("grad_mode")
def test_recording_does_not_change_outputs(model, batch):
    real = batch.target_mask  # outputs at padding are undefined
    with without_kernels():
        explicit = logits_of(model, batch, record=True)
    assert_close(explicit[real], logits_of(model, batch)[real], **CLOSE)
    assert_close(explicit[real], logits_of(model, batch, record=True)[real], **CLOSE)


@pytest.mark.usefixtures("grad_mode")
def test_attention_weights_sum_to_one_and_are_zero_where_masked(model, batch):
    memory = model.encode(batch.source, record=True)
    records = memory.attention + model.decode(batch.prefix, memory, record=True).attention
    future = torch.ones(batch.prefix.size(1), batch.prefix.size(1), dtype=torch.bool).triu(1)
    for record in records:
        assert_close(record.weights.sum(-1), torch.ones(record.weights.shape[:-1]), rtol=0, atol=1e-5)
        if record.kind == "decoder-self":
            assert (record.weights[..., future] == 0).all()
        else:
            hidden = ~batch.source.mask[:, None, None].expand_as(record.weights)
            assert (record.weights[hidden] == 0).all()


@pytest.mark.usefixtures("grad_mode")
def test_recorded_kinds_are_those_of_the_family(subject, model, batch):
    memory = model.encode(batch.source, record=True)
    records = memory.attention + model.decode(batch.prefix, memory, record=True).attention
    assert {record.kind for record in records} == load_family(subject[0]).attention


@pytest.mark.usefixtures("grad_mode")
def test_nothing_is_recorded_by_default(model, batch):
    memory = model.encode(batch.source)
    assert memory.attention == ()
    assert model.decode(batch.prefix, memory).attention == ()


def test_encoder_without_positions_is_permutation_equivariant(subject):
    settings = load_family(subject[0]).permutation_equivariant_settings
    if settings is None:
        pytest.skip("the encoder of this family always depends on the order of tokens")
    batch = make_batch([7, 7], [5, 5])
    order = torch.tensor([4, 2, 0, 6, 5, 1, 3])
    permuted = Source(batch.source.values[:, order], batch.source.mask[:, order])
    for changes in ({**subject[1], **settings}, subject[1]):
        model = build_model((subject[0], changes))
        states, permuted_states = model.encode(batch.source).states, model.encode(permuted).states
        equivariant = settings.items() <= choice_of((subject[0], changes)).config.model_dump().items()
        assert torch.allclose(permuted_states, states[:, order], **CLOSE) == equivariant


def test_model_overfits_a_copy_task(subject):
    if choice_of(subject).config.model_dump().get("positions") == "none":
        pytest.skip("without positions the order of tokens cannot be copied")
    model = build_model(subject).train()
    batch = make_batch([5, 4, 5, 3], [5, 4, 5, 3])
    batch = dataclasses.replace(batch, source=Source(batch.target, batch.target_mask))
    optimizer = make_optimizer(model, TrainingConfig())
    optimizer.param_groups[0]["lr"] = 1e-2
    for step in range(150):
        optimizer.zero_grad(set_to_none=True)
        loss = accumulate(model, Likelihood(), [batch], keys=[step])
        scale_and_clip(model.parameters(), loss.count, 1.0)
        optimizer.step()
    memory = model.eval().encode(batch.source)
    for beam in (1, 3):
        found = search(model, SearchRequest(memory, DecodingConfig(beam=beam), Symbols()))
        written = [list(hypotheses[0].tokens) for hypotheses in found]
        assert written == [[int(token) for token in row if token > 3] for row in batch.target]


INTERFACE_CONTRACTS = [  # those that need no family
    test_model_satisfies_the_protocols,
    test_steps_equal_decode,
    test_recorded_steps_equal_recorded_decode,
    test_padding_does_not_change_outputs,
    test_padding_content_does_not_change_outputs,
    test_decoder_is_causal,
    test_select_commutes_with_step,
    test_copied_state_can_be_stepped_alone,
    test_hypotheses_of_a_sentence_share_its_memory,
    test_recording_does_not_change_outputs,
    test_attention_weights_sum_to_one_and_are_zero_where_masked,
    test_nothing_is_recorded_by_default,
]

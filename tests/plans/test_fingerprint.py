"""A plan detects every change of its model, and stores nothing on the model."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.testing import assert_close

from contracts.registered_models import build_model, make_batch
from plans.transformers import SYMBOLS, python_search, tokens_of
from saccade.decoding.config import DecodingConfig
from saccade.decoding.search import SearchRequest, search
from saccade.interface import Source
from saccade.layers.feed_forward import FeedForward
from saccade.layers.residual import SublayerOutput
from saccade.models.transformer import Transformer
from saccade.ops.dispatch import without_kernels
from saccade.plans import quantization, transformer_plan
from saccade.plans.fingerprint import Fingerprint
from saccade.plans.plan_selection import plan_for
from saccade.plans.quantization import QuantizedPlan
from saccade.plans.transformer_plan import TransformerPlan
from saccade.training.config import TrainingConfig
from saccade.training.optimizers import make_optimizer

pytestmark = pytest.mark.usefixtures("kernels_required", "one_thread", "seeded")

BATCH = make_batch([5, 3], [4, 4])
CONFIG = DecodingConfig(beam=3, max_length=6)


@pytest.fixture
def model() -> Transformer:
    return build_model(("transformer", {"norm": "pre", "width": 16, "heads": 2}))


@torch.no_grad()
def outputs(model) -> list[torch.Tensor]:
    memory = model.encode(BATCH.source)
    step = model.step(BATCH.prefix[:, 0], model.start(memory), memory)
    return [memory.states[memory.mask], step.output, model.logits(step.output)]


def change_in_place(model):
    model.decoder[1].cross.query.weight.mul_(-1.0)


def change_the_output_layer(model):
    model.output.table.mul_(2.0)


def load_other_weights(model):
    model.load_state_dict({name: weight + 0.1 for name, weight in model.state_dict().items()})


def assign_data(model):
    weight = model.encoder[0].attention.output.weight
    weight.data = weight.data * 2.0


def replace_a_parameter(model):
    expand = model.decoder[0].feed_forward.expand
    expand.weight = nn.Parameter(torch.randn_like(expand.weight))


def replace_a_module(model):
    model.encoder[1] = copy.deepcopy(model.encoder[0])


def add_a_layer(model):
    model.encoder.append(copy.deepcopy(model.encoder[0]))


def remove_a_layer(model):
    del model.decoder[1]


def parametrize_a_weight(model):
    weight_norm(model.encoder[1].attention.output)
    model.encoder[1].attention.output.parametrizations.weight.original0.mul_(1.5)


def change_an_epsilon(model):
    model.decoder[1].cross_residual.norm.eps = 0.5


def change_the_heads(model):
    for layer in model.encoder:
        layer.attention.heads = 4


def replace_a_buffer(model):
    positions = model.target_embedding.positions
    name, table = next(iter(positions.named_buffers()))
    setattr(positions, name, torch.zeros_like(table))


def hook_a_layer(model):
    model.decoder[0].feed_forward.register_forward_hook(lambda module, inputs, output: output._replace(bias=None))


def step_an_optimizer(model, kind):
    optimizer = make_optimizer(model, TrainingConfig(optimizer=kind))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    optimizer.step()
    model.zero_grad()


def step_adam(model):
    step_an_optimizer(model, "adam")


def step_muon(model):
    step_an_optimizer(model, "muon")


CHANGES = [
    *(change_in_place, change_the_output_layer, load_other_weights, assign_data, replace_a_parameter),
    *(replace_a_module, add_a_layer, remove_a_layer, parametrize_a_weight, step_adam, step_muon),
    *(change_an_epsilon, change_the_heads, replace_a_buffer, hook_a_layer),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@torch.no_grad()
def test_a_plan_is_rebuilt_after_changes(model, change):
    plan = TransformerPlan(model)
    before, fingerprint = outputs(plan), plan.compiled.fingerprint
    assert fingerprint.matches()
    change(model)
    assert not fingerprint.matches()
    found = outputs(plan)
    assert plan.compiled.fingerprint.matches()
    with without_kernels():
        assert_close(found, outputs(model), rtol=1e-4, atol=1e-5)
    assert any(not torch.allclose(one, other, atol=1e-3) for one, other in zip(found, before, strict=True))
    searched = search(plan, SearchRequest(BATCH.source, CONFIG, SYMBOLS))
    assert tokens_of(searched) == tokens_of(python_search(model, BATCH.source, CONFIG))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@torch.no_grad()
def test_a_compiled_search_notices_changes(model, change):
    """The search is the first call after the change."""
    plan = TransformerPlan(model)
    change(model)
    searched = search(plan, SearchRequest(BATCH.source, CONFIG, SYMBOLS, scores=True))
    for found, expected in zip(searched, python_search(model, BATCH.source, CONFIG), strict=True):
        assert found[0].score == pytest.approx(expected[0].score, abs=1e-4)


@pytest.mark.parametrize("quantize", [False, True])
@torch.no_grad()
def test_a_plan_notices_a_change_of_dtype(model, quantize):
    plan = plan_for(model, quantize=quantize)
    outputs(plan)
    model.double()
    assert_close(outputs(plan), outputs(model))
    model.float()
    assert outputs(plan)[0].dtype == torch.float32


def move_twice(model):
    model.double()
    model.float()


def reassign_all_data(model):
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


@pytest.mark.parametrize("move", [move_twice, reassign_all_data])
@pytest.mark.parametrize("quantize", [False, True])
@torch.no_grad()
def test_a_step_reads_the_weights_of_its_start(model, move, quantize):
    """The parameters get other storage between `start` and `step`; the plan keeps what it reads."""
    plan = plan_for(model, quantize=quantize)
    memory = plan.encode(BATCH.source)
    state = plan.start(memory)
    expected = plan.step(BATCH.prefix[:, 0], state, memory).output
    move(model)
    junk = [torch.full_like(parameter, torch.nan) for parameter in model.parameters() for _ in range(4)]
    found = plan.step(BATCH.prefix[:, 0], state, memory).output
    assert junk
    assert_close(found, expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_state_of_another_model_is_refused(model):
    plan = TransformerPlan(model)
    memory = plan.encode(BATCH.source)
    state = plan.start(memory)
    wide = TransformerPlan(build_model(("transformer", {"norm": "pre", "width": 32, "heads": 2})))
    with pytest.raises(ValueError, match="width"):
        wide.step(BATCH.prefix[:, 0], state, memory)
    model.decoder.append(copy.deepcopy(model.decoder[0]))
    plan.encode(BATCH.source)
    with pytest.raises(ValueError, match="layers"):
        plan.step(BATCH.prefix[:, 0], state, memory)


class GeluFeedForward(FeedForward):
    """A feed-forward network that the kernels do not compute."""

    def forward(self, x, layout=None):
        inner = torch.nn.functional.gelu(self.expand(x))
        return SublayerOutput(self.contract(inner), None)


@torch.no_grad()
def test_a_plan_falls_back_to_the_model_for_subclasses_of_layers(model):
    layer = model.decoder[0]
    gelu = GeluFeedForward(16, layer.feed_forward.inner).eval()
    gelu.load_state_dict(layer.feed_forward.state_dict())
    layer.feed_forward = gelu
    plan = TransformerPlan(model)
    assert plan.compiled.decoder is None
    assert_close(outputs(plan), outputs(model))


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("family", ["transformer", "convs2s", "bahdanau"])
@torch.no_grad()
def test_a_plan_that_was_built_without_kernels_uses_them_later(family):
    model = build_model((family, {}))
    with without_kernels():
        plan = plan_for(model, quantize=True)
        outputs(plan)
    assert_close(outputs(plan), outputs(plan_for(model, quantize=True)), rtol=0, atol=0)


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("family", ["transformer", "convs2s", "bahdanau"])
@torch.no_grad()
def test_a_copied_plan_has_a_model_of_its_own(family, quantize):
    model = build_model((family, {}))
    plan = plan_for(model, quantize=quantize)
    expected = outputs(plan)
    copied = copy.deepcopy(plan)
    for parameter in model.parameters():
        parameter.mul_(0.5)
    assert_close(outputs(copied), expected, rtol=0, atol=0)


@pytest.mark.usefixtures("int8_required")
@torch.no_grad()
def test_a_failed_quantization_is_tried_again(monkeypatch):
    model = build_model(("bahdanau", {}))
    plan = plan_for(model, quantize=True)
    for parameter in model.parameters():
        parameter.mul_(0.5)
    with monkeypatch.context() as patch:
        patch.setattr(quantization, "quantized_copy", raise_memory_error)
        with pytest.raises(MemoryError):
            plan.encode(BATCH.source)
    assert_close(outputs(plan), outputs(plan_for(model, quantize=True)), rtol=0, atol=0)


def raise_memory_error(*_):
    raise MemoryError


@torch.no_grad()
def test_a_plan_does_not_depend_on_the_default_device(model):
    expected = outputs(TransformerPlan(model))
    searched = search(TransformerPlan(model), SearchRequest(BATCH.source, CONFIG, SYMBOLS))
    with torch.device("meta"):
        plan = TransformerPlan(model)
        found = outputs(plan)
        again = search(plan, SearchRequest(BATCH.source, CONFIG, SYMBOLS))
    assert_close(found, expected, rtol=0, atol=0)
    assert tokens_of(again) == tokens_of(searched)


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("family", ["transformer", "bahdanau"])
@torch.no_grad()
def test_int8_weights_are_quantized_again_after_changes(family):
    model = build_model((family, {}))
    plan = plan_for(model, quantize=True)
    exact, found = outputs(model), outputs(plan)
    assert any(not torch.equal(one, other) for one, other in zip(exact, found, strict=True))
    for parameter in model.parameters():
        parameter.mul_(0.5)
    expected = outputs(model)
    for found, other in zip(outputs(plan), expected, strict=True):
        assert (found - other).abs().max() <= 0.1 * other.abs().max()
    assert any((one - other).abs().max() > 0.1 * other.abs().max() for one, other in zip(exact, expected, strict=True))


@torch.no_grad()
def test_a_plan_notices_the_training_mode(model):
    with_dropout = build_model(("transformer", {"norm": "pre", "width": 16, "heads": 2, "dropout": 0.5}))
    with_dropout.load_state_dict(model.state_dict())
    plan = TransformerPlan(with_dropout)
    expected = outputs(plan)
    with_dropout.decoder[1].train()
    assert plan.current().decoder is None
    assert plan.current().encoder is not None
    found = [outputs(plan)[1] for _ in range(2)]
    assert not torch.equal(found[0], found[1])
    with_dropout.eval()
    assert_close(outputs(plan), expected, rtol=0, atol=0)


@torch.no_grad()
def test_an_unchanged_model_is_compiled_once(model, monkeypatch):
    plan = TransformerPlan(model)
    compiled = plan.compiled
    monkeypatch.setattr(transformer_plan, "make_stack", None)
    outputs(plan)
    search(plan, SearchRequest(BATCH.source, CONFIG, SYMBOLS))
    assert plan.compiled is compiled


@pytest.mark.usefixtures("int8_required")
@torch.no_grad()
def test_the_int8_screen_is_built_again_after_changes_of_the_output_layer(model):
    plan = TransformerPlan(model)
    screen = plan.compiled.output_screen
    assert screen is not None
    assert plan.current().output_screen is screen
    model.output.table.mul_(2.0)
    assert plan.current().output_screen is not screen


def test_the_fingerprint_covers_every_module_and_parameter(model):
    """Any change makes the fingerprint differ; undoing it makes the fingerprint match again."""
    fingerprint = Fingerprint(model)
    for module in model.modules():
        module.training = True
        assert not fingerprint.matches()
        module.training = False
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                setattr(module, name, nn.Parameter(parameter.detach().clone()))
                assert not fingerprint.matches()
                setattr(module, name, parameter)
    assert fingerprint.matches()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.add_(0.0)
        assert not fingerprint.matches()
        fingerprint = Fingerprint(model)


def attributes_of(model):
    """Everything that is stored on a model: attributes of modules and parameters, types, hooks."""
    modules = [(type(module), dict(vars(module))) for module in model.modules()]
    for _, attributes in modules:
        attributes.update({name: dict(value) for name, value in attributes.items() if isinstance(value, dict)})
    return modules, [(type(one), dict(vars(one)), one.requires_grad) for one in model.parameters()]


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("family", ["transformer", "convs2s", "bahdanau"])
def test_a_plan_stores_nothing_on_the_model(family, quantize):
    model = build_model((family, {}))
    before, weights = attributes_of(model), copy.deepcopy(model.state_dict())
    plan = plan_for(model, quantize=quantize)
    outputs(plan)
    for scores in (True, False):
        search(plan, SearchRequest(BATCH.source, DecodingConfig(beam=1, max_length=5), SYMBOLS, scores=scores))
    assert attributes_of(model) == before
    assert_close(model.state_dict(), weights, rtol=0, atol=0)


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("family", ["transformer", "convs2s", "bahdanau"])
def test_a_deleted_model_is_freed(family, quantize):
    model = build_model((family, {}))
    plan = plan_for(model, quantize=quantize)
    state = plan.start(plan.encode(BATCH.source))
    outputs(plan)
    alive = [weakref.ref(model), weakref.ref(next(model.parameters())), weakref.ref(plan)]
    del model, plan, state
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3


@pytest.mark.parametrize("quantize", [False, True])
@torch.no_grad()
def test_a_copied_decoding_state_steps_equally(model, quantize, called_kernels):
    plan = plan_for(model, quantize=quantize)
    memory = plan.encode(BATCH.source)
    state = plan.step(BATCH.prefix[:, 0], plan.start(memory), memory).state
    copied = copy.deepcopy(state)
    expected = [step.output for step in two_steps(plan, state, memory)]
    del state
    gc.collect()
    junk = [torch.full((2, 48), 9.0) for _ in range(50)]  # overwrites freed memory, which must not be read any more
    found = [step.output for step in two_steps(plan, copied, memory)]
    assert len(junk) == 50
    assert_close(found, expected, rtol=0, atol=0)
    assert called_kernels.count("decoder_step") == 5


def two_steps(plan, state, memory):
    step = plan.step(BATCH.prefix[:, 1], state, memory)
    return step, plan.step(BATCH.prefix[:, 2], step.state, memory)


@torch.no_grad()
def test_a_state_can_be_stepped_several_times(model):
    """A step does not overwrite a state."""
    plan, memory = TransformerPlan(model), model.encode(BATCH.source)
    state = plan.step(BATCH.prefix[:, 0], plan.start(memory), memory).state
    step = partial(plan.step, state=state, memory=memory)
    first = step(BATCH.prefix[:, 1]).output
    other = step(BATCH.prefix[:, 2]).output
    assert not torch.equal(first, other)
    assert torch.equal(step(BATCH.prefix[:, 1]).output, first)


@torch.no_grad()
def test_layers_without_kernels_are_computed_by_the_model():
    for changes in ({"radius": 2}, {"experts": 4, "experts_per_token": 2}):
        model = build_model(("transformer", changes))
        plan = TransformerPlan(model)
        assert plan.compiled.decoder is None
        assert_close(outputs(plan), outputs(model), rtol=0, atol=0)


@torch.no_grad()
def test_a_sublayer_in_training_mode_keeps_its_dropout():
    model = build_model(("transformer", {"norm": "pre", "width": 16, "heads": 2, "dropout": 0.5}))
    plan = TransformerPlan(model)
    assert plan.compiled.decoder is not None
    model.decoder[0].cross_residual.train()
    assert plan.current().decoder is None
    assert not torch.equal(*(plan.decode(BATCH.prefix, plan.encode(BATCH.source)).outputs for _ in range(2)))


@pytest.mark.usefixtures("int8_required")
@pytest.mark.parametrize("family", ["transformer", "convs2s", "bahdanau"])
def test_gradients_of_a_quantizing_plan_are_those_of_the_model(family):
    model = build_model((family, {}))
    plan = plan_for(model, quantize=True)
    for one in (model, plan):
        one.logits(one.decode(BATCH.prefix, one.encode(BATCH.source)).outputs).sum().backward()
        found = {name: parameter.grad for name, parameter in model.named_parameters()}
        if one is model:
            expected = found
            model.zero_grad()
    assert_close(found, expected)


@torch.no_grad()
def test_an_empty_batch_has_empty_outputs(model):
    plan = TransformerPlan(model)
    source = Source(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 3, dtype=torch.bool))
    for one in (model, plan):
        memory = one.encode(source)
        step = one.step(torch.zeros(0, dtype=torch.int64), one.start(memory), memory)
        assert one.logits(step.output).shape[0] == 0


def test_which_plan_a_model_gets():
    transformer, bahdanau = build_model(("transformer", {})), build_model(("bahdanau", {}))
    assert isinstance(plan_for(transformer), TransformerPlan)
    assert plan_for(bahdanau) is bahdanau
    assert isinstance(plan_for(bahdanau, quantize=True), QuantizedPlan)

"""GNMT: the paper's equations computed position by position; its sizes and options."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import SEPARATE, SIZES, make_batch
from saccade.decoding.config import DecodingConfig
from saccade.interface import Source, VocabularySizes
from saccade.models.gnmt import FAMILY, PRESETS, Gnmt, GnmtConfig
from saccade.training.config_resolution import resolve_config

SMALL = {"width": 6, "embedding": 5, "attention": 7, "dropout": 0.0}


def small(**changes) -> Gnmt:
    torch.manual_seed(3)
    return Gnmt(GnmtConfig(**{**SMALL, **changes}), SEPARATE).eval()


def lstm(weights, x, hidden, cell):
    """The LSTM equations at one position of one sentence; `weights` are W, U and the sum of the biases."""
    matrix, recurrent, bias = weights
    input_gate, forget_gate, new, output_gate = (matrix @ x + recurrent @ hidden + bias).chunk(4)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * new.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def weights_of(layer):
    own = layer.layer
    return own.weight_ih_l0, own.weight_hh_l0, own.bias_ih_l0 + own.bias_hh_l0


def run_layer(layer, states):
    """The hidden states of a layer for a list of inputs."""
    hidden = cell = torch.zeros(6)
    outputs = []
    for x in states:
        hidden, cell = lstm(weights_of(layer), x, hidden, cell)
        outputs.append(hidden)
    return outputs


def reference_encoder(model, tokens, residual):
    x = [model.source_embedding.table[token] * 5**0.5 for token in tokens]
    forwards = run_layer(model.both_ways.forwards, x)
    backwards = run_layer(model.both_ways.backwards, x[::-1])[::-1]
    x = [torch.cat(pair) for pair in zip(forwards, backwards, strict=True)]
    for number, layer in enumerate(model.encoder, start=2):
        outputs = run_layer(layer, x)
        x = [m + below for m, below in zip(outputs, x, strict=True)] if residual and number >= 3 else outputs
    return x


def reference_decoder(model, memory, tokens, residual):
    """Logits and attention weights (section 3, eq. 4, figure 1), all layers at one position after the other."""
    bottom, attention = model.bottom, model.attention
    states = [(torch.zeros(6), torch.zeros(6)) for _ in range(1 + len(model.decoder))]
    logits, recorded = [], []
    for token in tokens:
        query = attention.query.weight @ states[0][0]  # the bottom layer's state at the previous position
        scores = [attention.vector @ torch.tanh(query + attention.key.weight @ m + attention.key.bias) for m in memory]
        weights = torch.stack(scores).softmax(0)
        context = sum(weight * m for weight, m in zip(weights, memory, strict=True))
        embedded = model.target_embedding.table[token] * 5**0.5
        own = torch.cat([bottom.input.weight, bottom.step_input.weight], 1), bottom.hidden.weight, bottom.input.bias
        states[0] = lstm(own, torch.cat([embedded, context]), *states[0])
        x = states[0][0]
        for number, layer in enumerate(model.decoder, start=2):
            states[number - 1] = lstm(weights_of(layer), torch.cat([x, context]), *states[number - 1])
            m = states[number - 1][0]
            x = m + x if residual and number >= 3 else m
        logits.append(model.output.table @ model.output.projection(x))
        recorded.append(weights)
    return torch.stack(logits), torch.stack(recorded)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_layers": 4, "decoder_layers": 4},
        {"encoder_layers": 4, "decoder_layers": 4, "residual": False},
        {"encoder_layers": 2, "decoder_layers": 3, "tie_output": True},
        {"encoder_layers": 1, "decoder_layers": 1},
    ],
)
def test_model_equals_the_papers_equations(changes):
    model = small(**changes)
    source, prefix = [5, 9, 4, 11, 7], [1, 8, 15, 6]
    residual = changes.get("residual", True)
    states = reference_encoder(model, source, residual)
    logits, recorded = reference_decoder(model, states, prefix, residual)
    memory = model.encode(Source(torch.tensor([source]), torch.ones(1, 5, dtype=torch.bool)))
    decoded = model.decode(torch.tensor([prefix]), memory, record=True)
    assert_close(memory.states[0], torch.stack(states))
    assert_close(model.logits(decoded.outputs)[0], logits)
    assert_close(decoded.attention[0].weights[0, 0], recorded)


def test_residual_connections_begin_at_the_third_layer():
    """A layer with zero weights outputs zeros; with a residual connection it passes on its input."""
    batch = make_batch([5, 3], [4, 4], SEPARATE)
    for residual in (True, False):
        model = small(encoder_layers=3, decoder_layers=3, residual=residual)
        below = small(encoder_layers=2, decoder_layers=2, residual=residual)
        with torch.no_grad():
            for parameter in (*model.encoder[1].parameters(), *model.decoder[1].parameters()):
                parameter.zero_()
        below.load_state_dict(model.state_dict(), strict=False)
        found = model.encode(batch.source).states
        assert_close(found, below.encode(batch.source).states if residual else torch.zeros_like(found))
        memory = below.encode(batch.source)
        outputs = model.decode(batch.prefix, memory).outputs
        expected = below.decode(batch.prefix, memory).outputs if residual else torch.zeros_like(outputs)
        assert_close(outputs, expected)


def test_the_second_layer_has_no_residual():
    model = small(encoder_layers=2, decoder_layers=2)
    with torch.no_grad():
        for parameter in (*model.encoder[0].parameters(), *model.decoder[0].parameters()):
            parameter.zero_()
    batch = make_batch([5, 3], [4, 4], SEPARATE)
    memory = model.encode(batch.source)
    assert not memory.states.any()
    assert not model.decode(batch.prefix, memory).outputs.any()


def test_the_first_attention_weights_do_not_depend_on_the_target():
    model = small(encoder_layers=3, decoder_layers=3)
    batch = make_batch([5, 3], [4, 4], SEPARATE)
    memory = model.encode(batch.source)
    records = [
        model.decode(prefix, memory, record=True).attention for prefix in (batch.prefix, (batch.prefix + 3) % 20)
    ]
    assert [record.weights.shape for record in records[0]] == [(2, 1, 4, 5)]
    assert (records[0][0].kind, records[0][0].layer) == ("cross", 0)
    first, second = (found[0].weights for found in records)
    assert torch.equal(first[:, :, :1], second[:, :, :1])
    assert not torch.allclose(first[:, :, 1:], second[:, :, 1:])


def expected_count(config: GnmtConfig, sizes: VocabularySizes) -> int:
    """Number of parameters by the paper's description, for equal numbers of encoder and decoder layers, at least 2."""
    width, embedding, layers = config.width, config.embedding, config.encoder_layers
    both_ways = 2 * (4 * width * (embedding + width) + 8 * width)
    second = 4 * width * (2 * width + width) + 8 * width
    others = (layers - 2) * (4 * width * 2 * width + 8 * width)
    attention = 2 * width * config.attention + 2 * config.attention
    bottom = 4 * width * (embedding + width + width) + 4 * width
    upper = (layers - 1) * (4 * width * 3 * width + 8 * width)
    tables = sizes.target * embedding + (0 if sizes.joint else sizes.source * embedding)
    output = (0 if config.tie_output else sizes.target * width) + (
        width * embedding if config.tie_output and width != embedding else 0
    )
    return both_ways + second + others + attention + bottom + upper + tables + output


@pytest.mark.parametrize(
    "config", [*PRESETS.values(), PRESETS["gnmt-tiny"].model_copy(update={"embedding": 128})], ids=str
)
@pytest.mark.parametrize("sizes", [VocabularySizes(8000, 8000, True), VocabularySizes(700, 900, False)], ids=str)
def test_number_of_parameters(config, sizes):
    with torch.device("meta"):
        found = sum(parameter.numel() for parameter in Gnmt(config, sizes).parameters())
    assert found == expected_count(config, sizes)


def test_the_papers_size():
    """Figure 1 and section 8: 8 layers each of 1024 units."""
    base = PRESETS["gnmt-base"]
    assert (base.encoder_layers, base.decoder_layers, base.width) == (8, 8, 1024)
    assert (
        PRESETS["gnmt-tiny"].encoder_layers == PRESETS["gnmt-tiny"].decoder_layers == 3
    )  # the third layer has a residual connection


def test_the_output_layer():
    tied = Gnmt(PRESETS["gnmt-tiny"], SIZES)
    assert tied.source_embedding.table is tied.target_embedding.table is tied.output.table
    assert not list(tied.output.projection.parameters())
    narrow = small(encoder_layers=2, decoder_layers=2, tie_output=True)
    assert narrow.output.table is narrow.target_embedding.table
    assert narrow.output.projection.weight.shape == (5, 6)
    untied = small(encoder_layers=2, decoder_layers=2)
    assert untied.output.table.shape == (23, 6)
    assert untied.source_embedding.table.shape == (19, 5)


def test_dropout_acts_in_training_only():
    model = small(encoder_layers=3, decoder_layers=3, dropout=0.5)
    batch = make_batch([5, 3], [4, 4], SEPARATE)
    outputs = [model.decode(batch.prefix, model.encode(batch.source)).outputs for _ in range(2)]
    assert torch.equal(*outputs)
    model.train()
    assert not torch.equal(*(model.encode(batch.source).states for _ in range(2)))
    memory = model.encode(batch.source)
    outputs = [model.decode(batch.prefix, memory).outputs for _ in range(2)]
    assert not torch.equal(*outputs)
    assert (outputs[0] == 0).any()  # the input of the output layer has dropout too


def test_the_default_length_penalty_is_the_papers_and_allows_greedy_search():
    config = resolve_config({"model": {"preset": "gnmt-tiny"}}, where="test")
    assert (config.decoding.length_penalty, config.decoding.length_alpha) == ("gnmt", 0.6)
    assert config.training.learning_rate == FAMILY.recipe["training"]["learning_rate"]
    assert DecodingConfig(beam=1, **FAMILY.recipe["decoding"]).coverage_beta == 0

"""Deep-Att: the paper's equations computed position by position; its directions, sizes and options."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from contracts.registered_models import SEPARATE, SIZES, make_batch
from saccade.errors import SaccadeError
from saccade.interface import Source, VocabularySizes
from saccade.models.deep_att import PRESETS, DeepAtt, DeepAttConfig
from saccade.models.registry import choose

WIDTH = 6
SMALL = {"width": WIDTH, "embedding": 5, "memory": 9, "attention": 7, "dropout": 0.0}


def small(**changes) -> DeepAtt:
    torch.manual_seed(3)
    return DeepAtt(DeepAttConfig(**{**SMALL, **changes}), SEPARATE).eval()


def lstm_cell(gates, state):
    """The next (h, c) from the sums of the four gates."""
    input_gate, forget_gate, new, output_gate = gates.chunk(4)
    c = forget_gate.sigmoid() * state[1] + input_gate.sigmoid() * new.tanh()
    return output_gate.sigmoid() * c.tanh(), c


def zeros():
    return torch.zeros(WIDTH), torch.zeros(WIDTH)


def fast_forward_projection(layer, x):
    """f = W x + b, all four gates."""
    own = layer.recurrent.layer
    return own.weight_ih_l0 @ x + own.bias_ih_l0


def recur(layer, f, state):
    own = layer.recurrent.layer
    return lstm_cell(f + own.weight_hh_l0 @ state[0] + own.bias_hh_l0, state)


def half(f):
    return f[: 2 * WIDTH]


def reference_column(layers, x, direction):
    """f and h of the top layer; `direction` is +1 or -1 for the bottom layer and alternates."""
    for layer in layers:
        f = [fast_forward_projection(layer, position) for position in x]
        h = [None] * len(x)
        state = zeros()
        for position in range(len(x))[::direction]:
            state = recur(layer, f[position], state)
            h[position] = state[0]
        x = [torch.cat([half(own), out]) for own, out in zip(f, h, strict=True)]
        direction = -direction
    return f, h


def reference_encoder(model, tokens):
    x = [model.source_embedding.table[token] * 5**0.5 for token in tokens]
    tops = [reference_column(column, x, 1 - 2 * number) for number, column in enumerate(model.columns)]
    parts = [torch.cat([top for f, h in tops for top in (f[position], h[position])]) for position in range(len(tokens))]
    return [model.interface.weight @ part for part in parts]


def reference_decoder(model, memory, tokens):
    """Logits and attention weights, all layers at one position after the other."""
    bottom, attention = model.bottom, model.attention
    states = [zeros() for _ in range(1 + len(model.decoder))]
    logits, recorded = [], []
    for token in tokens:
        query = attention.query.weight @ states[0][0]
        scores = [attention.vector @ torch.tanh(query + attention.key.weight @ m + attention.key.bias) for m in memory]
        weights = torch.stack(scores).softmax(0)
        context = sum(weight * m for weight, m in zip(weights, memory, strict=True))
        embedded = model.target_embedding.table[token] * 5**0.5
        f = bottom.input.weight @ embedded + bottom.step_input.weight @ context + bottom.input.bias
        states[0] = lstm_cell(f + bottom.hidden.weight @ states[0][0], states[0])
        for number, layer in enumerate(model.decoder):
            f = fast_forward_projection(layer, torch.cat([half(f), states[number][0]]))
            states[number + 1] = recur(layer, f, states[number + 1])
        read = model.readout(torch.cat([f, states[-1][0]]))
        logits.append(model.output.table @ read)
        recorded.append(weights)
    return torch.stack(logits), torch.stack(recorded)


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder_layers": 4, "decoder_layers": 3},
        {"encoder_layers": 3, "decoder_layers": 2, "columns": 1, "tie_output": False},
        {"encoder_layers": 1, "decoder_layers": 1},
    ],
)
def test_model_equals_the_papers_equations(changes):
    model = small(**changes)
    source, prefix = [5, 9, 4, 11, 7], [1, 8, 15, 6]
    states = reference_encoder(model, source)
    logits, recorded = reference_decoder(model, states, prefix)
    memory = model.encode(Source(torch.tensor([source]), torch.ones(1, 5, dtype=torch.bool)))
    decoded = model.decode(torch.tensor([prefix]), memory, record=True)
    assert_close(memory.states[0], torch.stack(states))
    assert_close(model.logits(decoded.outputs)[0], logits)
    assert_close(decoded.attention[0].weights[0, 0], recorded)


@pytest.mark.parametrize(
    ("columns", "layers", "reads_earlier", "reads_later"),
    [(1, 1, True, False), (1, 2, True, True), (2, 1, True, True)],
)
def test_directions(columns, layers, reads_earlier, reads_later):
    """Layers alternate between the forward and backward direction; the second column starts backward."""
    model = small(columns=columns, encoder_layers=layers, decoder_layers=1)
    mask = torch.ones(1, 7, dtype=torch.bool)
    tokens = torch.tensor([[4, 5, 6, 7, 8, 9, 10]])
    other = tokens.clone()
    other[0, 3] = 11
    changed = (model.encode(Source(tokens, mask)).states != model.encode(Source(other, mask)).states).any(-1)[0]
    assert changed.tolist() == [reads_later] * 3 + [True] + [reads_earlier] * 3


def test_a_linear_path_leads_through_the_stack():
    """With zero weights for h, the top f is linear in the embeddings at any depth."""
    model = small(encoder_layers=5, decoder_layers=1, columns=1)
    with torch.no_grad():
        for layer in model.columns[0]:
            layer.recurrent.layer.bias_ih_l0.zero_()
            layer.recurrent.layer.weight_ih_l0[:, 2 * WIDTH :].zero_()
    mask = torch.ones(2, 4, dtype=torch.bool)
    one, other = torch.randn(2, 2, 4, 5)

    def top_f(x):
        return model.run_column(model.columns[0], x, mask, backwards=False)[..., : 4 * WIDTH]

    assert top_f(one).abs().max() > 1e-3
    assert_close(top_f(2 * one - 3 * other), 2 * top_f(one) - 3 * top_f(other))


def test_without_fast_forward_the_encoder_is_a_plain_lstm_stack():
    model = small(encoder_layers=2, decoder_layers=2, columns=1, fast_forward=False)
    assert model.columns[0][1].recurrent.layer.input_size == WIDTH
    tokens = torch.tensor([[4, 5, 6]])
    x = model.source_embedding(tokens)
    x, _ = model.columns[0][0].recurrent.layer(x)
    x, _ = model.columns[0][1].recurrent.layer(x.flip(1))
    memory = model.encode(Source(tokens, torch.ones(1, 3, dtype=torch.bool)))
    assert_close(memory.states, model.interface(x.flip(1)))


def test_dropout_is_not_applied_to_the_fast_forward_path():
    model = small(encoder_layers=2, decoder_layers=1, dropout=0.5).train()
    mask = torch.ones(1, 50, dtype=torch.bool)
    top = model.run_column(model.columns[0], torch.randn(1, 50, 5), mask, backwards=False)
    assert (top[..., : 4 * WIDTH] != 0).all()
    dropped = (top[..., 4 * WIDTH :] == 0).float().mean().item()
    assert 0.3 < dropped < 0.7


def expected_count(config: DeepAttConfig, sizes: VocabularySizes) -> int:
    """Number of parameters by the paper's description."""
    width, embedding, memory = config.width, config.embedding, config.memory
    upper = 4 * width * (2 * width + width + width) + 8 * width  # a layer above the bottom one
    bottom = 4 * width * (embedding + width) + 8 * width
    encoder = config.columns * (bottom + (config.encoder_layers - 1) * upper)
    interface = config.columns * 5 * width * memory
    attention = (width + memory) * config.attention + 2 * config.attention
    decoder = 4 * width * (embedding + memory + width) + 4 * width + (config.decoder_layers - 1) * upper
    readout = 5 * width * embedding + embedding
    tables = sizes.target * embedding * (1 if config.tie_output else 2)
    tables += 0 if sizes.joint else sizes.source * embedding
    return encoder + interface + attention + decoder + readout + tables


@pytest.mark.parametrize(
    "config", [*PRESETS.values(), PRESETS["deep-att-tiny"].model_copy(update={"columns": 1, "tie_output": False})]
)
@pytest.mark.parametrize("sizes", [VocabularySizes(8000, 8000, True), VocabularySizes(700, 900, False)])
def test_number_of_parameters(config, sizes):
    with torch.device("meta"):
        found = sum(parameter.numel() for parameter in DeepAtt(config, sizes).parameters())
    assert found == expected_count(config, sizes)


def test_the_papers_size():
    """Nine layers in each of two columns and seven in the decoder: a depth of 16."""
    base = PRESETS["deep-att-base"]
    assert (base.encoder_layers, base.columns, base.decoder_layers, base.width) == (9, 2, 7, 512)
    assert base.memory == base.columns * 5 * base.width // 4  # a quarter of f and h of all columns


def test_embeddings_are_shared_when_the_vocabulary_is():
    joint = DeepAtt(PRESETS["deep-att-tiny"], SIZES)
    assert joint.source_embedding.table is joint.target_embedding.table is joint.output.table
    separate = small(encoder_layers=1, decoder_layers=1)
    assert separate.source_embedding.table.shape == (19, 5)
    assert separate.target_embedding.table is separate.output.table
    untied = small(encoder_layers=1, decoder_layers=1, tie_output=False)
    assert untied.target_embedding.table is not untied.output.table


def test_the_first_attention_weights_do_not_depend_on_the_target():
    model = small(encoder_layers=2, decoder_layers=2)
    batch = make_batch([5, 3], [4, 4], SEPARATE)
    memory = model.encode(batch.source)
    first, second = (
        model.decode(prefix, memory, record=True).attention[0].weights
        for prefix in (batch.prefix, (batch.prefix + 3) % 20)
    )
    assert first.shape == (2, 1, 4, 5)
    assert torch.equal(first[:, :, :1], second[:, :, :1])
    assert not torch.allclose(first[:, :, 1:], second[:, :, 1:])


def test_three_columns_are_refused():
    with pytest.raises(SaccadeError, match="columns"):
        choose({"preset": "deep-att-tiny", "columns": 3})
    assert choose({"preset": "deep-att-tiny", "columns": "1"}).config.columns == 1  # as from the command line

"""The LSTM memory-network: the paper's equations computed position by position, its sizes, and its options."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from contracts.registered_models import SEPARATE, SIZES, build_model, make_batch
from saccade.errors import SaccadeError
from saccade.interface import VocabularySizes
from saccade.models.lstmn import MINIATURE, PRESETS, Lstmn, LstmnConfig, Reader, causal_weights, with_own_position
from saccade.models.registry import choose

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def model_with(**changes: object) -> Lstmn:
    return build_model(("lstmn", changes))


def records(found) -> dict[str, Tensor]:
    return {record.kind: record.weights for record in found.attention}


def attention_weights(score, x: Tensor, recalled: Tensor, tape: list[Tensor]) -> list[float]:
    """The softmax of a_i = v·tanh(W_h h_i + W_x x + W_r h~) (eqs. 4 and 5)."""
    shared = score.input.weight @ x + score.recalled.weight @ recalled
    exponentials = [math.exp(float(score.vector @ torch.tanh(score.key.weight @ h + shared))) for h in tape]
    return [each / sum(exponentials) for each in exponentials]


def weighted_sum(weights: list[float], tape: list[Tensor]) -> Tensor:
    return torch.stack([weight * each for weight, each in zip(weights, tape, strict=True)]).sum(0)


def next_state(reader: Reader, x: Tensor, hidden: Tensor, cell: Tensor, more_gates=0.0, more_cell=0.0):
    """The next hidden state and memory (eqs. 7-9), with the summands of attention fusion."""
    sums = reader.input_gates.weight @ x + reader.input_gates.bias + reader.recalled_gates.weight @ hidden + more_gates
    width = reader.width
    i, f, o = (torch.sigmoid(sums[k * width : (k + 1) * width]) for k in range(3))
    cell = f * cell + i * torch.tanh(sums[3 * width :]) + more_cell
    return o * torch.tanh(cell), cell


def embedded(table: Tensor, tokens: Tensor) -> list[Tensor]:
    return [table[token] * table.size(1) ** 0.5 for token in tokens]


def reference_encoder(model: Lstmn, tokens: Tensor) -> tuple[list[Tensor], list[Tensor], list[list[float]]]:
    """Hidden tape, memory tape and attention weights of one sentence, position by position."""
    reader = model.encoder
    hiddens: list[Tensor] = []
    cells: list[Tensor] = []
    rows: list[list[float]] = []
    hidden = cell = torch.zeros(reader.width)
    for x in embedded(model.source_embedding.table, tokens):
        if hiddens:
            rows.append(attention_weights(reader.score, x, hidden, hiddens))
            hidden, cell = weighted_sum(rows[-1], hiddens), weighted_sum(rows[-1], cells)
        new = next_state(reader, x, hidden, cell)
        hiddens, cells = [*hiddens, new[0]], [*cells, new[1]]
    return hiddens, cells, rows


def reference_decoder(model: Lstmn, prefix: Tensor, sources: list[Tensor], memories: list[Tensor]):
    """Outputs, self-attention weights and cross-attention weights of one sentence (section 4), position by position."""
    writer, reader = model.decoder, model.decoder.reader
    hiddens: list[Tensor] = []
    cells: list[Tensor] = []
    outputs, own, cross = [], [], []
    hidden, cell, context = sources[-1], memories[-1], torch.zeros(reader.width)
    for x in embedded(model.target_embedding.table, prefix):
        if hiddens:
            own.append(attention_weights(reader.score, x, hidden, hiddens))
            hidden, cell = weighted_sum(own[-1], hiddens), weighted_sum(own[-1], cells)
        cross.append(attention_weights(writer.score, x, context if writer.deep else hidden, sources))
        context, memory = weighted_sum(cross[-1], sources), weighted_sum(cross[-1], memories)
        if writer.deep:
            gate = torch.sigmoid(
                writer.input_transfer.weight @ x
                + writer.input_transfer.bias
                + writer.context_projection.weight @ context
            )
            new = next_state(reader, x, hidden, cell, more_cell=gate * memory)
        else:
            new = next_state(reader, x, hidden, cell, more_gates=writer.context_projection.weight @ context)
        hiddens, cells = [*hiddens, new[0]], [*cells, new[1]]
        outputs.append(torch.tanh(model.combine.weight @ torch.cat([new[0], context]) + model.combine.bias))
    return torch.stack(outputs), own, cross


def assert_causal_weights(found: Tensor, rows: list[list[float]]) -> None:
    """Check recorded weights (T, T): 1 at the first position, then the given weights of the earlier positions."""
    expected = torch.zeros_like(found)
    expected[0, 0] = 1.0
    for position, row in enumerate(rows, start=1):
        expected[position, :position] = torch.tensor(row)
    assert_close(found, expected, **CLOSE)


@pytest.mark.parametrize("fusion", ["shallow", "deep"])
@torch.no_grad()
def test_model_equals_the_papers_equations(fusion):
    model, batch = model_with(fusion=fusion), make_batch([7, 4, 1, 5], [6, 3, 5, 2])
    memory = model.encode(batch.source, record=True)
    decoded = model.decode(batch.prefix, memory, record=True)
    found = records(decoded)
    for row in range(4):
        positions, length = int(batch.source.mask[row].sum()), int(batch.target_mask[row].sum())
        hiddens, cells, rows = reference_encoder(model, batch.source.values[row, :positions])
        assert_close(memory.states[row, :positions], torch.stack(hiddens), **CLOSE)
        assert_close(memory.extra[row, :positions], torch.stack(cells), **CLOSE)
        assert_causal_weights(records(memory)["encoder-self"][row, 0, :positions, :positions], rows)
        outputs, own, cross = reference_decoder(model, batch.prefix[row, :length], hiddens, cells)
        assert_close(decoded.outputs[row, :length], outputs, **CLOSE)
        assert_causal_weights(found["decoder-self"][row, 0, :length, :length], own)
        assert_close(found["cross"][row, 0, :length, :positions], torch.tensor(cross), **CLOSE)


@torch.no_grad()
def test_the_first_two_positions_equal_those_of_an_lstm():
    """Attention to a tape of one position returns the previous state, as in an LSTM."""
    torch.manual_seed(3)
    reader, x = Reader(5, 6), torch.randn(2, 3, 5)
    order = torch.tensor([0, 1, 3, 2])  # in PyTorch the new memory comes before the output gate
    gates = (reader.input_gates.weight, reader.recalled_gates.weight, reader.input_gates.bias)
    torch_weights = [part.unflatten(0, (4, 6))[order].flatten(0, 1) for part in gates]
    tape = reader.start(torch.randn(2, 12))
    state = list(tape.recalled.chunk(2, -1))
    for position in range(3):
        recalled, _ = reader.recall(reader.score.input(x[:, position]), tape)
        tape = reader.append(reader.input_gates(x[:, position]), recalled, tape)
        state = list(torch.lstm_cell(x[:, position], state, *torch_weights, torch.zeros(24)))
        same = torch.allclose(tape.values[:, -1], torch.cat(state, -1), atol=1e-5)
        assert same == (position < 2)


@torch.no_grad()
def test_a_closed_transfer_gate_excludes_the_memory_tape_of_the_source():
    model, batch = model_with(fusion="deep"), make_batch([5, 5], [6, 6])
    memory = model.encode(batch.source)
    other = torch.randn(memory.extra.shape, generator=torch.Generator().manual_seed(2))
    other[:, -1] = memory.extra[:, -1]  # the initial state of the decoder
    changed = replace(memory, extra=other)
    before = model.decode(batch.prefix, memory).outputs
    assert not torch.allclose(model.decode(batch.prefix, changed).outputs, before, atol=1e-3)
    model.decoder.input_transfer.bias.fill_(-1e4)
    assert_close(model.decode(batch.prefix, changed).outputs, model.decode(batch.prefix, memory).outputs, **CLOSE)


@torch.no_grad()
def test_shallow_fusion_does_not_read_the_memory_tape_of_the_source():
    model, batch = model_with(fusion="shallow"), make_batch([5, 5], [6, 6])
    memory = model.encode(batch.source)
    other = torch.randn(memory.extra.shape, generator=torch.Generator().manual_seed(2))
    other[:, -1] = memory.extra[:, -1]
    changed = replace(memory, extra=other)
    assert torch.equal(model.decode(batch.prefix, changed).outputs, model.decode(batch.prefix, memory).outputs)


@torch.no_grad()
def test_the_tape_of_a_state_grows_by_one_position_per_step():
    model, batch = model_with(), make_batch([5, 3], [4, 4])
    memory = model.encode(batch.source)
    state = model.start(memory)
    assert state.tape.keys.shape == (2, 0, 16)
    for position in range(4):
        step = model.step(batch.prefix[:, position], state, memory, record=True)
        state = step.state
        assert state.tape.keys.shape == (2, position + 1, 16)
        assert state.tape.values.shape == (2, position + 1, 32)
        assert state.context.shape == (2, 16)
        assert {kind: weights.shape for kind, weights in records(step).items()} == {
            "decoder-self": (2, 1, 1, position + 1),
            "cross": (2, 1, 1, 5),
        }
    assert state.source.value.values.shape == (2, 5, 32)


def test_recorded_weights_are_causal_with_1_at_the_first_position():
    assert with_own_position(torch.empty(2, 0)).tolist() == [[1.0], [1.0]]
    assert with_own_position(torch.tensor([[0.25, 0.75]])).tolist() == [[0.25, 0.75, 0.0]]
    weights = [torch.empty(1, 0), torch.tensor([[1.0]]), torch.tensor([[0.25, 0.75]])]
    assert causal_weights(weights).tolist() == [[[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.25, 0.75, 0.0]]]]


def count(config: LstmnConfig, sizes: VocabularySizes) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Lstmn(config, sizes).parameters())


def expected_count(config: LstmnConfig, vocabulary: int) -> int:
    """Number of parameters by the equations, with one shared table and biases of the gates and of the output."""
    width, inputs = config.width, config.embedding
    score = width * (2 * width + inputs) + width
    reader = score + 4 * width * (width + inputs + 1)
    fused = width * (width + inputs + 1) if config.fusion == "deep" else 4 * width * width
    return 2 * reader + score + fused + (2 * width + 1) * inputs + vocabulary * inputs


@pytest.mark.parametrize("config", [*PRESETS.values(), MINIATURE, LstmnConfig(fusion="shallow")])
def test_number_of_parameters(config):
    assert count(config, VocabularySizes(8000, 8000, True)) == expected_count(config, 8000)
    untied = config.model_copy(update={"tie_output": False})
    assert count(untied, VocabularySizes(8000, 8000, True)) == expected_count(config, 8000) + 8000 * config.embedding
    assert count(config, VocabularySizes(70, 8000, False)) == expected_count(config, 8000) + 70 * config.embedding


def test_embedding_tables_are_shared_according_to_the_settings():
    joint = Lstmn(MINIATURE, SIZES)
    assert joint.source_embedding.table is joint.target_embedding.table is joint.output.table
    separate = Lstmn(MINIATURE.model_copy(update={"tie_output": False}), SEPARATE)
    assert separate.source_embedding.table is not separate.target_embedding.table
    assert separate.target_embedding.table is not separate.output.table


def test_dropout_acts_in_training_only():
    model, batch = model_with(dropout=0.5), make_batch([5, 3], [4, 4])

    def outputs() -> Tensor:
        return model.decode(batch.prefix, model.encode(batch.source)).outputs

    assert torch.equal(outputs(), outputs())
    model.train()
    assert not torch.equal(outputs(), outputs())


def test_an_unknown_fusion_is_refused():
    with pytest.raises(SaccadeError, match="fusion"):
        choose({"preset": "lstmn-tiny", "fusion": "medium"})

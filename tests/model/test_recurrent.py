"""The LSTM against torch's cell, one character at a time."""

import pytest
import torch
from torch import nn

from tp_transformer import LSTM, Batch, LSTMConfig
from tp_transformer.data.mathematics.task import MATHEMATICS

VOCABULARY = MATHEMATICS.vocabulary


def model_of(**fields):
    return LSTM(LSTMConfig(**{"d_hidden": 16, "n_thinking": 3, "n_vocab": 72, **fields})).double()


def by_hand(model, source, target):
    """Read, think and write with a single LSTM cell, for one question."""
    cell = nn.LSTMCell(model.config.n_vocab, model.config.d_hidden).double()
    cell.load_state_dict(
        {name.removesuffix("_l0"): tensor for name, tensor in model.cell.state_dict().items()}
    )
    one_hot = torch.eye(model.config.n_vocab, dtype=torch.float64)
    blank = torch.zeros(model.config.n_vocab, dtype=torch.float64)
    state = None
    for vector in [*one_hot[source], *[blank] * model.config.n_thinking]:
        state = cell(vector[None], state)
    logits = []
    for vector in one_hot[target]:
        state = cell(vector[None], state)
        logits.append(model.output(state[0][0]))
    return torch.stack(logits)


@pytest.mark.parametrize("n_thinking", [0, 1, 16])
def test_equals_one_cell_stepped_by_hand(n_thinking):
    model = model_of(n_thinking=n_thinking)
    batch = Batch.from_text(["What is 3 + 4?", "Hi", "?"], ["7", "-12", ""], VOCABULARY)
    logits = model(batch)
    for row in range(3):
        source = batch.source[row][batch.source[row] != VOCABULARY.pad]
        target = batch.target_input[row][batch.target_mask[row]]
        expected = by_hand(model, source, target)
        torch.testing.assert_close(logits[row, : len(target)], expected, rtol=1e-9, atol=1e-12)


def test_padding_never_changes_an_answer():
    model = model_of()
    questions = ["What is 3 + 4?", "Hi", "Let p(s) = s."]
    together = model.solve(questions)
    assert together == [model.solve([question])[0] for question in questions]


def test_steps_equal_decoding_at_once():
    model = model_of()
    batch = Batch.from_text(["1+1", "12"], ["1234", "1234"], VOCABULARY)
    state = model.begin(model.encode(batch.source), 5)
    steps = [model.step(batch.target_input[:, t], state) for t in range(5)]
    torch.testing.assert_close(torch.stack(steps, 1), model(batch))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_trains_and_then_decodes(dtype):
    model = model_of(d_hidden=48).to(dtype).train()
    batch = Batch.from_text(["1+1", "1+2", "2+2"], ["2", "3", "4"], VOCABULARY)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(500):
        loss = model.loss(batch).mean
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.solve(["1+1", "1+2", "2+2"]) == ["2", "3", "4"]


def test_a_trace_reads_and_replaces_its_hidden_states():
    model = model_of()
    with model.trace("encoder.output", "decoder.output") as trace:
        answers = model.solve(["1+1", "What?"], max_length=4)
    assert trace["encoder.output"].shape == (2, 1, 16)
    assert trace["decoder.output"].shape[::2] == (2, 16)
    assert len(answers) == 2
    batch = Batch.from_text(["1+1"], ["2"], VOCABULARY)
    before = model(batch)
    with model.trace("encoder.output", edit={"encoder.output": torch.zeros_like}) as trace:
        after = model(batch)
    assert trace["encoder.output"].eq(0).all()
    assert (before - after).abs().max() > 1e-6
    with model.trace("decoder.output", edit={"decoder.output": torch.ones_like}) as trace:
        model.solve(["1+1"])
    assert trace["decoder.output"].eq(1).all()

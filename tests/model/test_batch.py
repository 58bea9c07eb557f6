import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer import Batch, build
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.model.batch import cut
from tp_transformer.model.loss import token_loss

VOCABULARY = MATHEMATICS.vocabulary
texts = st.text("0123456789", min_size=1, max_size=40)


def rows(batch):
    """The questions and answers of a batch."""
    questions = VOCABULARY.decode(batch.source[:, 1:].numpy())
    return list(zip(questions, VOCABULARY.decode(batch.target_output.numpy()), strict=True))


def samples(count):
    """Questions and answers whose lengths are spread about as the dataset's."""
    chance = random.Random(0)
    questions = ["7" * chance.choice([12, 25, 40, 60, 90, 140, 160]) for _ in range(count)]
    answers = ["1" * min(30, 1 + int(chance.expovariate(0.18))) for _ in range(count)]
    return questions, answers


def test_the_target_is_shifted_by_one():
    batch = Batch.from_text(["1+1", "12"], ["2", "-12"], VOCABULARY)
    assert VOCABULARY.decode(batch.target_output.numpy()) == ["2", "-12"]
    assert batch.target_input[:, 0].tolist() == [VOCABULARY.sos] * 2
    assert torch.equal(batch.target_input[:, 1:], batch.target_output[:, :-1])
    assert batch.target_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.source.tolist()[1][-1] == VOCABULARY.pad
    assert batch.source.shape == (2, 5)
    assert repr(batch) == "Batch(2 rows, source (2, 5), target (2, 4), Padded)"


def test_moves_as_a_whole():
    batch = Batch.from_text(["1"], ["2"], VOCABULARY).to("meta")
    for tensor in (batch.source, batch.target_input, batch.target_output):
        assert tensor.device.type == "meta"
    assert batch.source_layout.filled.device.type == "meta"


def test_refuses_a_question_without_an_answer():
    with pytest.raises(ValueError, match="2 questions but 1 answers"):
        Batch.from_text(["1", "2"], ["3"], VOCABULARY)


@given(st.lists(st.tuples(texts, texts), max_size=60), st.sampled_from([0, 1, 30, 10_000]))
def test_parts_hold_every_row_once(pairs, part_cost):
    questions, answers = [list(column) for column in zip(*pairs, strict=True)] or ([], [])
    encoded = VOCABULARY.encode(questions), VOCABULARY.encode(answers)
    parts = cut(*encoded, VOCABULARY.pad, part_cost)
    assert all(len(part) for part in parts)
    found = [row for part in parts for row in rows(part)]
    assert sorted(found) == sorted(pairs)


def test_parts_leave_out_nearly_all_padding():
    questions, answers = samples(1024)
    encoded = VOCABULARY.encode(questions), VOCABULARY.encode(answers)
    parts = cut(*encoded, VOCABULARY.pad)
    held = sum(ragged.lengths.sum() for ragged in encoded)
    positions = sum(part.source.numel() + part.target_input.numel() + len(part) for part in parts)
    whole = Batch.from_ragged(*encoded, VOCABULARY.pad)
    assert held > 0.85 * positions
    assert whole.source.numel() + whole.target_input.numel() + len(whole) > 1.8 * positions
    assert len(parts) < 64


def test_loss_and_gradient_of_the_parts_are_those_of_the_whole():
    torch.manual_seed(0)
    model = build("tp-transformer-tiny").double()
    questions, answers = samples(48)
    encoded = VOCABULARY.encode(questions), VOCABULARY.encode(answers)
    whole = model.loss(Batch.from_ragged(*encoded, VOCABULARY.pad))
    whole.mean.backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    parts = cut(*encoded, VOCABULARY.pad, part_cost=20)
    assert len(parts) > 5
    n_tokens = sum(int(part.target_mask.sum()) for part in parts)
    total = 0.0
    for part in parts:
        loss = model.loss(part)
        (loss.total / n_tokens).backward()
        total += loss.total.item()
    assert n_tokens == whole.n_tokens
    assert total == pytest.approx(whole.total.item(), rel=1e-12)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_loss_is_the_sum_over_the_symbols_of_the_answers():
    vocabulary = MATHEMATICS.vocabulary
    batch = Batch.from_text(["a", "b", "c"], ["12", "", "345"], vocabulary)
    logits = torch.randn(*batch.target_input.shape, 72, dtype=torch.float64)
    loss = token_loss(logits, batch)
    assert loss.n_tokens == 3 + 1 + 4  # characters and end symbols
    total = 0.0
    for row, answer in enumerate(["12", "", "345"]):
        for position, symbol in enumerate([*answer, "<eos>"]):
            scores = logits[row, position]
            total -= scores[vocabulary.tokens.index(symbol)] - torch.logsumexp(scores, 0)
    torch.testing.assert_close(loss.total, total)
    torch.testing.assert_close(loss.mean, total / 8)


def test_half_precision_scores_are_summed_in_single_precision():
    batch = Batch.from_text(["q"], ["1"], MATHEMATICS.vocabulary)
    loss = token_loss(torch.randn(1, 2, 72).bfloat16(), batch)
    assert loss.total.dtype == torch.float32

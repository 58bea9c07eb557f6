"""Packed batches: the same loss and gradients as padded ones, for every model that reads them."""

import random

import numpy as np
import pytest
import torch

from tp_transformer import Batch, Vocabulary, build
from tp_transformer.data.batch import Packed
from tp_transformer.errors import TraceError
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.loss import token_loss

VOCABULARY = Vocabulary()
SIZES = {"d_model": 16, "d_ff": 24, "n_heads": 4, "n_layers": 2}


def encoded(pairs):
    questions, answers = zip(*pairs, strict=True)
    return VOCABULARY.encode(questions), VOCABULARY.encode(answers)


def pairs(count, longest=30):
    """Questions and answers of all lengths, some of them equal."""
    chance = random.Random(count)

    def text(length):
        return "".join(chance.choice("0123456789+") for _ in range(length))

    return [(text(chance.randint(1, longest)), text(chance.randint(0, 9))) for _ in range(count)]


def padded_loss(model, batch, label_smoothing=0.0):
    """The loss by way of the scores of padded rows."""
    return token_loss(model(batch.source, batch.target_input), batch, label_smoothing)


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = model.loss(batch) if isinstance(batch, Packed) else padded_loss(model, batch)
    loss.total.backward()
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_packed_is_padded(binding, count):
    torch.manual_seed(0)
    rank = 3 if binding == "low-rank" else None
    model = build("tp-transformer-tiny", binding=binding, rank=rank, **SIZES).double()
    rows = encoded(pairs(count))
    padded, expected = loss_and_gradients(model, Batch.from_ragged(*rows, VOCABULARY.pad))
    packed, gradients = loss_and_gradients(model, Packed.from_ragged(*rows, VOCABULARY.pad))
    torch.testing.assert_close(packed.total, padded.total, rtol=1e-12, atol=0)
    assert packed.n_tokens == padded.n_tokens
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-11)


def test_packed_is_padded_at_the_longest_lengths():
    torch.manual_seed(0)
    model = build("tp-transformer-tiny", **{**SIZES, "n_heads": 1}).double()
    rows = encoded([("1" * 198, "2" * 30), ("3", ""), ("4" * 198, "5")])
    padded, expected = loss_and_gradients(model, Batch.from_ragged(*rows, VOCABULARY.pad))
    packed, gradients = loss_and_gradients(model, Packed.from_ragged(*rows, VOCABULARY.pad))
    torch.testing.assert_close(packed.total, padded.total, rtol=1e-12, atol=0)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-11)


def test_label_smoothing_is_the_same():
    model = build("tp-transformer-tiny", **SIZES).double()
    rows = encoded(pairs(9))
    padded = padded_loss(model, Batch.from_ragged(*rows, VOCABULARY.pad), label_smoothing=0.1)
    packed = model.loss(Packed.from_ragged(*rows, VOCABULARY.pad), label_smoothing=0.1)
    torch.testing.assert_close(packed.total, padded.total, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [Batch, Packed])
def test_an_answer_is_right_if_every_symbol_is(kind):
    batch = kind.from_ragged(*encoded(pairs(30)), VOCABULARY.pad)
    logits = torch.nn.functional.one_hot(batch.target_output, 72).double()
    assert token_loss(logits, batch).n_right == 30
    symbols = batch.target_mask.nonzero()
    first, second = symbols[0], symbols[-1]  # of the first row and of the last
    logits[first[0], first[1]] = 0.0
    logits[second[0], second[1]] = 0.0
    assert token_loss(logits, batch).n_right == 28


def test_dropout_leaves_the_mean_and_the_gradient_follows_it():
    torch.manual_seed(0)
    model = build("tp-transformer-tiny", dropout=0.3, **SIZES).double()
    packed = Packed.from_ragged(*encoded(pairs(6)), VOCABULARY.pad)

    def loss(seed):
        torch.manual_seed(seed)
        return model.loss(packed).total

    assert loss(1) == loss(1) != loss(2)
    parameter = model.encoder[0].self_attention.in_proj.weight
    direction = torch.randn_like(parameter)
    model.zero_grad()
    loss(1).backward()
    slope = (parameter.grad * direction).sum()
    step = 1e-6
    with torch.no_grad():
        parameter += step * direction
        above = loss(1)
        parameter -= 2 * step * direction
        below = loss(1)
    torch.testing.assert_close((above - below) / (2 * step), slope, rtol=1e-6, atol=1e-6)


def test_dropout_is_off_outside_training():
    model = build("tp-transformer-tiny", dropout=0.5, **SIZES).double().eval()
    rows = encoded(pairs(6))
    padded = padded_loss(model, Batch.from_ragged(*rows, VOCABULARY.pad))
    packed = model.loss(Packed.from_ragged(*rows, VOCABULARY.pad))
    torch.testing.assert_close(packed.total, padded.total, rtol=1e-12, atol=0)


def test_mixed_precision_keeps_close_to_single():
    torch.manual_seed(0)
    model = build("tp-transformer-tiny", **SIZES)
    packed = Packed.from_ragged(*encoded(pairs(12)), VOCABULARY.pad)
    exact, expected = loss_and_gradients(model, packed)
    with torch.autocast("cpu", torch.bfloat16):
        rough, gradients = loss_and_gradients(model, packed)
    assert rough.total.dtype == torch.float32
    torch.testing.assert_close(rough.total, exact.total, rtol=0.02, atol=0)
    for gradient, wanted in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.float32
        assert (gradient - wanted).norm() < 0.1 * wanted.norm() + 1e-3


def test_rows_lie_end_to_end_in_order_of_their_lengths():
    rows = [("333", "1"), ("1", "4444"), ("22", ""), ("55", "66")]
    packed = Packed.from_ragged(*encoded(rows), VOCABULARY.pad)
    source = np.split(packed.source[0].numpy(), np.cumsum(packed.source_lengths)[:-1])
    target = np.split(packed.target_output[0].numpy(), np.cumsum(packed.target_lengths)[:-1])
    questions = [VOCABULARY.decode(row[None, 1:])[0] for row in source]
    answers = [VOCABULARY.decode(row[None])[0] for row in target]
    assert questions == ["1", "22", "55", "333"]
    assert answers == ["", "1", "66", "4444"]
    found = list(zip(questions, (answers[i] for i in packed.target_of_source), strict=True))
    assert sorted(found) == sorted(rows)
    assert packed.source_position.tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 4]


def test_a_padded_batch_is_packed_unless_it_is_traced(monkeypatch):
    model = build("tp-transformer-tiny", **SIZES).double()
    rows = encoded(pairs(7))
    batch = Batch.from_ragged(*rows, VOCABULARY.pad)
    padded = padded_loss(model, batch)
    forward = model.forward
    monkeypatch.setattr(model, "forward", None)
    found = model.loss(batch)
    torch.testing.assert_close(found.total, padded.total, rtol=1e-12, atol=0)
    assert (found.n_tokens, found.n_right) == (padded.n_tokens, padded.n_right)
    monkeypatch.setattr(model, "forward", forward)
    with model.trace("encoder.0.output") as trace:
        torch.testing.assert_close(model.loss(batch).total, padded.total, rtol=1e-12, atol=0)
    assert trace["encoder.0.output"].shape[:2] == batch.source.shape


def test_a_batch_without_its_padding():
    rows = encoded(pairs(9))
    packed = Packed.from_ragged(*rows, VOCABULARY.pad)
    found = Packed.of(Batch.from_ragged(*rows, VOCABULARY.pad))
    for name in ("source", "target_input", "target_output"):
        assert torch.equal(getattr(found, name), getattr(packed, name))
    for name in ("source_lengths", "target_lengths", "target_of_source"):
        assert np.array_equal(getattr(found, name), getattr(packed, name))


def test_a_trace_asks_for_padding():
    model = build("tp-transformer-tiny", **SIZES)
    packed = Packed.from_ragged(*encoded(pairs(3)), VOCABULARY.pad)
    with (
        model.trace("encoder.0.output"),
        pytest.raises(TraceError, match="packed batch cannot be traced"),
    ):
        model.loss(packed)


def test_the_lstm_says_that_it_does_not_read_packed_batches():
    model = build("lstm-saxton", d_hidden=8)
    assert not model.can_pack
    with pytest.raises(NotImplementedError, match="LSTM"):
        model.loss(Packed.from_ragged(*encoded(pairs(3)), VOCABULARY.pad))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_layers_compute_the_same():
    torch.manual_seed(0)
    model = build("tp-transformer-tiny", **SIZES)
    rows = [encoded(pairs(count)) for count in (5, 9)]
    batches = [kind.from_ragged(*one, VOCABULARY.pad) for one in rows for kind in (Batch, Packed)]
    expected = [loss_and_gradients(model, batch) for batch in batches]
    names = model.state_dict().keys()
    model.compile_layers()
    assert model.state_dict().keys() == names
    for batch, (wanted, wanted_gradients) in zip(batches, expected, strict=True):
        loss, gradients = loss_and_gradients(model, batch)
        torch.testing.assert_close(loss.total, wanted.total, rtol=1e-5, atol=0)
        for one, other in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)

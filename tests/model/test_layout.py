"""Packed batches: the same loss and gradients as padded ones, for every model that reads them."""

import random

import numpy as np
import pytest
import torch
from torch.nn.attention import varlen

from tp_transformer import Batch, build
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.model.attention import attention_weights
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.layout import Packed, PackedPattern, Padded
from tp_transformer.model.loss import token_loss

VOCABULARY = MATHEMATICS.vocabulary
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


def batch_of(rows, layout):
    return Batch.from_ragged(*rows, VOCABULARY.pad, layout)


def loss_and_gradients(model, batch):
    model.zero_grad()
    loss = model.loss(batch)
    loss.total.backward()
    return loss, [parameter.grad.clone() for parameter in model.parameters()]


def assert_same(model, rows, rtol=1e-9, atol=1e-11):
    """A model has the same loss and gradients in both layouts."""
    padded, expected = loss_and_gradients(model, batch_of(rows, Padded))
    found, gradients = loss_and_gradients(model, batch_of(rows, Packed))
    torch.testing.assert_close(found.total, padded.total, rtol=rtol, atol=0)
    assert (found.n_tokens, found.n_right) == (padded.n_tokens, padded.n_right)
    for gradient, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=rtol, atol=atol)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_packed_is_padded(binding, count):
    torch.manual_seed(0)
    rank = 3 if binding == "low-rank" else None
    model = build("tp-transformer-tiny", binding=binding, rank=rank, **SIZES).double()
    assert_same(model, encoded(pairs(count)))


def test_packed_is_padded_at_the_longest_lengths():
    torch.manual_seed(0)
    model = build("tp-transformer-tiny", **{**SIZES, "n_heads": 1}).double()
    assert_same(model, encoded([("1" * 198, "2" * 30), ("3", ""), ("4" * 198, "5")]))


@pytest.mark.parametrize("layout", [Padded, Packed])
def test_an_answer_is_right_if_every_token_is(layout):
    batch = batch_of(encoded(pairs(30)), layout)
    logits = torch.nn.functional.one_hot(batch.target_output, 72).double()
    assert token_loss(logits, batch).n_right == 30
    tokens = batch.target_mask.nonzero()
    first, second = tokens[0], tokens[-1]  # of the first row and of the last
    logits[first[0], first[1]] = 0.0
    logits[second[0], second[1]] = 0.0
    assert token_loss(logits, batch).n_right == 28


def test_rows_lie_end_to_end_in_their_own_order():
    rows = [("333", "1"), ("1", "4444"), ("22", ""), ("55", "66")]
    batch = batch_of(encoded(rows), Packed)
    source = np.split(batch.source[0].numpy(), batch.source_layout.offsets[1:-1])
    target = np.split(batch.target_output[0].numpy(), batch.target_layout.offsets[1:-1])
    questions = [VOCABULARY.decode(row[None, 1:])[0] for row in source]
    answers = [VOCABULARY.decode(row[None])[0] for row in target]
    assert list(zip(questions, answers, strict=True)) == rows
    assert batch.source_layout.positions[0].tolist() == [*range(5), *range(3), *range(4), *range(4)]
    assert batch.target_input[0, 0] == VOCABULARY.sos
    assert len(batch) == 4


def test_both_layouts_have_the_same_tokens():
    rows = encoded(pairs(9))
    padded, found = (batch_of(rows, layout) for layout in (Padded, Packed))
    for name in ("source", "target_output"):
        layout = f"{name.partition('_')[0]}_layout"
        tokens = getattr(padded, layout).tokens(getattr(padded, name))
        assert torch.equal(tokens, getattr(found, layout).tokens(getattr(found, name)))
    assert np.array_equal(padded.source_layout.lengths, found.source_layout.lengths)
    assert torch.equal(found.source_layout.filled, padded.source_layout.filled)


def test_what_a_binding_adds_to_the_loss_is_the_same():
    model = build("tp-transformer-tiny", binding="dictionary", n_roles=3, exclusive=3.0)
    model.double().train()
    found = []
    for layout in (Padded, Packed):
        penalty = model.loss(batch_of(encoded(pairs(5)), layout)).penalty
        found.append((penalty, *torch.autograd.grad(penalty, model.embedding.symbols.weight)))
    assert found[0][0] > 0
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layout", [Padded, Packed])
def test_values_are_summed_over_the_tokens_of_each_row(layout):
    rows = VOCABULARY.encode(["12", "1", "123"])
    ids, rows_of = layout.lay_out(rows, VOCABULARY.pad)
    values = torch.ones(ids.shape, dtype=torch.float64, requires_grad=True)
    sums = rows_of.row_sums(values)
    assert sums.tolist() == rows.lengths.tolist()
    (sums * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert rows_of.tokens(values.grad).tolist() == [1.0] * 4 + [10.0] * 3 + [100.0] * 5
    assert values.grad.sum() == 4 + 30 + 500  # nothing reaches the padding


@pytest.mark.parametrize("n_parts", [1, 2])
def test_heads_are_padded_row_by_row(n_parts):
    """Whether they are a view of a fused projection or not."""
    lengths = [3, 1, 4]
    fused = torch.arange(8.0 * 2 * n_parts * 3).view(1, 8, n_parts, 2, 3)
    heads = fused[:, :, n_parts - 1].transpose(1, 2)  # (1, head, position, d_head)
    padded = Packed(np.array(lengths)).pad_heads(heads)
    assert padded.shape == (3, 2, 4, 3)
    assert padded.is_contiguous()
    for row, expected in zip(padded, heads[0].split(lengths, dim=1), strict=True):
        assert torch.equal(row[:, : expected.shape[1]], expected)
    layout = Padded(torch.ones(3, 4, dtype=torch.bool))
    assert torch.equal(
        layout.pad_heads(padded.transpose(1, 2).contiguous().transpose(1, 2)), padded
    )


@pytest.mark.parametrize("causal", [False, True])
def test_the_mask_of_a_pattern_says_what_its_attention_does(causal):
    """A method that computes attention from the mask alone gets the same fillers."""
    layout = Packed(np.array([3, 1, 5, 3]))
    pattern = layout.within(causal=causal)
    query, key, value = torch.randn(3, 1, 2, 12, 4, dtype=torch.float64)
    expected = attention_weights(query, key, pattern.mask) @ value
    torch.testing.assert_close(pattern.fillers(query, key, value), expected, rtol=1e-10, atol=0)


def test_the_mask_across_layouts_says_what_its_attention_does():
    pattern = Packed(np.array([2, 4, 1])).across(Packed(np.array([5, 1, 5])))
    query = torch.randn(1, 2, 7, 4, dtype=torch.float64)
    key, value = torch.randn(2, 1, 2, 11, 4, dtype=torch.float64)
    expected = attention_weights(query, key, pattern.mask) @ value
    torch.testing.assert_close(pattern.fillers(query, key, value), expected, rtol=1e-10, atol=0)


def test_layouts_do_not_mix():
    padded, found = (batch_of(encoded(pairs(2)), layout) for layout in (Padded, Packed))
    with pytest.raises(TypeError, match="packed rows only"):
        found.target_layout.across(padded.source_layout)
    with pytest.raises(TypeError, match="padded rows only"):
        padded.target_layout.across(found.source_layout)


def test_a_model_says_which_layout_it_wants():
    model = build("tp-transformer-tiny", **SIZES)
    cpu = torch.device("cpu")
    assert model.layout_for(cpu) is model.layout_for(cpu, n_rows=2) is Packed
    assert model.layout_for(cpu, n_rows=1) is Padded
    with model.trace("encoder.0.output"):
        assert model.layout_for(cpu) is Padded
    assert build("lstm-saxton", d_hidden=8).layout_for(cpu) is Padded
    cuda = torch.device("cuda")
    assert model.layout_for(cuda) is Padded  # flash attention computes in half precision


def test_a_gpu_packs_in_half_precision_without_dropout(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    cuda = torch.device("cuda")
    model = build("tp-transformer-tiny", **SIZES)
    assert model.layout_for(cuda, torch.bfloat16) is Packed
    assert model.layout_for(cuda, torch.float32) is Padded
    assert build("tp-transformer-tiny", dropout=0.1).layout_for(cuda, torch.bfloat16) is Padded
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert model.layout_for(cuda, torch.bfloat16) is Padded


def stand_in(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1)):
    """Flash attention for ragged rows in plain loops, with the signature of torch's."""
    assert query.dim() == 3
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
    fillers = []
    for row in range(len(cu_seq_q) - 1):
        q = query[cu_seq_q[row] : cu_seq_q[row + 1]].transpose(0, 1)
        k, v = (x[cu_seq_k[row] : cu_seq_k[row + 1]].transpose(0, 1) for x in (key, value))
        assert q.shape[1] <= max_q
        assert k.shape[1] <= max_k
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        if window_size == (-1, 0):
            scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), -torch.inf)
        fillers.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(fillers)


@pytest.mark.parametrize("binding", ["none", "hadamard"])
def test_flash_attention_computes_the_same(binding, monkeypatch):
    """With a stand-in for the CUDA kernel, which cannot run here."""
    torch.manual_seed(0)
    monkeypatch.setattr(varlen, "varlen_attn", stand_in)
    model = build("tp-transformer-tiny", binding=binding, **SIZES).double().eval()
    monkeypatch.setattr(
        PackedPattern, "fillers", lambda self, q, k, v, dropout: self._flash(q, k, v)
    )
    assert_same(model, encoded(pairs(12)))


def test_flash_attention_has_the_shapes_and_gradients_of_a_training_step():
    """On the meta device torch's own kernel is asked for its shapes."""
    model = build("tp-transformer-tiny").to("meta", torch.bfloat16)
    batch = batch_of(encoded(pairs(5)), Packed).to("meta")
    logits = model(batch)
    assert logits.shape == (1, int(batch.target_layout.lengths.sum()), 72)
    logits.sum().backward()
    for parameter in model.parameters():
        assert parameter.grad.shape == parameter.shape


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_layers_compute_the_same():
    torch.manual_seed(0)
    model = build("tp-transformer-tiny", **SIZES)
    rows = [encoded(pairs(count)) for count in (5, 9)]
    batches = [batch_of(one, layout) for one in rows for layout in (Padded, Packed)]
    expected = [loss_and_gradients(model, batch) for batch in batches]
    names = model.state_dict().keys()
    model.compile_layers()
    assert model.state_dict().keys() == names
    for batch, (wanted, wanted_gradients) in zip(batches, expected, strict=True):
        loss, gradients = loss_and_gradients(model, batch)
        torch.testing.assert_close(loss.total, wanted.total, rtol=1e-5, atol=0)
        for one, other in zip(gradients, wanted_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)

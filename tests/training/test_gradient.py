"""Micro-batches have all rows once; their gradients add up; a lone rank stops between two."""

import signal

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from runs import config
from tp_transformer import Batch
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import open_store
from tp_transformer.model.batch import group_by_length
from tp_transformer.model.checkpoint import from_config
from tp_transformer.model.layout import Packed, Padded
from tp_transformer.runtime.ranks import Ranks
from tp_transformer.runtime.signals import DeferredSignals
from tp_transformer.training.gradient import Gradient, LocalBatch

VOCABULARY = MATHEMATICS.vocabulary
CPU = torch.device("cpu")
PENALISED = {"model__binding": "dictionary", "model__one_hot": 2.0, "model__exclusive": 0.5}


def accumulate(store, symbols_per_pass, signals, **settings):
    """A batch's share, what was found of it, and the model that now has its gradient."""
    torch.manual_seed(0)
    model = from_config(config(model__dropout=0.0, **settings).model).double()
    rows = feed_of(store).tokens(3)
    local = LocalBatch.of(*rows, VOCABULARY.pad, symbols_per_pass, model.layout_for(CPU))
    measured = Gradient(model, Ranks(CPU), seed=0).accumulate(local, 3, signals)
    return local, measured, model


def feed_of(store):
    return Feed(open_store(store)["train"], batch_size=13)


def flat(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_accumulated_gradients_are_those_of_the_mean_over_the_batch(store):
    local, measured, model = accumulate(store, 60, DeferredSignals())
    assert len(local.micro_batches) > 5
    gradients = flat(model)
    at_once, measured_at_once, other = accumulate(store, 10_000, DeferredSignals())
    assert len(at_once.micro_batches) == 1
    assert torch.allclose(gradients, flat(other), rtol=1e-12, atol=1e-15)
    feed = feed_of(store)
    questions, answers = feed.split.rows(feed.sampler.rows(3))  # the loss itself, padded
    model.zero_grad()
    loss = model.loss(Batch.from_text(questions, answers, VOCABULARY))
    loss.mean.backward()
    assert torch.allclose(gradients, flat(model), rtol=1e-9, atol=1e-12)
    assert flat(model).norm() > 0.1
    for sums in (measured, measured_at_once):
        torch.testing.assert_close(sums["loss"], loss.total.detach())


def test_accumulated_penalties_are_those_of_the_whole_batch(store):
    local, measured, model = accumulate(store, 60, DeferredSignals(), **PENALISED)
    assert len(local.micro_batches) > 5
    gradients = flat(model)
    feed = feed_of(store)
    questions, answers = feed.split.rows(feed.sampler.rows(3))  # padded, and row by row
    model.zero_grad()
    loss = model.loss(Batch.from_text(questions, answers, VOCABULARY))
    (loss.objective / loss.n_tokens).backward()
    assert torch.allclose(gradients, flat(model), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(measured["loss"], loss.total.detach())  # the likelihood alone
    rows = [
        model.loss(Batch.from_text([question], [answer], VOCABULARY)).penalty
        for question, answer in zip(questions, answers, strict=True)
    ]
    torch.testing.assert_close(sum(rows), loss.penalty)
    _, _, unpenalised = accumulate(store, 60, DeferredSignals(), model__binding="dictionary")
    assert (gradients - flat(unpenalised)).norm() > 0.01 * gradients.norm()


def test_a_penalty_is_the_mean_over_positions_for_each_token():
    torch.manual_seed(0)
    model = from_config(config(model__dropout=0.0, **PENALISED).model).double()
    batch = Batch.from_text(["12+3"], ["15"], VOCABULARY)
    with model.trace("*.role") as trace:
        loss = model.loss(batch)
    binding = model.encoder[0].self_attention.binding
    expected = sum(binding.penalty(trace[name]).mean() for name in trace) * 3  # 1, 5 and the end
    torch.testing.assert_close(loss.penalty, expected)
    assert model.eval().loss(batch).penalty == 0
    assert all(
        getattr(module, "penalty", None) is None or callable(module.penalty)
        for module in model.modules()
    )


def test_a_lone_rank_stops_between_two_passes(store):
    signals = DeferredSignals()
    signals.received = signal.SIGTERM
    _, measured, model = accumulate(store, 60, signals)
    assert measured is None
    assert all(parameter.grad is None for parameter in model.parameters())


texts = st.text("0123456789", min_size=1, max_size=20)


def rows(source, target):
    """The rows of two raggeds, in pairs."""
    columns = [
        [tuple(row) for row in np.split(ragged.ids, ragged.offsets[1:-1])]
        for ragged in (source, target)
    ]
    return list(zip(*columns, strict=True))


def size(row):
    return len(row[0]) + len(row[1]) - 1


@given(
    st.lists(st.tuples(texts, texts), min_size=1, max_size=30),
    st.sampled_from([1, 20, 60, 10_000]),
    st.sampled_from([Padded, Packed]),
)
def test_every_row_is_in_one_pass_and_passes_are_small_and_full(pairs, limit, layout):
    encoded = [VOCABULARY.encode(column) for column in map(list, zip(*pairs, strict=True))]
    source, target = encoded
    cost = source.lengths + target.lengths - 1
    groups = group_by_length(source.lengths, limit=limit, cost=cost)
    passes = [rows(source.take(group), target.take(group)) for group in groups]
    everything = [row for one in passes for row in one]
    assert sorted(everything) == sorted(rows(*encoded))
    assert [len(source) for source, _ in everything] == sorted(encoded[0].lengths)
    sums = [sum(map(size, one)) for one in passes]
    assert all(total <= limit or len(one) == 1 for total, one in zip(sums, passes, strict=True))
    for total, following in zip(sums, passes[1:], strict=False):
        assert total + size(following[0]) > limit
    local = LocalBatch.of(*encoded, VOCABULARY.pad, limit, layout)
    assert [sum(map(len, batches)) for batches in local.micro_batches] == [
        len(one) for one in passes
    ]
    assert local.n_rows == len(everything)
    assert local.n_symbols == sum(map(size, everything))
    assert local.n_tokens == sum(len(target) - 1 for _, target in everything)
    assert (
        local.n_positions == local.n_symbols
        if layout is Packed
        else local.n_positions >= local.n_symbols
    )


def test_no_rows_are_no_passes():
    nothing = VOCABULARY.encode([])
    local = LocalBatch.of(nothing, nothing, VOCABULARY.pad, 10, Packed)
    assert (local.micro_batches, local.n_rows, local.n_positions) == ([], 0, 0)

"""The gradient: many passes add up to that of one, and a lone rank that is told to stop does."""

import signal

import torch

from runs import config
from tp_transformer import Batch
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import open_store
from tp_transformer.model.family import from_config
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
    found = Gradient(model, Ranks(CPU), seed=0).accumulate(local, 3, signals)
    return local, found, model


def feed_of(store):
    return Feed(open_store(store)["train"], batch_size=13)


def flat(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_accumulated_gradients_are_those_of_the_mean_over_the_batch(store):
    local, found, model = accumulate(store, 60, DeferredSignals())
    assert len(local.micro_batches) > 5
    gradients = flat(model)
    whole, found_at_once, other = accumulate(store, 10_000, DeferredSignals())
    assert len(whole.micro_batches) == 1
    assert torch.allclose(gradients, flat(other), rtol=1e-12, atol=1e-15)
    feed = feed_of(store)
    questions, answers = feed.split.rows(feed.sampler.rows(3))  # the loss itself, padded
    model.zero_grad()
    loss = model.loss(Batch.from_text(questions, answers, VOCABULARY))
    loss.mean.backward()
    assert torch.allclose(gradients, flat(model), rtol=1e-9, atol=1e-12)
    assert flat(model).norm() > 0.1
    for one in (found, found_at_once):
        torch.testing.assert_close(one["loss"], loss.total.detach())


def test_accumulated_penalties_are_those_of_the_whole_batch(store):
    local, found, model = accumulate(store, 60, DeferredSignals(), **PENALISED)
    assert len(local.micro_batches) > 5
    gradients = flat(model)
    feed = feed_of(store)
    questions, answers = feed.split.rows(feed.sampler.rows(3))  # padded, and row by row
    model.zero_grad()
    loss = model.loss(Batch.from_text(questions, answers, VOCABULARY))
    (loss.objective / loss.n_tokens).backward()
    assert torch.allclose(gradients, flat(model), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found["loss"], loss.total.detach())  # the likelihood alone
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
    _, found, model = accumulate(store, 60, signals)
    assert found is None
    assert all(parameter.grad is None for parameter in model.parameters())

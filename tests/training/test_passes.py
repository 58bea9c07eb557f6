"""Passes: all rows once, none too large; their gradients add up to that of one pass."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from runs import config
from tp_transformer import Batch, Vocabulary
from tp_transformer.data.feed import Feed
from tp_transformer.data.store import open_store
from tp_transformer.distributed import Ranks
from tp_transformer.model.family import from_config
from tp_transformer.training.loop import Loop
from tp_transformer.training.passes import Share, divide

VOCABULARY = Vocabulary()
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
    st.booleans(),
)
def test_every_row_is_in_one_pass_and_passes_are_small_and_full(pairs, limit, packed):
    encoded = [VOCABULARY.encode(column) for column in map(list, zip(*pairs, strict=True))]
    passes = [rows(*one) for one in divide(*encoded, limit)]
    everything = [row for one in passes for row in one]
    assert sorted(everything) == sorted(rows(*encoded))
    assert [len(source) for source, _ in everything] == sorted(encoded[0].lengths)
    sums = [sum(map(size, one)) for one in passes]
    assert all(total <= limit or len(one) == 1 for total, one in zip(sums, passes, strict=True))
    for total, following in zip(sums, passes[1:], strict=False):
        assert total + size(following[0]) > limit
    share = Share.of(*encoded, VOCABULARY.pad, limit, packed=packed)
    assert [sum(map(len, batches)) for batches in share.passes] == [len(one) for one in passes]
    assert share.n_rows == len(everything)
    assert share.n_symbols == sum(map(size, everything))
    assert share.n_tokens == sum(len(target) - 1 for _, target in everything)
    assert share.n_positions == share.n_symbols if packed else share.n_positions >= share.n_symbols


def test_no_rows_are_no_passes():
    nothing = VOCABULARY.encode([])
    share = Share.of(nothing, nothing, VOCABULARY.pad, 10, packed=True)
    assert (share.passes, share.n_rows, share.n_positions) == ([], 0, 0)


def gradient(store, tmp_path, symbols_per_pass):
    settings = config(model__dropout=0.0, training__symbols_per_pass=symbols_per_pass)
    torch.manual_seed(0)
    model = from_config(settings.model).double()
    feed = Feed(open_store(store)["train"], batch_size=13)
    loop = Loop(
        model,
        feed,
        tmp_path,
        Ranks(torch.device("cpu")),
        optim=settings.optim,
        training=settings.training,
        validation=settings.validation,
    )
    share = loop._share(3)
    loop._gradient(share)
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return len(share.passes), gradients, model, feed


def test_accumulated_gradients_are_those_of_the_mean_over_the_batch(store, tmp_path):
    n_passes, gradients, model, feed = gradient(store, tmp_path, 60)
    assert n_passes > 5
    n_whole, whole, *_ = gradient(store, tmp_path, 10_000)
    assert n_whole == 1
    assert torch.allclose(gradients, whole, rtol=1e-12, atol=1e-15)
    questions, answers = feed.split.rows(feed.sampler.rows(3))  # the loss itself, padded
    model.zero_grad()
    model.loss(Batch.from_text(questions, answers, VOCABULARY)).mean.backward()
    plain = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert torch.allclose(gradients, plain, rtol=1e-9, atol=1e-12)
    assert plain.norm() > 0.1

"""Passes: all rows once, none too large."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.model.batch import group_by_length
from tp_transformer.model.layout.packed import Packed
from tp_transformer.model.layout.padded import Padded
from tp_transformer.training.gradient import LocalBatch

VOCABULARY = MATHEMATICS.vocabulary
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

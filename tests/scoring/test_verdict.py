"""A verdict by one teacher-forced pass is that of greedy decoding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tp_transformer as tpt
from tp_transformer.data.store import open_store
from tp_transformer.errors import UserError
from tp_transformer.model.batch import Batch
from tp_transformer.scoring.verdict import (
    judge,
    passes,
)

lengths = st.lists(st.tuples(st.integers(3, 40), st.integers(2, 12)), min_size=1, max_size=60)


@given(lengths, st.integers(1, 200))
def test_passes_hold_every_row_once_and_not_too_much(rows, limit):
    source, target = np.array(rows).T
    found = list(passes(source, target, limit))
    assert sorted(np.concatenate(found)) == list(range(len(rows)))
    sizes = [(source[one] + target[one]).sum() for one in found]
    assert all(size <= limit or len(one) == 1 for size, one in zip(sizes, found, strict=True))
    # No two that follow each other would fit into one, and the longest come first.
    assert all(a + (source[one[0]] + target[one[0]]) > limit
               for a, one in zip(sizes, found[1:], strict=False))  # fmt: skip
    assert (np.diff(np.concatenate([source[one] for one in found])) <= 0).all()


def spelled_out(model, question, answer):
    """Whether greedy decoding gives the answer, without a cache; and the least of its margins."""
    source = torch.from_numpy(model.vocabulary.encode([question]).ids[None])
    wanted = model.vocabulary.encode([answer]).ids.tolist()
    margins, is_right = [], True
    for place in range(1, len(wanted)):
        memory = model.encode(source)
        scores = model.decode(torch.tensor([wanted[:place]]), memory)[0, -1].tolist()
        is_right = is_right and max(range(len(scores)), key=scores.__getitem__) == wanted[place]
        own = scores.pop(wanted[place])
        margins.append(own - max(scores))
    return is_right, min(margins)


@pytest.mark.parametrize("packed", [True, False])
def test_verdicts_and_margins_are_those_of_symbol_by_symbol(store, trained, packed, monkeypatch):
    model = tpt.load(trained).double()
    monkeypatch.setattr(type(model), "reads_packed", packed)
    split = open_store(store)["interpolate"]
    rows = np.arange(0, len(split), 17)
    found = judge(model, *split.tokens(rows, model.vocabulary))
    questions, answers = split.rows(rows)
    with torch.no_grad():
        expected = [spelled_out(model, *one) for one in zip(questions, answers, strict=True)]
    right, margins = map(np.array, zip(*expected, strict=True))
    assert 0 < right.sum() < len(right)
    assert (found.right == right).all()
    assert found.margin == pytest.approx(margins, abs=1e-9)
    assert ((found.margin > 0) == right).all()


def test_the_losses_add_up_to_the_models(store, trained):
    model = tpt.load(trained)
    split = open_store(store)["interpolate"]
    tokens = split.tokens(np.arange(300), model.vocabulary)
    found = judge(model, *tokens)
    with torch.no_grad():
        loss = model.loss(Batch.from_ragged(*tokens, model.vocabulary.pad))
    assert found.loss.sum() == pytest.approx(loss.total.item(), rel=1e-5)
    assert found.right.sum() == loss.n_right


def test_the_lstm_is_judged_as_it_decodes(store):
    model = tpt.build("lstm-saxton", d_hidden=16, n_thinking=2).eval().double()
    questions, answers = open_store(store)["interpolate"].rows(np.arange(0, 1200, 60))
    # Untrained it says the same symbols for ever; cut off at any place, that is right so far.
    answers = [text[: 1 + i % 4] for i, text in enumerate(model.solve(questions, max_length=5))]
    found = judge(model, model.vocabulary.encode(questions), model.vocabulary.encode(answers))
    with torch.no_grad():
        expected = [spelled_out(model, *one) for one in zip(questions, answers, strict=True)]
    right, margins = map(np.array, zip(*expected, strict=True))
    assert (found.right == right).all()
    assert found.margin == pytest.approx(margins, abs=1e-9)


def test_scores_that_are_not_finite_are_refused(store, trained):
    model = tpt.load(trained)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    split = open_store(store)["interpolate"]
    with pytest.raises(UserError, match="not finite"):
        judge(model, *split.tokens(np.arange(3), model.vocabulary))

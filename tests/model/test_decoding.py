"""Greedy search against decoding from scratch at every step, and `solve` around it."""

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.errors import SettingsError, TextError
from tp_transformer.model import base
from tp_transformer.model.binding import BINDINGS
from tp_transformer.model.decoding import greedy

QUESTIONS = ["What is 3 + 4?", "Hi", "Let r(g) be the second derivative of 2*g**3/3.", "?"]


def model_of(name):
    if name == "lstm":
        return tpt.build("lstm-saxton", d_hidden=24, n_vocab=72).double()
    rank = 3 if name == "low-rank" else None
    return tpt.build("tp-transformer-tiny", binding=name, rank=rank).double()


def uncached(model, source, max_length):
    """The same search with the whole target decoded anew at every step, one row at a time."""
    answers = []
    for row in source:
        row = row[row != model.vocabulary.pad]
        target = [model.vocabulary.sos]
        while len(target) <= max_length and target[-1] != model.vocabulary.eos:
            logits = model(row[None], torch.tensor([target]))
            target.append(int(logits[0, -1].argmax()))
        answers.append(target[1:])
    return answers


@pytest.mark.parametrize("name", [*BINDINGS, "lstm"])
def test_equals_uncached_decoding(name):
    model = model_of(name)
    torch.nn.init.normal_(next(model.parameters()), std=0.3)  # livelier than freshly drawn
    source = torch.from_numpy(model.vocabulary.encode(QUESTIONS).padded(model.vocabulary.pad))
    with torch.no_grad():
        found = greedy(model.eval(), source, 12)
        expected = uncached(model, source, 12)
    for row, symbols in zip(found, expected, strict=True):
        assert row[: len(symbols)].tolist() == symbols
        assert (row[len(symbols) :] == model.vocabulary.pad).all()


class Scripted:
    """A model that says what it is told to."""

    def __init__(self, *answers):
        self.vocabulary = tpt.Vocabulary()
        self.script = self.vocabulary.encode(answers).padded(self.vocabulary.pad)[:, 1:]
        self.heard = []

    def encode(self, source):
        return source

    def begin(self, memory, max_length):
        return {"step": 0}

    def step(self, previous, state):
        self.heard.append(previous.tolist())
        symbols = torch.from_numpy(self.script[:, state["step"]])
        state["step"] += 1
        return torch.nn.functional.one_hot(symbols, 72)


def test_stops_at_the_end_symbol_and_feeds_back_what_it_said():
    model = Scripted("7", "-12", "")
    found = greedy(model, torch.zeros(3, 1, dtype=torch.long), 30)
    assert model.vocabulary.decode(found.numpy()) == ["7", "-12", ""]
    assert found.shape == (3, 4)
    assert model.heard[0] == [model.vocabulary.sos] * 3
    assert model.heard[1] == model.script[:, 0].tolist()


def test_cuts_at_the_longest_length():
    found = greedy(Scripted("12345"), torch.zeros(1, 1, dtype=torch.long), 3)
    assert tpt.Vocabulary().decode(found.numpy()) == ["123"]
    assert greedy(Scripted("1"), torch.zeros(1, 1, dtype=torch.long), 0).shape == (1, 0)


def test_solve_keeps_the_order_and_does_not_depend_on_the_company(monkeypatch):
    model = tpt.build("tp-transformer-tiny").double()
    questions = [f"What is {'1' * n} + {n}?" for n in (30, 1, 17, 5, 60, 2, 9)]
    expected = [model.solve([question])[0] for question in questions]
    assert len(set(expected)) > 1
    monkeypatch.setattr(base, "ROWS_AT_ONCE", 3)
    assert model.solve(questions) == expected


def test_solve_of_nothing_is_nothing():
    model = tpt.build("tp-transformer-tiny")
    assert model.solve([]) == []
    with model.trace("embedding"):
        assert model.solve([]) == []


def test_solve_takes_any_iterable():
    model = tpt.build("tp-transformer-tiny")
    assert model.solve(str(n) for n in range(3)) == model.solve(("0", "1", "2"))


def test_solve_leaves_the_mode_as_it_was():
    model = tpt.build("tp-transformer-tiny", dropout=0.5).train()
    assert model.solve(["1 + 1"]) == model.solve(["1 + 1"])
    assert model.training
    model.encoder[0].eval()  # as one freezes a part
    with model.trace("encoder.0.output") as trace:
        model.solve(["1 + 1"])
    assert not trace["encoder.0.output"].requires_grad
    assert [module.training for module in (model, *model.encoder)] == [True, False, True]


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        (["ok", ""], "question 2 is empty"),
        (["x" * 199], "question 1 has 199 characters; the model reads at most 198"),
        (["fine", "caf\u00e9"], "question 2: character '\u00e9' at position 4"),
        ("What is 1 + 1?", "takes a list"),
        (["1", 2], "question 2 is not a text but int"),
    ],
)
def test_solve_refuses_what_it_cannot_read(questions, message):
    with pytest.raises(TextError, match=message):
        tpt.build("tp-transformer-tiny").solve(questions)


def test_solve_reads_up_to_the_last_position():
    model = tpt.build("tp-transformer-tiny")
    assert len(model.solve(["1" * 198], max_length=200)) == 1
    with pytest.raises(SettingsError, match="answers of 201"):
        model.solve(["1"], max_length=201)

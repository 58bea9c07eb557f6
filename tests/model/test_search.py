"""Greedy search against decoding from scratch at every step, and `solve` around it."""

import math

import pytest
import torch

import tp_transformer as tpt
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.errors import SettingsError, TextError, TraceError
from tp_transformer.model import solver
from tp_transformer.model.search import Hypothesis, beam_search, greedy
from tp_transformer.model.solver import Solver
from variants import DISTINCT

QUESTIONS = ["What is 3 + 4?", "Hi", "Let r(g) be the second derivative of 2*g**3/3.", "?"]
MANY = [*QUESTIONS, *(f"What is {n} + {n * n * n}?" for n in range(2, 12))]


def model_of(name):
    """A model that is livelier than freshly drawn, and more ready to end."""
    eos = MATHEMATICS.vocabulary.eos
    with torch.no_grad():
        if name == "lstm":
            model = tpt.build("lstm-saxton", d_hidden=24, n_vocab=72).double().eval()
            for parameter in model.parameters():
                parameter.normal_(std=0.7)
            model.output.weight[eos] *= 3
            return model
        rank = 3 if name == "low-rank" else None
        model = tpt.build("tp-transformer-tiny", binding=name, rank=rank).double().eval()
        model.embedding.symbols.weight.normal_(std=0.3)
        model.embedding.symbols.weight[eos] *= 3
        return model


def source_of(model, questions=QUESTIONS):
    return torch.from_numpy(model.vocabulary.encode(questions).padded(model.vocabulary.pad))


def unpadded(model, source):
    return [row[row != model.vocabulary.pad] for row in source]


def next_log_probabilities(model, row, target):
    """After a beginning, decoded from scratch by itself: nothing is cached, nothing padded."""
    return model.decode(torch.tensor([target]), model.encode(row[None]))[0, -1].log_softmax(dim=-1)


def uncached_greedy(model, row, max_length):
    target = [model.vocabulary.sos]
    while len(target) <= max_length and target[-1] != model.vocabulary.eos:
        target.append(int(next_log_probabilities(model, row, target).argmax()))
    return target[1:]


def uncached_beam(model, row, max_length, beam, penalty):
    """Beam search for one question in plain lists; answers as (score, sum, symbols)."""
    live, done = [(0.0, [])], []
    for length in range(1, max_length + 1):
        grown = [
            (total + log_probability, [*symbols, symbol])
            for total, symbols in live
            for symbol, log_probability in enumerate(
                next_log_probabilities(model, row, [model.vocabulary.sos, *symbols]).tolist()
            )
        ]
        grown.sort(key=lambda pair: -pair[0])
        ended = [pair for pair in grown[:beam] if pair[1][-1] == model.vocabulary.eos]
        done += [(total / length**penalty, total, symbols) for total, symbols in ended]
        done = sorted(done, reverse=True)[:beam]
        live = [pair for pair in grown if pair[1][-1] != model.vocabulary.eos][:beam]
        longest = 1 if beam == 1 else max_length**penalty
        if len(done) == beam and done[-1][0] >= live[0][0] / longest:
            return done
    done += [(total / max_length**penalty, total, symbols) for total, symbols in live]
    return sorted(done, reverse=True)[:beam]


@pytest.mark.parametrize("name", [*DISTINCT, "lstm"])
def test_greedy_search_equals_uncached_decoding(name):
    model = model_of(name)
    source = source_of(model)
    with torch.no_grad():
        found = greedy(model, source, 12)
        expected = [uncached_greedy(model, row, 12) for row in unpadded(model, source)]
    for row, symbols in zip(found, expected, strict=True):
        assert row[: len(symbols)].tolist() == symbols
        assert (row[len(symbols) :] == model.vocabulary.pad).all()


@pytest.mark.parametrize("penalty", [0.0, 0.8])
@pytest.mark.parametrize("beam", [1, 5])
@pytest.mark.parametrize("name", [*DISTINCT, "lstm"])
def test_beam_search_equals_uncached_decoding(name, beam, penalty):
    model = model_of(name)
    source = source_of(model)
    with torch.no_grad():
        found = beam_search(model, source, 7, beam, penalty)
        for answers, row in zip(found, unpadded(model, source), strict=True):
            expected = uncached_beam(model, row, 7, beam, penalty)
            assert [list(one.tokens) for one in answers] == [one[2] for one in expected]
            for one, (score, total, _) in zip(answers, expected, strict=True):
                assert one.score == pytest.approx(score, abs=1e-9)
                assert one.log_probability == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("name", ["hadamard", "lstm"])
def test_the_lengths_that_are_compared_differ(name):
    """Otherwise no row would leave before the others, and the tests above would prove little."""
    model = model_of(name)
    with torch.no_grad():
        found = beam_search(model, source_of(model), 7, 5)
    assert len({len(one.tokens) for answers in found for one in answers}) > 2


def test_a_beam_as_wide_as_all_texts_finds_the_likeliest_of_them():
    """Against a count of every text there is: no search, no cache."""
    vocabulary = tpt.Vocabulary(("<pad>", "<sos>", "<eos>", "0", "1"))
    model = tpt.build("tp-transformer-tiny", n_vocab=5, vocabulary=vocabulary).double().eval()
    torch.nn.init.normal_(next(model.parameters()), std=0.2)
    source = source_of(model, ["01101"])
    with torch.no_grad():
        (found,) = beam_search(model, source, 3, 200)
        totals = {(): 0.0}
        for _ in range(3):
            for beginning in [key for key in totals if vocabulary.eos not in key]:
                following = next_log_probabilities(model, source[0], [vocabulary.sos, *beginning])
                total = totals.pop(beginning)
                for symbol, log_probability in enumerate(following.tolist()):
                    totals[(*beginning, symbol)] = total + log_probability
    assert sum(map(math.exp, totals.values())) == pytest.approx(1.0)
    assert [one.tokens for one in found] == sorted(totals, key=lambda text: -totals[text])


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("name", ["hadamard", "lstm"])
def test_rows_that_are_done_are_no_longer_computed(name, beam):
    model = model_of(name)
    sizes = []
    step = model.step

    def counted(previous, state):
        sizes.append(len(previous))
        return step(previous, state)

    model.step = counted
    if beam == 1:
        answers = model.solve(MANY, max_length=30)
        ends = sorted(len(answer) + 1 for answer in answers)
        assert sizes[0] == len(MANY)
        assert len(sizes) == min(ends[-1], 30)
        assert ends[0] < ends[-1]  # otherwise there is nothing to see
    else:
        Solver(model).answers(MANY, max_length=30, beam=beam)
        assert sizes[:2] == [len(MANY), beam * len(MANY)]
    assert sizes[-1] < max(sizes)


def test_solve_keeps_the_order_and_does_not_depend_on_the_company(monkeypatch):
    model = tpt.build("tp-transformer-tiny").double()
    questions = [f"What is {'1' * n} + {n}?" for n in (30, 1, 17, 5, 60, 2, 9)]
    expected = [model.solve([question])[0] for question in questions]
    assert len(set(expected)) > 1
    monkeypatch.setattr(solver, "ROWS_AT_ONCE", 3)
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


def test_a_beam_search_that_cannot_be_is_refused():
    model = tpt.build("tp-transformer-tiny")
    for options, message in (
        ({"beam": 0}, "beam must be from 1 to 100, not 0"),
        ({"beam": 101}, "beam must be from 1 to 100, not 101"),
        ({"length_penalty": 11.0}, "length_penalty must be from 0 to 10, not 11.0"),
        ({"length_penalty": float("nan")}, "length_penalty must be from 0 to 10, not nan"),
        ({"beam": 2, "n_best": 3}, "1 to 2 answers"),
        ({"length_penalty": -0.5}, "length_penalty must be"),
        ({"length_penalty": math.nan}, "length_penalty must be"),
    ):
        with pytest.raises(SettingsError, match=message):
            Solver(model).answers(["1"], **options)
    with model.trace("embedding"), pytest.raises(TraceError, match="cannot be traced"):
        model.solve(["1"], beam=2)


def test_answers_of_no_tokens_are_refused():
    with pytest.raises(SettingsError, match="max_length must be from 1 to 10000, not 0"):
        Solver(tpt.build("tp-transformer-tiny")).answers(["1"], max_length=0)


def test_texts_that_are_spelled_alike_are_one_answer():
    """A model that cannot tell the padding symbol from the characters of its name."""
    model = tpt.build("tp-transformer-tiny")
    ids = tuple(model.vocabulary.encode(["<pad>"]).ids[1:].tolist())
    found = [
        Hypothesis(tokens=symbols, log_probability=score, score=score, is_complete=True)
        for symbols, score in ((ids, -1.0), ((0, 2), -2.0), ((5, 2), -3.0))
    ]
    assert [one.score for one in Solver(model)._decoded(found)] == [-1.0, -3.0]

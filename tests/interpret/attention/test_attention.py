"""Attention: a head planted in a model is found, models with initial weights have none."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import tp_transformer as tpt
from planted import by_length, nested
from tp_transformer import UserError, figures
from tp_transformer.interpret import attention
from tp_transformer.interpret.attention import analysis, following
from tp_transformer.interpret.attention.analysis import AttentionResult
from tp_transformer.interpret.core.record import ATTENTIONS, point, record, untrained
from tp_transformer.interpret.core.relations import OF_EXPRESSIONS, RELATIONS
from tp_transformer.interpret.core.result import Context
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.scoring.expressions import parse

SAMPLE = by_length(nested(32))  # as many as pass a model at once
EXPRESSIONS = [parse(question) for question in SAMPLE.questions]
SECOND = "second argument to its operator"


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return tpt.build("tp-transformer-tiny", d_model=32, n_heads=4)


def follow(weights):
    """Let a head's second arguments attend to their operators, and to nothing else."""
    planted = weights.clone()
    for row, expression in enumerate(EXPRESSIONS):
        for query, keys in RELATIONS[SECOND](expression):
            planted[row, 3, query] = 0
            planted[row, 3, query, min(keys)] = 1
    return planted


def test_the_search_finds_a_planted_head_in_a_model(model):
    with model.trace(edit={"encoder.1.self_attention.weights": follow}):
        rankings = analysis.search(model, SAMPLE, SECOND)
    (clear,) = rankings[0].clear
    assert (clear.layer, clear.head, clear.mass) == (1, 3, 1)
    result = AttentionResult(
        context=Context.of(model, SAMPLE, 0),
        where="encoder",
        layer=1,
        heads=(),
        maps=(),
        shortest=None,
        are_given=False,
        rankings=rankings,
    )
    assert result.summary() == [f"Followed: {SECOND} (head 1.3)."]
    (row,) = result.tables()[0].rows
    low, high = clear.interval
    assert row == (
        *(SECOND, "1.3", "100.0", f"{100 * clear.by_text:.1f} text", f"{100 * clear.margin:.1f}"),
        *(f"{100 * low:.1f} to {100 * high:.1f}", "5.0", "100"),
    )


def test_heads_with_initial_weights_follow_nothing(model):
    found = attention(model, SAMPLE, seed=1)
    assert sum(len(ranking.clear) for ranking in found.rankings) == 0
    names = "; ".join(OF_EXPRESSIONS)
    assert found.summary() == [f"Followed by no head beyond the baselines: {names}."]
    rankings = found.rankings[: len(OF_EXPRESSIONS)]
    for row, ranking in zip(found.tables()[0].rows, rankings, strict=True):
        best = f"{ranking.heads[0].layer}.{ranking.heads[0].head}"
        assert row[:2] == (ranking.relation, best)


def test_what_initial_weights_have_is_drawn_more_than_once(model):
    (found,) = analysis.search(model, SAMPLE, SECOND, seed=1)
    drawn = []
    for number in range(analysis.INITIAL_DRAWS):
        layers = [f"encoder.{layer}.self_attention.weights" for layer in range(2)]
        recorded = record(untrained(model, 1 + number), SAMPLE, layers)
        weights = [np.stack(both) for both in zip(*(recorded[one] for one in layers), strict=True)]
        recorded_attention = following.ModelAttention.of(weights, EXPRESSIONS)
        drawn.append(following.largest_margin(SECOND, RELATIONS[SECOND], recorded_attention))
    assert found.initial == pytest.approx(max(drawn))


@pytest.mark.parametrize("count", [1, 9])
def test_of_few_questions_nothing_is_said(model, count):
    few = Sample(
        questions=SAMPLE.questions[:count], answers=SAMPLE.answers[:count], origin="a few questions"
    )
    found = attention(model, few, relation=SECOND)
    assert found.summary() == [
        "In too few questions to say whether a head follows it (10 are needed): "
        f"{SECOND} ({count})."
    ]
    ((*_, interval, _, _),) = found.tables()[0].rows
    assert interval == "-"


@pytest.fixture
def _one_initial_draw(monkeypatch):
    """For tests that are not about the search."""
    monkeypatch.setattr(analysis, "INITIAL_DRAWS", 1)


@pytest.mark.usefixtures("_one_initial_draw")
@pytest.mark.parametrize("where", ATTENTIONS)
def test_maps_have_the_symbols_of_their_rows_and_columns(model, where):
    found = attention(model, SAMPLE, where=where, head=1, relation=SECOND)
    assert (found.layer, found.heads, len(found.maps)) == (1, (1,), 3)
    for one in found.maps:
        assert one.weights.shape == (1, len(one.queries), len(one.keys))
        np.testing.assert_allclose(one.weights.sum(axis=-1), 1, atol=1e-5)
        assert one.question in SAMPLE.questions
    name = point(where, 1, "weights")
    recorded = record(model, SAMPLE, [name])[name]
    first = recorded[SAMPLE.questions.index(found.maps[0].question)]
    np.testing.assert_allclose(found.maps[0].weights[0], first[1], atol=1e-5)
    source, target = token_characters(found.maps[0].question), "#7"
    expected = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    assert (found.maps[0].queries, found.maps[0].keys) == expected[where]
    assert bool(found.rankings) == (where == "encoder")
    if where != "encoder":
        (said,) = found.summary()
        assert "the right answer, which is given" in said


@pytest.mark.usefixtures("_one_initial_draw")
@pytest.mark.parametrize("where", ATTENTIONS)
def test_maps_of_given_questions_have_the_models_own_answers(model, where):
    given = ["What is 1/2?", "(12/5)/(3/4)"]
    found = attention(model, SAMPLE, where=where, questions=given)
    assert [one.question for one in found.maps] == given
    assert [one.answer for one in found.maps] == model.solve(given)
    assert found.shortest.question == min(given, key=len)
    assert found.caption.endswith(" 2 given questions; analysis seed 0")
    for name, drawn in found.plot().items():
        words = figures.caption_of(drawn)
        assert "# and % are the start and end tokens." in words or name.endswith("relations")
        assert (SAMPLE.origin in words) == name.endswith("relations"), name
    if where != "encoder":
        assert "the model's own answer" in found.summary()[0]
    with pytest.raises(UserError, match="é"):
        attention(model, SAMPLE, questions=["What is é?"])


@pytest.mark.usefixtures("_one_initial_draw")
def test_numbers_and_figures_are_written(model, tmp_path):
    few = Sample(questions=("1/2", "Is 7 prime?"), answers=("1/2", "True"), origin="two questions")
    for where in ATTENTIONS:
        found = attention(model, few, where=where, head=0, shown=1)
        files = found.save(tmp_path)
        assert len(files) == (10 if where == "encoder" else 7)
        assert all(file.stat().st_size > 100 for file in files)
    values = json.loads((tmp_path / "attention-encoder.json").read_text("utf-8"))
    assert [one["relation"] for one in values["rankings"]] == list(RELATIONS)
    rows = (tmp_path / "attention-encoder-layer1-head0.svg").read_text("utf-8")
    assert "weights below 0.05 are not drawn" in " ".join(rows.split())


@pytest.mark.usefixtures("_one_initial_draw")
def test_figures_of_questions_of_any_length_can_be_read(model, tmp_path):
    lengths = (1, 24, 43, 44, 110)  # a column has room for 43 characters, a page for 120
    questions = [("12/3-4*5+" * length)[:length] for length in lengths]
    given = attention(model, SAMPLE, questions=questions)
    for shown in given.maps:
        n_tokens = len(shown.queries)
        width = figures.COLUMN if n_tokens <= 43 else figures.PAGE
        shortest = shown if n_tokens < 30 else given.shortest
        one = replace(given, maps=(shown,), shortest=shortest)
        one.save(tmp_path)  # looked at by conftest
        plots = one.plot()
        assert plots["attention-encoder-layer1-head0"].get_figwidth() == width
        heat = plots["attention-encoder-layer1"]
        maps = [axes for axes in heat.axes if axes.get_title().startswith("head")]
        assert [axes.get_title() for axes in maps] == [f"head {head}" for head in range(4)]
    words = " ".join((tmp_path / "attention-relations.png").read_text("utf-8").split())
    for ranking in filter(lambda ranking: ranking.heads, given.rankings):
        assert f"{ranking.relation} ({ranking.best.layer}.{ranking.best.head})" in words


def test_unknown_names_are_refused(model):
    messages = {
        ("where", "encodr"): "where must be one of encoder, decoder, cross",
        ("relation", "second"): "no relation 'second'",
    }
    for (option, value), message in messages.items():
        with pytest.raises(UserError, match=message):
            attention(model, SAMPLE, **{option: value})


@pytest.mark.usefixtures("_one_initial_draw")
def test_relations_that_no_question_has_are_one_line(model):
    texts = tuple(f"What is {number} + {number + 1}?" for number in range(10, 30))
    sums = Sample(questions=texts, answers=("1",) * 20, origin="sums")
    lines = attention(model, sums, head=0).summary()
    (absent,) = (line for line in lines if line.startswith("In no question: "))
    assert "opening to closing parenthesis; closing to opening parenthesis" in absent
    assert absent.count(";") >= 4
    assert len(lines) == 2


@pytest.mark.usefixtures("_one_initial_draw")
def test_questions_without_expressions(model):
    mirrored = [f"Mirror {'ab' * number}c" for number in range(1, 12)]
    texts = (*mirrored, "Sort 1/0, 3.")  # not a list of numbers either
    found = attention(
        model, Sample(questions=texts, answers=("c",) * 12, origin="words"), head=0, layer=0
    )
    (said,) = found.summary()
    assert said.startswith(f"No question has any of the {len(RELATIONS)} relations, ")
    assert "Numerators" not in figures.caption_of(found.plot()["attention-encoder-layer0-head0"])


@pytest.mark.usefixtures("_one_initial_draw")
def test_relations_of_questions_that_are_no_expressions(model):
    texts = tuple(f"What is the tens digit of {number}?" for number in range(5310, 5330))
    digits = Sample(questions=texts, answers=("1",) * 20, origin="digits")
    found = attention(model, digits, head=0)
    ranked = {ranking.relation for ranking in found.rankings if ranking.heads}
    assert ranked == {"name of a digit to that digit", "digit asked for to its name"}
    assert found.rankings[-6].n_positions == 20 * len("tens")
    absent = found.summary()[-1]
    assert absent.startswith("In no question: coefficient to its exponent; ")
    assert "parenthesis" not in absent

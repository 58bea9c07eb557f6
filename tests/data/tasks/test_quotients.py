"""Quotients: all of them, their values, and the analyses of arithmetic."""

from collections import Counter
from fractions import Fraction

import pytest

import tp_transformer as tpt
from tp_transformer import cli
from tp_transformer.data.generated import TASKS, write_task
from tp_transformer.data.tasks.quotients import nested_quotients
from tp_transformer.interpret.analyses import ANALYSES
from tp_transformer.scoring.expressions import parse


def expression_of(question):
    for lead in ("What is the value of ", "What is ", "Calculate ", "Evaluate "):
        question = question.removeprefix(lead)
    return question.rstrip("?.")


def test_every_way_to_divide_four_digits_is_there_once_in_training_or_in_the_test():
    rows = list(TASKS["quotients"]().rows())
    by_split = {"train": Counter(), "test": Counter()}
    for row in rows:
        by_split[row.split][expression_of(row.question)] += 1
        assert parse(row.question).value == Fraction(row.answer)
    train, test = by_split.values()
    assert not train.keys() & test.keys()
    assert len(train) + len(test) == 5 * 8**4
    assert set(train.values()) == {3}
    assert set(test.values()) == {1}
    assert len(test) == 2_172


def test_the_five_trees():
    assert {text for text, _ in nested_quotients((7, 7, 8, 2))} == {
        "((7/7)/8)/2",
        "(7/(7/8))/2",
        "(7/7)/(8/2)",
        "7/((7/8)/2)",
        "7/(7/(8/2))",
    }
    assert dict(nested_quotients((7, 7, 8, 2)))["(7/(7/8))/2"] == 4


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("quotients") / "store", "quotients")


@pytest.mark.parametrize("analysis", ["roles", "attention", "surgery", "binding"])
def test_the_analyses_of_arithmetic_apply(analysis, store, tmp_path, capsys):
    fields = {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1}
    model = tpt.build("quotients", **fields)
    assert model.vocabulary == store.task.vocabulary
    model.save(tmp_path / "model")
    options = [f"--model={tmp_path / 'model'}", f"--out={tmp_path / 'out'}", "--count=24"]
    if ANALYSES[analysis].needs_store:  # those have questions of their own
        options += [f"--data={store.path}", "--answered=false"]
    cli.main(["interpret", analysis, *options])
    assert capsys.readouterr().out
    assert any((tmp_path / "out").iterdir())

"""Quotients: all of them, and their values."""

from collections import Counter
from fractions import Fraction

from tp_transformer.data.generated import TASKS
from tp_transformer.data.tasks.quotients import nested_quotients
from tp_transformer.expressions import parse


def expression_of(question):
    for lead in ("What is the value of ", "What is ", "Calculate ", "Evaluate "):
        question = question.removeprefix(lead)
    return question.rstrip("?.")


def test_every_way_to_divide_four_digits_is_there_once_in_training_or_in_the_test():
    rows = list(TASKS["quotients"]().rows())
    by_split = {"train": Counter(), "test": Counter()}
    answers = {}
    for row in rows:
        expression = expression_of(row.question)
        by_split[row.split][expression] += 1
        if expression not in answers or len(answers) < 1000:  # in all of its wordings
            assert parse(row.question).value == Fraction(row.answer)
        assert answers.setdefault(expression, row.answer) == row.answer
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

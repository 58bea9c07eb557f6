"""Questions as trees: against the dataset's answers, exact arithmetic, and by hand."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tp_transformer as tpt
from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.scoring.expressions import LEADS, LONGEST, WORDED, Operation, nodes, parse


def generated(count):
    splits = ("train-easy", "train-medium", "train-hard", "interpolate", "extrapolate")
    for kind in ("mixed", "mul_div_multiple", "add_sub_multiple", "add_or_sub", "mul", "div"):
        for split in splits:
            longer = "_longer" if kind.endswith(("mixed", "multiple")) else "_big"
            module = f"arithmetic__{kind}{longer if split == 'extrapolate' else ''}"
            for example in tpt.data.generate(module, split=split, count=count, seed=5):
                yield example.question, example.answer


def check_spans(expression):
    """Check that the text of each node is an expression of its value, with its signs."""
    text = token_characters(expression.question)
    for node in nodes(expression.tree):
        alone = parse(text[slice(*node.span)])
        assert alone is not None
        assert alone.value == node.value
        if isinstance(node, Operation):
            assert "".join(text[at] for at in node.at) == node.operator
            assert node.left.span[1] <= node.at[0] < node.right.span[0]


@pytest.mark.parametrize("count", [15, pytest.param(600, marks=pytest.mark.slow)])
def test_values_are_the_answers_of_the_dataset(count):
    in_signs = 0
    for question, answer in generated(count):
        expression = parse(question)
        if "difference" in question or "distance" in question:
            assert expression is None
            continue
        assert expression is not None, question
        assert expression.value == Fraction(answer), question
        if re.fullmatch(r"(?:[A-Z][A-Za-z ]* )?[-(0-9][-+*/().0-9 ]*?[.?]?", question):
            check_spans(expression)
            in_signs += 1
    assert in_signs > 13 * count


expressions = st.recursive(
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?\Z"),
    lambda part: st.one_of(
        part.map(lambda inner: f"({inner})"),
        part.map(lambda inner: f"-({inner})"),
        part.map(lambda inner: f"- {inner}"),
        st.tuples(part, st.sampled_from(["+", " - ", "*", "/", " + ", " * "]), part).map("".join),
    ),
    max_leaves=12,
)


@given(expressions, st.sampled_from(LEADS), st.sampled_from(["", ".", "?"]))
@settings(max_examples=60, deadline=None)
def test_any_expression_has_its_exact_value(text, lead, end):
    expression = parse(lead + text + end)
    assert expression is not None
    try:
        exact = eval(re.sub(r"[0-9.]+", r"Fraction('\g<0>')", text), {"Fraction": Fraction})  # noqa: S307
    except ZeroDivisionError:
        exact = None
    assert expression.value == exact
    check_spans(expression)


@given(st.text(alphabet="0123456789+-*/(). ?abWhatis", max_size=30) | st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_what_is_no_expression_is_none(text):
    expression = parse(text)
    for node in [] if expression is None else nodes(expression.tree):
        assert 0 < node.span[0] < node.span[1] <= len(text) + 1


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "What is ?", "3 +", "* 3", "(3", "3)", "()", "3 4", "3.5.2", "3.", ".5"),
        *("2**3", "7//2", "+3", "x + 3", "Is 3 + 4 prime?", "٣ + 1", "3 plus 4 plus 5", "1e5"),
        *("1)+(2", "(1, 2)", "1,", "[1]", "1_0", "1j", "..."),
    ],
)
def test_garbage_is_none(text):
    # A full stop ends a question, so that `3.` is a question about the number 3.
    assert (parse(text) is None) == (text != "3.")


def test_depth_is_no_danger():
    depth = LONGEST // 2 - 1
    for text in (f"{'(' * depth}1{')' * depth}", "1+" * depth + "1", "-" * depth + "1"):
        expression = parse(text)
        assert expression is not None
        assert expression.value == (depth + 1 if "+" in text else (-1) ** text.count("-"))
    assert parse("1" * (LONGEST + 1)) is None
    assert parse("9" * LONGEST) is not None


def test_numbers_and_spans_by_hand():
    question = "What is ((-6))/012?"
    tree, text = parse(question).tree, token_characters(question)
    assert text[slice(*tree.left.span)] == "-6"
    assert text[slice(*tree.span)] == "((-6))/012"
    assert [text[at] for at in tree.at] == ["/"]
    assert tree.value == Fraction(-1, 2)
    assert parse("0.1 + 0.2").value == Fraction(3, 10)
    assert parse("1/0").value is None
    assert parse("Evaluate -(3/0)").value is None


@pytest.mark.parametrize("operator", WORDED)
def test_words_are_operators(operator):
    for form in WORDED[operator]:
        named = re.sub(r"\b[ab]\b", lambda name: {"a": "-31", "b": "4.5"}[name[0]], form)
        question = named.replace("[", "").replace("]", "")
        tree, text = parse(question).tree, token_characters(question)
        assert tree.operator == operator
        assert text[slice(*tree.left.span)] == "-31"
        assert text[slice(*tree.right.span)] == "4.5"
        words = re.findall(r"\[(.*?)\]", form)
        assert "".join(text[at] for at in tree.at) == "".join(words)

"""Questions as trees: against Python's own parser, the dataset's answers, and by hand."""

import ast
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tp_transformer as tpt
from tp_transformer.interpret.core.sample import token_characters
from tp_transformer.scoring.expressions import (
    LEADS,
    LONGEST,
    WORDED,
    Negation,
    Number,
    Operation,
    nodes,
    outer_span,
    parse,
)

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def outline(node):
    """Our tree in the form of `outline_of_python`: signs, exact values, spans."""
    if isinstance(node, Number):
        return (node.value, node.span)
    if isinstance(node, Negation):
        return ("negate", outline(node.operand), node.span)
    return (node.operator, outline(node.left), outline(node.right), node.span)


def outline_of_python(text, start):
    """What Python makes of an expression that begins at a place of a question."""

    def visit(node):
        span = (node.col_offset + 1 + start, node.end_col_offset + 1 + start)
        if isinstance(node, ast.Constant):
            return (Fraction(text[node.col_offset : node.end_col_offset]), span)
        if isinstance(node, ast.UnaryOp):
            assert isinstance(node.op, ast.USub)
            operand = visit(node.operand)
            touches = node.operand.col_offset == node.col_offset + 1
            if touches and isinstance(node.operand, ast.Constant):
                return (-operand[0], span)
            return ("negate", operand, span)
        return (SIGNS[type(node.op)], visit(node.left), visit(node.right), span)

    return visit(ast.parse(text, mode="eval").body)


def value_of(found):
    if len(found) == 2:
        return found[0]
    if found[0] == "negate":
        return -value_of(found[1])
    left, right = value_of(found[1]), value_of(found[2])
    return {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[
        found[0]
    ](right)


IN_SIGNS = re.compile(r"(?:[A-Z][A-Za-z ]* )?([-(0-9][-+*/().0-9 ]*?)[.?]?")


def agree_on(questions):
    """Compare each question with its answer, and with Python where it is written in signs."""
    in_signs = 0
    for question, answer in questions:
        expression = parse(question)
        if "difference" in question or "distance" in question:
            assert expression is None
            continue
        assert expression is not None, question
        assert expression.value == Fraction(answer), question
        found = IN_SIGNS.fullmatch(question)
        if found:
            theirs = outline_of_python(found[1], found.start(1))
            assert outline(expression.tree) == theirs, question
            assert value_of(theirs) == expression.value
            in_signs += 1
    return in_signs


def generated(count):
    splits = ("train-easy", "train-medium", "train-hard", "interpolate", "extrapolate")
    for kind in ("mixed", "mul_div_multiple", "add_sub_multiple", "add_or_sub", "mul", "div"):
        for split in splits:
            longer = "_longer" if kind.endswith(("mixed", "multiple")) else "_big"
            module = f"arithmetic__{kind}{longer if split == 'extrapolate' else ''}"
            for example in tpt.data.generate(module, split=split, count=count, seed=5):
                yield example.question, example.answer


def test_python_and_the_answers_agree():
    assert agree_on(generated(15)) > 200


@pytest.mark.slow
def test_python_agrees_on_ten_thousand_generated_questions():
    assert agree_on(generated(600)) > 10_000


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
def test_any_expression_is_read_as_python_reads_it(text, lead, end):
    found = parse(lead + text + end)
    assert found is not None
    theirs = outline_of_python(text, len(lead))
    assert outline(found.tree) == theirs
    try:
        value = value_of(theirs)
    except ZeroDivisionError:
        value = None
    assert found.value == value


@given(st.text(alphabet="0123456789+-*/(). ?abWhatis", max_size=30) | st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_what_is_no_expression_is_none(text):
    found = parse(text)
    if found is None:
        return
    shown = token_characters(text)
    for node in nodes(found.tree):
        assert 0 < node.span[0] < node.span[1] <= len(text) + 1
        for opening, end in node.parentheses:
            assert (shown[opening], shown[end - 1]) == ("(", ")")


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "What is ?", "3 +", "* 3", "(3", "3)", "()", "3 4", "3.5.2", "3.", ".5"),
        *("2**3", "7//2", "+3", "x + 3", "Is 3 + 4 prime?", "٣ + 1", "3 plus 4 plus 5", "1e5"),
    ],
)
def test_garbage_is_none(text):
    # A full stop ends a question, so that `3.` is a question about the number 3.
    assert (parse(text) is None) == (text != "3.")


def test_depth_is_no_danger():
    depth = LONGEST // 2 - 1
    for text in (f"{'(' * depth}1{')' * depth}", "1+" * depth + "1", "-" * depth + "1"):
        found = parse(text)
        assert found is not None
        assert found.value == (depth + 1 if "+" in text else (-1) ** text.count("-"))
        assert len(list(nodes(found.tree))) >= 1
    assert parse("1" * (LONGEST + 1)) is None
    assert parse("9" * LONGEST) is not None


def test_parentheses_and_spans():
    question = "What is ((-6))/12?"
    tree = parse(question).tree
    assert isinstance(tree, Operation)
    text = token_characters(question)
    assert text[slice(*tree.left.span)] == "-6"
    assert text[slice(*outer_span(tree.left))] == "((-6))"
    assert [text[start:end] for start, end in tree.left.parentheses] == ["(-6)", "((-6))"]
    assert text[slice(*tree.span)] == "((-6))/12"
    assert [text[at] for at in tree.at] == ["/"]
    assert tree.value == Fraction(-1, 2)


def test_decimals_are_exact():
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

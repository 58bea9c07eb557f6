"""What is wrong with answers; and that nothing in an answer is ever run."""

import ast
import builtins
import os
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tp_transformer.data.vocabulary import CHARACTERS
from tp_transformer.scoring import diagnose
from tp_transformer.scoring.diagnose import KINDS, Diagnosis, looks_equal, number_at
from tp_transformer.scoring.expressions import LONGEST_ANSWER, UnreadableError
from tp_transformer.scoring.expressions import parse_answer as parse


@pytest.fixture(scope="module")
def diagnosis():
    with Diagnosis() as found:
        yield found


@pytest.mark.parametrize(
    ("answer", "predicted", "kind"),
    [
        ("1/2", "0.5", "value"),
        ("2/3", "-4/-6", "value"),
        ("3*x**2 + 4*x", "4*x + 3*x**2", "value"),
        ("(x + 1)**2", "x**2 + 2*x + 1", "value"),
        ("2*sqrt(3) + 4", "sqrt(12) + 4", "value"),
        ("-2, 7", "-2.0,7", "value"),
        ("-3", "3", "sign"),
        ("3*x - 2", "3*x + 2", "sign"),
        ("-1, 2", "1, -2", "sign"),
        ("1/3", "-1/3", "sign"),
        ("1234", "1254", "digit"),
        ("-0.31", "-0.32", "digit"),
        ("x**2 + 3", "x**2 + 4", "digit"),
        ("1234", "123", "short"),
        ("True", "Tr", "short"),
        ("5", "", "short"),
        ("True", "False", "other"),
        ("123", "1234", "other"),
        ("123", "321", "other"),
        ("a", "b", "other"),
        ("2, 3", "3, 2", "other"),
        ("2, 3", "2", "short"),
        ("0.333333333", "1/3", "other"),  # near, but not equal
        ("5", "7", "other"),  # of a single digit, every wrong one would be one digit off
        ("-5", "-7", "other"),
        ("x", "y", "other"),
        ("1234", "1234", "tie"),
        ("True", "True", "tie"),
    ],
)
def test_kinds(diagnosis, answer, predicted, kind):
    assert diagnosis.kind(answer, predicted) == kind
    assert kind in KINDS


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from("+-*"), inner).map(
                lambda t: f"({t[0]} {t[1]} {t[2]})"
            ),
            inner.map(lambda one: f"-{one}"),
            st.tuples(inner, st.integers(0, 3)).map(lambda t: f"({t[0]})**{t[1]}"),
        ),
        max_leaves=5,
    )
)
def test_arithmetic_means_what_python_says(text):
    """Built here of digits and operators, so that Python may evaluate it."""
    if len(text) <= LONGEST_ANSWER:
        (tree,) = parse(text)
        expected = eval(text)  # noqa: S307
        assert number_at(tree, (0.5, 0.5)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "2**101", "2**000000000999", "x**0000000000101",
     "1e5", "2x", "x(3)", "__import__('os')", "lambda", "sqrt", "sqrt 4",
     "(1", "1)", "", " ", "1 +", "1,,2", "x.y", "1.", "[1]", "1;2", "'a'", "11:30 PM", "xy",
     "9" * 41, "1 + " * 20 + "1", "٣", "x = 3", "1/0**"],
)  # fmt: skip
def test_anything_but_small_arithmetic_is_unreadable(text):
    with pytest.raises(UnreadableError):
        parse(text)


@given(st.text(CHARACTERS, max_size=40), st.text(max_size=10))
def test_any_text_at_all_has_a_kind_and_runs_nothing(answer, predicted):
    found = Diagnosis()
    found.has_sympy = False
    assert found.kind(answer, predicted) in KINDS
    for text in (answer, predicted):
        try:
            trees = parse(text)
        except UnreadableError:
            continue
        assert all(looks_equal(tree, tree) in (True, False) for tree in trees)


arithmetic = st.recursive(
    st.sampled_from(["0", "1", "7", "1.5", "x", "10**77", "9" * 30, "sqrt(-1)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
        st.tuples(inner, st.sampled_from([-3, 0, 2, 4, 100])).map(lambda t: f"({t[0]})**{t[1]}"),
        inner.map(lambda one: f"sqrt({one})"),
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=60)
@example("1", "(10**77)**4*(1.5+1.5*sqrt(-1))")
@given(arithmetic, arithmetic)
def test_any_arithmetic_has_a_kind(diagnosis, answer, predicted):
    """Numbers too large, divisions by zero, roots of what is negative: by numbers, then sympy."""
    assert diagnosis.kind(answer, predicted) in KINDS
    assert diagnosis.kind(answer, f"{answer}*1") in KINDS


def test_nothing_is_evaluated(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a text was evaluated")

    import sympy

    def syntax_only(source, name, mode, flags, **options):
        assert flags & ast.PyCF_ONLY_AST  # a tree, not code
        return python_compile(source, name, mode, flags, **options)

    python_compile = compile
    monkeypatch.setattr(builtins, "compile", syntax_only)
    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, forbidden)
    for name in ("sympify", "parse_expr"):
        monkeypatch.setattr(sympy, name, forbidden, raising=False)
    (one,), (other,) = parse("3/6"), parse("0.5")
    assert diagnose.prove_equal(one, other)
    assert not diagnose.prove_equal(one, parse("0.6")[0])


def test_a_proof_that_takes_too_long_is_ended_and_the_next_one_works(monkeypatch):
    with Diagnosis(seconds=1e-4) as found:
        start = time.monotonic()
        assert not found.is_equal("(x + 1)**9", "(1 + x)**9")
        assert time.monotonic() - start < 30
        assert found.n_out_of_time == 1
        found.seconds = 60
        assert found.is_equal("1/2", "2/4")
        assert found.n_out_of_time == 1


def test_sympy_is_not_started_for_what_numbers_tell_apart(monkeypatch):
    monkeypatch.setattr(diagnose, "_Prover", None)
    with Diagnosis() as found:
        assert found.kind("x**2 + 1", "x**2 + 3*x") == "other"
        assert found.kind("1/3", "0.3333333") == "other"


def test_without_sympy_values_are_what_they_look_like():
    found = Diagnosis()
    found.has_sympy = False
    assert found.kind("1/2", "0.5") == "other"


def test_a_prover_that_died_is_replaced():
    """Its time may be up in the moment after it has answered."""
    with Diagnosis(seconds=60) as found:
        assert found.is_equal("1/2", "2/4")
        found._prover._process.kill()
        found._prover._process.wait()
        assert found.is_equal("1/2", "2/4")
        assert found.n_out_of_time == 0


def test_ctrl_c_does_not_reach_the_prover():
    """A terminal interrupts the whole group of processes; sympy's would print a traceback."""
    with Diagnosis() as found:
        found.is_equal("1/2", "2/4")
        assert os.getpgid(found._prover._process.pid) != os.getpgid(0)

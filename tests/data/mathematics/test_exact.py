from fractions import Fraction
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tp_transformer.data.mathematics import exact
from tp_transformer.data.mathematics.exact import Polynomial, Surd

sympy = pytest.importorskip("sympy")

numbers = st.builds(Fraction, st.integers(-40, 40), st.sampled_from([1, 1, 1, 2, 3, 4]))
monomials = st.dictionaries(st.sampled_from("abxy"), st.integers(1, 3), max_size=3).map(
    lambda powers: tuple(sorted(powers.items()))
)
polynomials = st.dictionaries(monomials, numbers, max_size=5).map(Polynomial)
radicands = st.sampled_from([2, 3, 5, 6, 15])


def rational(number):
    return sympy.Rational(number.numerator, number.denominator)


def to_sympy(polynomial):
    return sympy.Add(
        *(
            rational(number) * prod((sympy.Symbol(name) ** n for name, n in monomial), start=1)
            for monomial, number in polynomial.terms.items()
        )
    )


@settings(max_examples=300, deadline=None)
@given(polynomials)
def test_polynomials_are_printed_as_sympy_prints_them(polynomial):
    assert str(polynomial) == str(to_sympy(polynomial))


@settings(max_examples=100, deadline=None)
@given(polynomials, polynomials)
def test_sums_and_products_are_sympys(left, right):
    assert str(left + right) == str(to_sympy(left) + to_sympy(right))
    assert str(left * right) == str(sympy.expand(to_sympy(left) * to_sympy(right)))
    assert str(exact.power(left, 2)) == str(sympy.expand(to_sympy(left) ** 2))


@settings(max_examples=100, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=5), st.integers(-9, 9))
def test_one_letter(coefficients, value):
    polynomial = Polynomial({((("x", n),) if n else ()): c for n, c in enumerate(coefficients)})
    while len(coefficients) > 1 and not coefficients[-1]:
        coefficients.pop()
    assert polynomial.all_coeffs() == coefficients[::-1]
    assert polynomial.degree("x") == len(coefficients) - 1
    assert polynomial.degree("y") == 0
    assert polynomial.subs("x", value) == sum(c * value**n for n, c in enumerate(coefficients))
    inner = exact.letter("x") * 2 + 1
    x = sympy.Symbol("x")
    expected = to_sympy(polynomial).subs(x, 2 * x + 1).expand()
    assert str(polynomial.subs("x", inner) + 0) == str(expected)


@settings(max_examples=200, deadline=None)
@given(numbers, numbers, st.sampled_from([2, 3, 5, 7, 19]))
def test_surds_are_printed_as_sympy_prints_them(a, b, c):
    expected = rational(a) + rational(b) * sympy.sqrt(c)
    assert str(Surd({1: a, c: b})) == str(expected)


@settings(max_examples=100, deadline=None)
@given(numbers, numbers, numbers.filter(bool), radicands, radicands)
def test_arithmetic_of_surds(a, b, d, m, n):
    root_m, root_n = sympy.sqrt(m), sympy.sqrt(n)
    left, right = Surd({1: a, m: b}), Surd({n: d})
    value = (rational(a) + rational(b) * root_m) * (1 + rational(d) * root_n)
    product = left * (Surd({1: 1}) + right)
    total = sum(float(number) * radicand**0.5 for radicand, number in product.terms.items())
    assert total == pytest.approx(float(value), abs=1e-6)
    assert left * right * right.inverse() == left
    assert left + -left == 0


@pytest.mark.parametrize("number", [1, 2, 4, 12, 45, 72, 1444, 9973])
def test_square_free(number):
    whole, rest = exact.square_free(number)
    assert whole**2 * rest == number
    assert sympy.sqrt(number) == whole * sympy.sqrt(rest)


@settings(max_examples=50, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=5), numbers.filter(bool))
def test_factors_are_printed_as_sympy_prints_them(roots, leading):
    x = sympy.Symbol("x")
    expanded = sympy.expand(rational(leading) * prod(x - rational(root) for root in roots))
    assert exact.factored("x", leading, roots) == str(sympy.factor(expanded))

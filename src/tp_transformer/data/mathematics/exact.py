"""Exact polynomials and surds over the rationals, formatted as by sympy.

DeepMind's generator builds expressions from small operations (`mathematics_dataset.sample.ops`),
which sympy expands and formats. The expressions are sums, products and integer powers of rational
numbers, letters and square roots; for these, a dictionary of terms gives the same result in a
fraction of the time. The tests compare every result with that of sympy.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import sqrt
from typing import Any, Self

Number = int | Fraction
# A product of powers, such as x**2*y: its factors in alphabetical order, with exponents.
Monomial = tuple[tuple[str, int], ...]


class Polynomial:
    """A sum of terms, each a rational number times powers of letters, without zero terms."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Monomial, Number]) -> None:
        self.terms = {monomial: number for monomial, number in terms.items() if number}

    @property
    def is_zero(self) -> bool:
        """Whether the sum is zero."""
        return not self.terms

    def degree(self, letter: str) -> int:
        """Return the highest power of a letter."""
        return max((dict(monomial).get(letter, 0) for monomial in self.terms), default=0)

    def all_coeffs(self) -> list[Number]:
        """Return the coefficients of the only letter, from the highest power down."""
        powers = {monomial[0][1] if monomial else 0: n for monomial, n in self.terms.items()}
        return [powers.get(power, 0) for power in range(max(powers, default=0), -1, -1)]

    def expand(self) -> Self:
        """Return the polynomial itself, because its terms are always expanded."""
        return self

    def subs(self, letter: Any, value: Any) -> Any:
        """Return the value of the polynomial of one letter at a number or a polynomial."""
        result: Any = 0
        for coefficient in self.all_coeffs():
            result = result * value + coefficient
        return result

    def __add__(self, other: "Polynomial | Number") -> "Polynomial":
        return add([self, other if isinstance(other, Polynomial) else constant(other)])

    def __mul__(self, other: "Polynomial | Number") -> "Polynomial":
        return multiply([self, other if isinstance(other, Polynomial) else constant(other)])

    __radd__, __rmul__ = __add__, __mul__

    def __str__(self) -> str:
        letters = sorted({letter for monomial in self.terms for letter, _ in monomial})

        def exponents(monomial: Monomial) -> list[int]:
            powers = dict(monomial)
            return [powers.get(letter, 0) for letter in letters]

        # Lexicographic order, the highest power of the first letter first.
        ordered = sorted(self.terms, key=exponents, reverse=True)
        terms = [(self.terms[monomial], _product(monomial)) for monomial in ordered]
        if len(terms) == 2 and len(ordered[0]) == 1:
            terms = _positive_first(terms)
        return join_terms(terms)


def constant(number: Number) -> Polynomial:
    """Return a number as a polynomial."""
    return Polynomial({(): number})


def letter(name: str) -> Polynomial:
    """Return a letter as a polynomial."""
    return Polynomial({((name, 1),): 1})


def add(summands: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of polynomials."""
    terms: defaultdict[Monomial, Number] = defaultdict(int)
    for summand in summands:
        for monomial, number in summand.terms.items():
            terms[monomial] += number
    return Polynomial(terms)


def multiply(factors: Iterable[Polynomial]) -> Polynomial:
    """Return the expanded product of polynomials; factors after a zero are not consumed."""
    product: dict[Monomial, Number] = {(): 1}
    for factor in factors:
        if factor.is_zero:
            return factor
        terms: defaultdict[Monomial, Number] = defaultdict(int)
        for left, left_number in product.items():
            for right, right_number in factor.terms.items():
                terms[_times(left, right)] += left_number * right_number
        product = terms
    return Polynomial(product)


def power(base: Polynomial, exponent: int) -> Polynomial:
    """Return a non-negative integer power, expanded."""
    if len(base.terms) == 1 and exponent:
        ((monomial, number),) = base.terms.items()
        powers = tuple((name, exponent * power) for name, power in monomial)
        return Polynomial({powers: number**exponent})
    return multiply([base] * exponent)


def _times(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    powers = dict(left)
    for name, exponent in right:
        powers[name] = powers.get(name, 0) + exponent
    return tuple(sorted(powers.items()))


class Surd:
    """A sum of rational multiples of square roots of square-free whole numbers."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[int, Number]) -> None:
        self.terms = {radicand: number for radicand, number in terms.items() if number}

    def __add__(self, other: "Surd") -> "Surd":
        terms = defaultdict(int, self.terms)
        for radicand, number in other.terms.items():
            terms[radicand] += number
        return Surd(terms)

    def __neg__(self) -> "Surd":
        return Surd({radicand: -number for radicand, number in self.terms.items()})

    def __mul__(self, other: "Surd") -> "Surd":
        terms: defaultdict[int, Number] = defaultdict(int)
        for left, left_number in self.terms.items():
            for right, right_number in other.terms.items():
                factor, radicand = square_free(left * right)
                terms[radicand] += left_number * right_number * factor
        return Surd(terms)

    def inverse(self) -> "Surd":
        """Return the reciprocal; the surd must be a single term."""
        ((radicand, number),) = self.terms.items()
        return Surd({radicand: Fraction(1, 1) / (number * radicand)})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Surd):
            return self.terms == other.terms
        return isinstance(other, int | Fraction) and self.terms == Surd({1: other}).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        # In ascending order of value.
        ordered = sorted(self.terms, key=lambda radicand: self.terms[radicand] * sqrt(radicand))
        terms = [(self.terms[r], "" if r == 1 else f"sqrt({r})") for r in ordered]
        return join_terms(_positive_first(terms) if len(terms) == 2 else terms)


@lru_cache(maxsize=4096)
def square_free(number: int) -> tuple[int, int]:
    """Factor a number into a square and a square-free number; return the root and the latter."""
    factor, divisor = 1, 2
    while divisor * divisor <= number:
        while number % (divisor * divisor) == 0:
            number //= divisor * divisor
            factor *= divisor
        divisor += 1
    return factor, number


def factored(letter: str, leading: Number, roots: Iterable[Number]) -> str:
    """Format the factors of a polynomial of one letter, from its highest coefficient and roots."""
    powers: defaultdict[tuple[int, int], int] = defaultdict(int)
    for root in roots:
        # The factor of a root p/q is q*x - p.
        powers[root.denominator, -root.numerator] += 1
        leading = Fraction(leading, root.denominator)
    factors = []
    for (slope, shift), power in sorted(powers.items(), key=lambda item: (item[0][1] != 0, item)):
        base = join_terms([(slope, letter), (shift, "")]) if shift else letter
        exponent = "" if power == 1 else f"**{power}"
        factors.append(f"({base}){exponent}" if shift else f"{base}{exponent}")
    return join_terms([(leading, "*".join(factors))])


Term = tuple[Number, str]


def join_terms(terms: Iterable[Term]) -> str:
    """Format terms as a sum: `2*x - 3` from (2, "x") and (-3, "")."""
    text = "".join(
        f" - {_term(-number, product)}" if number < 0 else f" + {_term(number, product)}"
        for number, product in terms
    )
    if not text:
        return "0"
    return text[3:] if text[1] == "+" else f"-{text[3:]}"


def _positive_first(terms: list[Term]) -> list[Term]:
    """Order two terms as in `5 - 2*x` instead of `-2*x + 5`: sympy's one exception to its order."""
    (_, first_product), (second, second_product) = terms
    if first_product and not second_product and terms[0][0] < 0 < second:
        return terms[::-1]
    return terms


def _term(number: Number, product: str) -> str:
    """Format a positive number times a product, as `3*x/4`."""
    if not product:
        return str(number)
    times = "" if number.numerator == 1 else f"{number.numerator}*"
    over = "" if number.denominator == 1 else f"/{number.denominator}"
    return f"{times}{product}{over}"


def _product(monomial: Monomial) -> str:
    return "*".join(name if power == 1 else f"{name}**{power}" for name, power in monomial)


class Applied:
    """A function applied to arguments, such as f(x), formatted as by sympy."""

    def __init__(self, name: str, arguments: str) -> None:
        self.name = name
        self.text = f"{name}({arguments})"

    def __str__(self) -> str:
        return self.text

    def __rmul__(self, factor: Any) -> "Combination":
        return Combination([(factor, self)])


class Combination:
    """A sum of functions with integers or letters as factors, formatted as by sympy."""

    def __init__(self, terms: list[tuple[Any, Applied]]) -> None:
        self.terms = terms

    def __add__(self, other: "Combination") -> "Combination":
        return Combination(self.terms + other.terms)

    def __str__(self) -> str:
        lettered = sorted(
            (factor.name, applied.text) for factor, applied in self.terms if factor.is_Symbol
        )
        counted = sorted(
            (applied.name, int(factor), applied.text)
            for factor, applied in self.terms
            if not factor.is_Symbol
        )
        # Terms with letters come first.
        products = [(1, f"{letter}*{text}") for letter, text in lettered]
        return join_terms([*products, *((n, text) for _, n, text in counted)])


def trial_division(n: int) -> dict[int, int]:
    """Return the prime factors of a positive number, in ascending order, with multiplicities."""
    factors: dict[int, int] = {}
    divisor = 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            factors[divisor] = factors.get(divisor, 0) + 1
            n //= divisor
        divisor += 1 if divisor == 2 else 2
    if n > 1:
        factors[n] = factors.get(n, 0) + 1
    return factors


def determinant(rows: list[list[Any]]) -> int:
    """Replaces `sympy.det` for the 1 x 1 and 2 x 2 integer matrices that occur."""
    if len(rows) == 1:
        return int(rows[0][0])
    (a, b), (c, d) = rows
    return int(a) * int(d) - int(b) * int(c)

"""Faster replacements of the slowest parts of DeepMind's generator, with the same texts.

The generator spends nearly all of its time in sympy, whose general expressions it uses for small
exact arithmetic. The docstring of each function names what it replaces and why the result is the
same; `symbolic` has those for expressions. Random numbers are drawn in the same number and order,
up to the last one that the text depends on; draws after that one have no effect, because each
redraw is seeded separately.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from tp_transformer.data.mathematics import symbolic
from tp_transformer.data.mathematics.deepmind import Generator, TooLongError, generator, view
from tp_transformer.data.mathematics.exact import Number, Surd
from tp_transformer.data.mathematics.symbolic import Conversions, NotExactError, Patches, rational
from tp_transformer.data.vocabulary import MAX_ANSWER


class Replacements:
    """Replacements of attributes of DeepMind's modules and classes, switched on by `use`."""

    def __init__(self, generator: Generator) -> None:
        conversions = Conversions(generator)
        parts = (
            *(_sympy_views, _numbers, _comparisons, _probability),
            *(symbolic.operations, symbolic.values, symbolic.polynomials),
            *(symbolic.roots, symbolic.compositions),
        )
        self._new = [patch for part in parts for patch in part(generator, conversions)]
        self._old = [(owner, name, vars(owner).get(name)) for owner, name, _ in self._new]
        self._in_use = False

    def use(self, fast: bool) -> None:
        """Switch the replacements on, or restore DeepMind's own code."""
        if fast == self._in_use:
            return
        for owner, name, value in self._new if fast else self._old:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._in_use = fast


@cache
def replacements() -> Replacements:
    """Return the replacements for the generator of this process."""
    return Replacements(generator())


def _sympy_views(generator: Generator, conversions: Conversions) -> Patches:
    """Replace names of sympy in all files of the package, and some in single files."""
    sympy = conversions.sympy
    letter = cache(sympy.Symbol)
    names: dict[str, Any] = _number_names(sympy) | {
        "factor": lambda text: text,  # see `symbolic.roots`
        "var": letter,
    }
    called = {"Symbol": letter, "Function": symbolic.function_factory(conversions)}
    special: dict[str, dict[str, Any]] = {
        "util.composition": called,
        "sample.ops": {"Function": symbolic.Applied},  # only as a type
        "sample.linear_system": {"Matrix": list, "det": determinant},
        # `expand` and `Poly(...).all_coeffs()` of a polynomial with brackets.
        "modules.polynomials": called
        | {"expand": conversions.polynomial, "Poly": conversions.polynomial},
        "modules.arithmetic": _surd_names(conversions),
        "modules.algebra": called,
        "modules.calculus": called,
    }
    for name, file in generator.files.items():
        if hasattr(file, "sympy"):
            yield file, "sympy", view(sympy, **names | special.get(name, {}))


def _number_names(sympy: Any) -> dict[str, Any]:
    """Return replacements of functions of sympy for numbers."""

    def part(name: str, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Replaces `numer` and `denom`, which treat numbers as general expressions."""

        def numerator_or_denominator(value: Any) -> Any:
            number = sympy.sympify(value)
            return sympy.Integer(getattr(number, name)) if number.is_Rational else original(value)

        return numerator_or_denominator

    def common(function: Callable[..., int], original: Callable[..., Any]) -> Callable[..., Any]:
        """Replaces `gcd` and `lcm` of integers."""

        def divisor_or_multiple(*values: Any) -> Any:
            integers = values[0] if len(values) == 1 else values
            try:
                return sympy.Integer(function(*map(operator.index, integers)))
            except TypeError:
                return original(*values)

        return divisor_or_multiple

    def compare(relation: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        """Replaces a relation of sympy between numbers."""
        return lambda left, right: relation(_exact_value(left), _exact_value(right))

    relations = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
    return {
        "factorint": _factors(sympy.factorint),
        "numer": part("p", sympy.numer),
        "denom": part("q", sympy.denom),
        "gcd": common(math.gcd, sympy.gcd),
        "lcm": common(math.lcm, sympy.lcm),
        "FiniteSet": lambda *values: {sympy.sympify(value) for value in values},
        "default_sort_key": _exact_value,
    } | {relation.__name__.title(): compare(relation) for relation in relations}


def _surd_names(conversions: Conversions) -> dict[str, Any]:
    """Return replacements of functions of sympy for surds."""

    def simplify(op: Any) -> Any:
        """Replaces `sympy.simplify` for surds, which all have the form a + b*sqrt(c)."""
        try:
            return conversions.surd(op)
        except NotExactError:
            return conversions.sympy.simplify(op)

    def expand(simplified: Any) -> Any:
        """Replaces `sympy.expand` for the results of `simplify`."""
        is_surd = isinstance(simplified, Surd)
        return simplified if is_surd else conversions.sympy.expand(simplified)

    return {"simplify": simplify, "expand": expand}


def _exact_value(value: Any) -> Number:
    """Convert a number, also a `display.Decimal`, to Python."""
    return rational(value._sympy_() if hasattr(value, "_sympy_") else value)


def _factors(factorint: Callable[[int], dict[int, int]]) -> Callable[[Any], dict[int, int]]:
    def factors(n: Any) -> dict[int, int]:
        """Replaces `sympy.factorint`: small numbers by trial division, also in ascending order."""
        n = int(n)
        return trial_division(n) if 0 < n < 1_000_000 else factorint(n)

    return factors


def _numbers(generator: Generator, conversions: Conversions) -> Patches:
    number: Any = generator.files["sample.number"]
    factors = _factors(conversions.sympy.factorint)
    randint = generator.random.randint
    whole = conversions.sympy.Integer

    def density(value: Any) -> float:
        """Replaces `number._coprime_density`: the same product, rounded in the same order."""
        product = 1.0
        for prime in factors(value):
            product *= 1 - 1 / prime
        return product

    def integer(entropy: float, signed: bool, min_abs: int = 0, coprime_to: Any = 1) -> Any:
        """Replaces `number.integer`: `math.gcd` instead of `sympy.gcd`, which takes 0.05 ms."""
        coprime = abs(int(coprime_to))
        size = math.pow(10, entropy) + min_abs
        if coprime >= 2:
            size = size / density(coprime) + 1
        high = math.ceil(size / 2) if signed else math.ceil(size)
        low = -high if signed else min_abs
        while True:
            value = randint(low, high)
            if abs(value) >= min_abs and math.gcd(value, coprime) == 1:
                return whole(value)

    yield number, "integer", integer
    for name in ("modules.arithmetic", "modules.comparison", "modules.polynomials", "util.display"):
        yield generator.files[name], "round", nearest_integer


def nearest_integer(value: Any) -> Any:
    """Replaces `round` for numbers of sympy, which it rounds in decimal to at least 15 digits.

    If the value is near to a half, where these digits matter, sympy rounds.
    """
    ratio = (int(value.p), int(value.q)) if hasattr(value, "q") else float(value).as_integer_ratio()
    numerator, denominator = ratio
    distance = abs(2 * (numerator % denominator) - denominator)
    if distance * 10**12 > 2 * abs(numerator):
        return (2 * numerator + denominator) // (2 * denominator)
    return round(value)


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


def _comparisons(generator: Generator, conversions: Conversions) -> Patches:
    comparison: Any = generator.files["modules.comparison"]
    original = comparison._unique_values

    def unique_values(entropy: float, only_integers: Any = None, count: Any = None) -> list[Any]:
        """Replaces `_unique_values`: stops early if the answer is certain to be too long.

        Only `sort_more` gives a number of values and whether they are integers; its answer lists
        the values. 204 of 205 of its draws are longer than 30 characters.
        """
        values = original(entropy, bool(only_integers), count)
        if count is not None and only_integers is not None:
            length = sum(len(str(value)) + len(", ") for value in values) - len(", ")
            if length > MAX_ANSWER:
                raise TooLongError
        return values

    yield comparison, "_unique_values", unique_values


def _probability(generator: Generator, conversions: Conversions) -> Patches:
    probability: Any = generator.files["util.probability"]
    product_inverse = probability.FiniteProductRandomVariable.inverse

    class Level(probability.SequenceEvent):  # type: ignore[misc]
        """All sequences with given numbers of given letters, counted instead of listed."""

        def __init__(self, counts: dict[str, int], available: dict[str, int]) -> None:
            self.pairs = [(available[letter], count) for letter, count in counts.items()]
            arrangements = math.factorial(sum(counts.values()))
            for present, count in self.pairs:
                arrangements = arrangements // math.factorial(count) * present**count
            super().__init__(range(arrangements))

    def inverse(variable: Any, event: Any) -> Any:
        """Replaces `FiniteProductRandomVariable.inverse` for counts of letters."""
        if not isinstance(event, probability.CountLevelSetEvent):
            return product_inverse(variable, event)
        letters = variable._random_variables[0]._inverse
        return Level(event.counts, {letter: len(places) for letter, places in letters.items()})

    def chance(space: Any, event: Any) -> Fraction:
        """Replaces `SampleWithoutReplacementSpace.probability`: counting, as all weights are equal.

        Counts of letters have the multivariate hypergeometric probability; in a sequence, the
        probability of a letter is proportional to the number of it that has not been drawn yet.
        """
        total, drawn = len(space._weights), space.n_samples
        if isinstance(event, Level):
            ways = math.prod(math.comb(present, count) for present, count in event.pairs)
            return Fraction(ways, math.comb(total, drawn))
        ways, seen = 1, Counter[int]()
        for places in (part.values for part in event.events):
            ways *= len(places) - seen[min(places)]
            seen[min(places)] += 1
        return Fraction(ways, math.perm(total, drawn))

    yield probability.FiniteProductRandomVariable, "inverse", inverse
    yield probability.SampleWithoutReplacementSpace, "probability", chance
    yield probability, "normalize_weights", lambda weights: weights

"""Faster replacements of the slowest parts of DeepMind's generator, with the same texts.

The generator spends nearly all of its time in sympy, whose general expressions it uses for small
exact arithmetic. The docstring of each function names what it replaces and why the result is the
same. Random numbers are drawn in the same number and order, up to the last one that the text
depends on; draws after that one have no effect, because each redraw is seeded separately.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

from tp_transformer.data.mathematics import exact
from tp_transformer.data.mathematics.deepmind import Generator, TooLongError, generator, view
from tp_transformer.data.mathematics.exact import Polynomial, Surd
from tp_transformer.data.mathematics.modules import MAX_ANSWER

# An attribute of a module or class of DeepMind's package: its owner, its name, its new value.
Patches = Iterator[tuple[Any, str, Any]]


class Replacements:
    """Replacements of attributes of DeepMind's modules and classes, switched on by `use`."""

    def __init__(self, generator: Generator) -> None:
        parts = (_numbers, _operations, _polynomials, _comparisons, _probability)
        self._new = [patch for part in parts for patch in part(generator)]
        self._old = [(owner, name, getattr(owner, name)) for owner, name, _ in self._new]
        self._in_use = False

    def use(self, fast: bool) -> None:
        """Switch the replacements on, or restore DeepMind's own code."""
        if fast == self._in_use:
            return
        for owner, name, value in self._new if fast else self._old:
            setattr(owner, name, value)
        self._in_use = fast


@cache
def replacements() -> Replacements:
    """Return the replacements for the generator of this process."""
    return Replacements(generator())


def _numbers(generator: Generator) -> Patches:
    number: Any = generator.files["sample.number"]
    linear_system: Any = generator.files["sample.linear_system"]
    sympy: Any = number.sympy
    factorint = sympy.factorint
    randint = generator.random.randint
    whole = sympy.Integer

    def factors(n: Any) -> dict[int, int]:
        """Replaces `sympy.factorint`: small numbers by trial division, also in ascending order."""
        n = int(n)
        return trial_division(n) if 0 < n < 1_000_000 else factorint(n)

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
    yield sympy, "factorint", factors
    yield linear_system, "sympy", view(sympy, Matrix=list, det=determinant)


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


class NotExactError(Exception):
    """Raised for an expression that is neither a polynomial nor a surd, which needs sympy."""


def _operations(generator: Generator) -> Patches:
    ops: Any = generator.files["sample.ops"]
    to_polynomial, to_surd = _to_polynomial(ops), _to_surd(ops)
    originals = {kind: kind.sympy for kind in (ops.Add, ops.Mul, ops.Sub, ops.Div)}

    def value(op: Any) -> Any:
        """Replaces `Op.sympy`: the expanded value, which is all that callers use."""
        for convert in (to_polynomial, to_surd):
            try:
                return convert(op)
            except NotExactError:
                pass
        return originals[type(op)](op)

    def for_sympy(op: Any) -> Any:
        """Replaces `Op._sympy_`, by which sympy converts an operation to an expression."""
        return originals.get(type(op), type(op).sympy)(op)

    for kind in originals:
        yield kind, "sympy", value
    yield ops.Op, "_sympy_", for_sympy


def _to_polynomial(ops: Any) -> Callable[[Any], Polynomial]:
    """Return a function from an operation to the equal polynomial."""

    def convert(op: Any) -> Polynomial:
        match op:
            case ops.Constant():
                return constant(op.value)
            case ops.Add():
                return exact.add(convert(child) for child in op.children)
            case ops.Mul():
                return exact.multiply(convert(child) for child in op.children)
            case ops.Neg():
                return convert(op.children["input"]) * -1
            case ops.Pow():
                return exact.power(convert(op.children["a"]), exponent(op.children["b"]))
        raise NotExactError

    def constant(value: Any) -> Polynomial:
        if isinstance(value, ops.sympy.Symbol):
            return exact.letter(value.name)
        return exact.constant(rational(value))

    return convert


def _to_surd(ops: Any) -> Callable[[Any], Surd]:
    """Return a function from an operation to the equal surd."""

    def convert(op: Any) -> Surd:
        match op:
            case ops.Constant():
                return Surd({1: rational(op.value)})
            case ops.Sqrt():
                whole, radicand = exact.square_free(int(op.children["a"].value))
                return Surd({radicand: whole})
            case ops.Add():
                return sum((convert(child) for child in op.children), start=Surd({}))
            case ops.Sub():
                return convert(op.children["left"]) + -convert(op.children["right"])
            case ops.Mul():
                return math.prod((convert(child) for child in op.children), start=Surd({1: 1}))
            case ops.Div():
                return convert(op.children["numer"]) * inverse(convert(op.children["denom"]))
            case ops.Pow():
                base = convert(op.children["a"])
                return math.prod([base] * exponent(op.children["b"]), start=Surd({1: 1}))
        raise NotExactError

    return convert


def exponent(op: Any) -> int:
    """Return the value of an operation that is an exponent, an integer of at least 0."""
    power = rational(op.value)
    if not isinstance(power, int) or power < 0:
        raise NotExactError
    return power


def inverse(surd: Surd) -> Surd:
    """Return the reciprocal of a surd of one term; the generator divides by no other."""
    if len(surd.terms) != 1:
        raise NotExactError
    return surd.inverse()


def rational(value: Any) -> exact.Number:
    """Convert an integer or fraction of Python, numpy or sympy to Python."""
    if hasattr(value, "q"):
        return int(value.p) if value.q == 1 else Fraction(int(value.p), int(value.q))
    try:
        return int(value)
    except TypeError:
        raise NotExactError from None


def _polynomials(generator: Generator) -> Patches:
    ops: Any = generator.files["sample.ops"]
    number: Any = generator.files["sample.number"]
    sampling: Any = generator.files["sample.polynomials"]
    to_polynomial, to_surd = _to_polynomial(ops), _to_surd(ops)
    sympy = number.sympy
    random, dirichlet = generator.random, generator.numpy_random.dirichlet

    def degree(op: Any, variable: Any) -> int:
        """Replaces `_degree_of_variable`, without the expansion of sympy."""
        return to_polynomial(op).degree(variable.name)

    def integers_with_sum(value: Any, count: Any, entropy: float) -> list[Any]:
        """Replaces the function of the same name: the same draws, with Python's integers."""
        if count < 2:
            return [value] * int(count)
        least = max(1, math.log10(5 * abs(math.ceil(value / count)) + 1))
        entropies = entropy * (count / (count - 1)) * dirichlet([1.0] * int(count))
        terms = [int(number.integer(max(least, share), signed=True)) for share in entropies]
        rest = int(value) - sum(terms)
        terms = [term + (rest + i) // int(count) for i, term in enumerate(terms)]
        random.shuffle(terms)
        return [sympy.Integer(term) for term in terms]

    def simplify(op: Any) -> Any:
        """Replaces `sympy.simplify` for surds, which all have the form a + b*sqrt(c)."""
        try:
            return to_surd(op)
        except NotExactError:
            return sympy.simplify(op)

    def expand(simplified: Any) -> Any:
        """Replaces `sympy.expand` for the results of `simplify`."""
        return simplified if isinstance(simplified, Surd) else sympy.expand(simplified)

    yield sampling, "_degree_of_variable", degree
    yield sampling, "integers_with_sum", integers_with_sum
    # The other uses there: `expand` and `Poly(...).all_coeffs()` of a polynomial with brackets.
    expanding = view(sympy, expand=to_polynomial, Poly=to_polynomial)
    yield generator.files["modules.polynomials"], "sympy", expanding
    surds = view(sympy, simplify=simplify, expand=expand)
    yield generator.files["modules.arithmetic"], "sympy", surds


def _comparisons(generator: Generator) -> Patches:
    comparison: Any = generator.files["modules.comparison"]
    sympy: Any = comparison.sympy
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

    distinct = view(sympy, FiniteSet=lambda *values: {sympy.sympify(value) for value in values})
    yield comparison, "sympy", distinct
    yield comparison, "_unique_values", unique_values


def _probability(generator: Generator) -> Patches:
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

"""Faster replacements of the slowest parts of DeepMind's generator, with the same texts.

The generator spends nearly all of its time in sympy, whose general expressions it uses for small
exact arithmetic, and to expand, factor and format expressions of its own operations
(`mathematics_dataset.sample.ops`). Here `exact` computes the same results. The docstring of each
function names what it replaces and why the result is the same. Random numbers are drawn in the same
number and order, up to the last one that the text depends on; draws after that one have no effect,
because each redraw is seeded separately.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import cache
from typing import Any

from tp_transformer.data.mathematics import exact
from tp_transformer.data.mathematics.deepmind import Generator, TooLongError, generator, view
from tp_transformer.data.mathematics.exact import (
    Applied,
    Number,
    Polynomial,
    Surd,
    determinant,
    trial_division,
)
from tp_transformer.data.vocabulary import MAX_ANSWER

# An attribute of a module or class of DeepMind's package: its owner, its name, its new value.
Patches = Iterator[tuple[Any, str, Any]]


class NotExactError(Exception):
    """Raised for an expression that is neither a polynomial nor a surd, which needs sympy."""


def rational(value: Any) -> exact.Number:
    """Convert an integer or fraction of Python, numpy or sympy to Python."""
    if hasattr(value, "q"):
        return int(value.p) if value.q == 1 else Fraction(int(value.p), int(value.q))
    try:
        return int(value)
    except TypeError:
        raise NotExactError from None


class Conversions:
    """Conversions of operations to polynomials and surds, and of numbers to sympy and to text."""

    def __init__(self, generator: Generator) -> None:
        ops: Any = generator.files["sample.ops"]
        self.sympy: Any = generator.files["sample.number"].sympy
        self._to_polynomial: dict[type, Callable[[Any], Polynomial]] = {
            ops.Constant: self._constant,
            ops.Add: lambda op: exact.add(map(self.polynomial, op.children)),
            ops.Mul: lambda op: exact.multiply(map(self.polynomial, op.children)),
            ops.Neg: lambda op: self.polynomial(op.children["input"]) * -1,
            ops.Pow: lambda op: exact.power(
                self.polynomial(op.children["a"]), exponent(op.children["b"])
            ),
        }
        self._to_surd: dict[type, Callable[[Any], Surd]] = {
            ops.Constant: lambda op: Surd({1: rational(op.value)}),
            ops.Sqrt: square_root,
            ops.Add: lambda op: sum(map(self.surd, op.children), start=Surd({})),
            ops.Sub: lambda op: self.surd(op.children["left"]) + -self.surd(op.children["right"]),
            ops.Mul: lambda op: math.prod(map(self.surd, op.children), start=Surd({1: 1})),
            ops.Div: lambda op: (
                self.surd(op.children["numer"]) * inverse(self.surd(op.children["denom"]))
            ),
            ops.Pow: lambda op: math.prod(
                [self.surd(op.children["a"])] * exponent(op.children["b"]), start=Surd({1: 1})
            ),
        }

    def polynomial(self, op: Any) -> Polynomial:
        """Return the polynomial that equals an operation."""
        if (convert := self._to_polynomial.get(type(op))) is None:
            raise NotExactError
        return convert(op)

    def surd(self, op: Any) -> Surd:
        """Return the surd that equals an operation."""
        if (convert := self._to_surd.get(type(op))) is None:
            raise NotExactError
        return convert(op)

    def _constant(self, op: Any) -> Polynomial:
        if isinstance(op.value, self.sympy.Symbol):
            return exact.letter(op.value.name)
        return exact.constant(rational(op.value))

    def number(self, value: exact.Number) -> Any:
        """Convert an integer or fraction of Python to sympy."""
        if value.denominator == 1:
            return self.sympy.Integer(value.numerator)
        return self.sympy.Rational(value.numerator, value.denominator)

    def text(self, value: Any) -> Any:
        """Return the text of a number or letter of sympy; another value is returned as it is."""
        if isinstance(value, self.sympy.Symbol):
            return value.name
        if isinstance(value, self.sympy.Rational):
            return str(value.p) if value.q == 1 else f"{value.p}/{value.q}"
        return value


def square_root(op: Any) -> Surd:
    """Return the surd that equals the square root of an integer."""
    factor, radicand = exact.square_free(int(op.children["a"].value))
    return Surd({radicand: factor})


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


def _values(generator: Generator, conversions: Conversions) -> Patches:
    """Replace the conversion of operations to sympy."""
    ops: Any = generator.files["sample.ops"]
    originals = {kind: kind.sympy for kind in (ops.Add, ops.Mul, ops.Sub, ops.Div)}

    def value(op: Any) -> Any:
        """Replaces `Op.sympy`: the expanded value, which is all that callers use."""
        for convert in (conversions.polynomial, conversions.surd):
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


def _operations(generator: Generator, conversions: Conversions) -> Patches:
    """Replace the construction of operations and the text of constants."""
    ops: Any = generator.files["sample.ops"]

    def operand(child: Any) -> Any:
        return child if isinstance(child, ops.Op) else ops.Constant(child)

    def initialise(op: Any, children: Any) -> None:
        """Replaces `Op.__init__`, which sorts named operands and packs them again."""
        if isinstance(children, dict):
            op._children = {name: operand(children[name]) for name in sorted(children)}
        else:
            op._children = [operand(child) for child in children]

    def initialise_constant(op: Any, value: Any) -> None:
        """Replaces `Constant.__init__`."""
        op._children = []
        op._value = conversions.sympy.Integer(value) if isinstance(value, int) else value

    def descendants(op: Any) -> list[Any]:
        """Replaces `Op.descendants`: the operation, then its operands, depth first."""
        children = op._children.values() if isinstance(op._children, dict) else op._children
        return [op, *(descendant for child in children for descendant in child.descendants())]

    yield ops.Op, "__init__", initialise
    yield ops.Op, "descendants", descendants
    yield ops.Constant, "__init__", initialise_constant
    yield ops.Constant, "__str__", lambda op: str(conversions.text(op._value))


def _polynomials(generator: Generator, conversions: Conversions) -> Patches:
    """Replace the sampling of polynomials."""
    number: Any = generator.files["sample.number"]
    sampling: Any = generator.files["sample.polynomials"]
    sympy = conversions.sympy
    random, dirichlet = generator.random, generator.numpy_random.dirichlet

    def degree(op: Any, variable: Any) -> int:
        """Replaces `_degree_of_variable`, without the expansion of sympy."""
        return conversions.polynomial(op).degree(variable.name)

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

    def solve_linear(c: Any, a: Any, b: Any, t: Any) -> tuple[Any, Any]:
        """Replaces sympy's `base_solution_linear`: the same solution, with Python's integers.

        It solves a*x + b*y = c; the generator chooses a and b so that a solution exists.
        """
        a, b, c, t = int(a), int(b), int(c), int(t)
        divisor = math.gcd(a, b, c)
        a, b, c = a // divisor, b // divisor, c // divisor
        x, y, _ = sympy.core.intfunc.igcdex(abs(a), abs(b)) if c else (0, 0, 1)
        x, y, t = (x if a > 0 else -x), (y if b > 0 else -y), (t if b >= 0 else -t)
        return sympy.Integer(c * x + b * t), sympy.Integer(c * y - a * t)

    yield sampling, "_degree_of_variable", degree
    yield sampling, "integers_with_sum", integers_with_sum
    yield sampling, "diophantine_solve_linear_2d", solve_linear


class Roots(list[Any]):
    """Coefficients of a polynomial, the constant first, with its roots."""

    def __init__(self, coefficients: Iterable[Any], roots: list[exact.Number]) -> None:
        super().__init__(coefficients)
        self.roots = roots


def _roots(generator: Generator, conversions: Conversions) -> Patches:
    """Replace the expansion and factorisation of polynomials with known roots."""
    algebra: Any = generator.files["modules.algebra"]
    number: Any = generator.files["sample.number"]

    def coefficients_with_roots(roots: list[Any], scale_entropy: float) -> Roots:
        """Replaces `_polynomial_coeffs_with_roots`: the same draws and coefficients."""
        exact_roots = [rational(root) for root in roots]
        coefficients: list[exact.Number] = [1]
        for root in exact_roots:
            shifted: list[exact.Number] = [0, *coefficients]
            for i, coefficient in enumerate(coefficients):
                shifted[i] -= root * coefficient
            coefficients = shifted
        scale: exact.Number = 1
        if scale_entropy > 0:
            scale = 0
            while not scale:
                scale = rational(number.integer_or_rational(scale_entropy, signed=True))
        scale *= math.lcm(*(coefficient.denominator for coefficient in coefficients))
        return Roots((conversions.number(c * scale) for c in coefficients), exact_roots)

    def factored(coefficients: Roots, variable: Any) -> str:
        """Replaces the conversion to an expression for `factor`: the factors, from the roots.

        No later draw affects the text, so the terms are not shuffled.
        """
        return exact.factored(variable.name, rational(coefficients[-1]), coefficients.roots)

    yield algebra, "_polynomial_coeffs_with_roots", coefficients_with_roots
    sampling = view(algebra.polynomials, coefficients_to_polynomial=factored)
    yield algebra, "polynomials", sampling


def _compositions(generator: Generator, conversions: Conversions) -> Patches:
    """Replace how entities are inserted into the text of a question."""
    composition: Any = generator.files["util.composition"]
    original = composition.expand_entities

    def expand_entities(context: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        """Replaces `expand_entities`: numbers and letters become text without sympy's printer."""
        prefix, values = original(context, **kwargs)
        return prefix, {name: conversions.text(value) for name, value in values.items()}

    yield composition, "expand_entities", expand_entities


def function_factory(conversions: Conversions) -> Callable[[str], Callable[..., Applied]]:
    """Return a replacement of `sympy.Function`, whose results are only formatted or combined."""
    sympify = conversions.sympy.sympify

    def function(name: str) -> Callable[..., Applied]:
        def apply(*arguments: Any) -> Applied:
            values = (a if isinstance(a, Applied) else sympify(a) for a in arguments)
            return Applied(name, ", ".join(str(conversions.text(value)) for value in values))

        return apply

    return function


class Replacements:
    """Replacements of attributes of DeepMind's modules and classes, switched on by `use`."""

    def __init__(self, generator: Generator) -> None:
        conversions = Conversions(generator)
        groups = (
            *(_sympy_views, _numbers, _comparisons, _probability),
            *(_operations, _values, _polynomials, _roots, _compositions),
        )
        self._new = [patch for group in groups for patch in group(generator, conversions)]
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
        "factor": lambda text: text,  # see `_roots`
        "var": letter,
    }
    called = {"Symbol": letter, "Function": function_factory(conversions)}
    special: dict[str, dict[str, Any]] = {
        "util.composition": called,
        "sample.ops": {"Function": Applied},  # only as a type
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
    to_integer = conversions.sympy.Integer

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
                return to_integer(value)

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
        return Level(event.counts, {letter: len(indices) for letter, indices in letters.items()})

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
        for indices in (choice.values for choice in event.events):
            ways *= len(indices) - seen[min(indices)]
            seen[min(indices)] += 1
        return Fraction(ways, math.perm(total, drawn))

    yield probability.FiniteProductRandomVariable, "inverse", inverse
    yield probability.SampleWithoutReplacementSpace, "probability", chance
    yield probability, "normalize_weights", lambda weights: weights

"""Faster replacements of the expressions of DeepMind's generator, with the same texts.

The generator writes expressions with operations of its own (`mathematics_dataset.sample.ops`), and
converts them to sympy to expand, factor or format them. Here `exact` computes the same results.
The docstring of each function names what it replaces and why the result is the same.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

from tp_transformer.data.mathematics import exact
from tp_transformer.data.mathematics.deepmind import Generator, view
from tp_transformer.data.mathematics.exact import Polynomial, Surd

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
    whole, radicand = exact.square_free(int(op.children["a"].value))
    return Surd({radicand: whole})


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


def values(generator: Generator, conversions: Conversions) -> Patches:
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


def operations(generator: Generator, conversions: Conversions) -> Patches:
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


def polynomials(generator: Generator, conversions: Conversions) -> Patches:
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


def roots(generator: Generator, conversions: Conversions) -> Patches:
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
        return exact.join_terms([*products, *((n, text) for _, n, text in counted)])


def compositions(generator: Generator, conversions: Conversions) -> Patches:
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

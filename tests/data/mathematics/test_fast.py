"""The replacements give the text of DeepMind's own code, for the same address."""

import pytest

from tp_transformer.data.mathematics.modules import KEYS

pytest.importorskip("mathematics_dataset")

from tp_transformer.data.mathematics.deepmind import MAX_ANSWER, Address, TooLongError, generator
from tp_transformer.data.mathematics.exact import determinant, trial_division
from tp_transformer.data.mathematics.fast import (
    Conversions,
    function_factory,
    nearest_integer,
    replacements,
)
from tp_transformer.data.mathematics.produce import question_at

# DeepMind's code lists up to 200,000 cases for one question of these.
SECONDS_EACH = [key for key in KEYS if key[1].endswith("more_samples")]


def draw(split, module, entropy, *, fast):
    """The texts of one draw; None where the answer is too long, at once or in the end."""
    with generator().session():
        replacements().use(fast)
        try:
            texts = generator().draw(split, module, entropy)
        except TooLongError:
            return None
    too_long = module == "comparison__sort_more" and len(texts[1]) > MAX_ANSWER
    return None if too_long else texts


@pytest.mark.parametrize(("split", "module"), [key for key in KEYS if key not in SECONDS_EACH])
def test_same_text(split, module):
    assert_same(split, module, seed=1, count=4)


@pytest.mark.slow
@pytest.mark.parametrize(("split", "module"), KEYS)
def test_same_text_for_many(split, module):
    assert_same(split, module, seed=2, count=10 if (split, module) in SECONDS_EACH else 200)


def assert_same(split, module, *, seed, count):
    for index in range(count):
        entropy = Address(module=module, split=split, seed=seed, index=index).entropy(0)
        slow, fast = (draw(split, module, entropy, fast=fast) for fast in (False, True))
        assert fast == slow


def test_same_redraws():
    """The composed sortings are often too long, so that the third or fourth draw counts."""
    for index in range(8):
        slow, fast = (
            question_at("comparison__sort_composed", "interpolate", index=index, fast=fast)
            for fast in (False, True)
        )
        assert fast == slow


def test_the_replacements_come_off():
    number = generator().files["sample.number"]
    display = generator().files["util.display"]
    with generator().session():
        replacements().use(False)
        original = number.integer
        replacements().use(True)
        assert number.integer is not original
        assert hasattr(display, "round")
        replacements().use(False)
        assert number.integer is original
        assert not hasattr(display, "round")


def test_small_arithmetic():
    sympy = pytest.importorskip("sympy")
    for n in [*range(1, 200), 65536, 999_983, 999_999]:
        assert list(trial_division(n).items()) == sorted(sympy.factorint(n).items())
    assert determinant([[5]]) == 5
    assert determinant([[1, 2], [3, 4]]) == -2


def test_numbers_are_rounded_as_by_sympy():
    """Also near to a half, where sympy considers only 15 digits."""
    sympy = pytest.importorskip("sympy")
    halves = [sympy.Rational(2 * n + 1, 2) for n in (-3, -2, 0, 1, 123_456)]
    nearly = [half + sign * sympy.Rational(1, 10**n) for half in halves for sign in (1, -1)
              for n in (3, 9, 12, 15, 17, 20)]  # fmt: skip
    others = [sympy.Rational(n, d) for n in (-100, -7, 0, 1, 8, 10**9) for d in (1, 3, 7, 1000)]
    roots = [sympy.Integer(n) ** (1 / d) for n in (2, 6, 30, 12_345, 10**9) for d in (2, 3, 10)]
    for value in (*halves, *nearly, *others, *roots):
        assert nearest_integer(value) == round(value)


@pytest.mark.parametrize("factors", ["3 4", "-1 1", "7 -2", "a -3", "5 b", "k b", "-9 a"])
@pytest.mark.parametrize("names", ["fg", "gf", "cx"])
def test_sums_of_functions_are_printed_as_by_sympy(factors, names):
    sympy = pytest.importorskip("sympy")
    function = function_factory(Conversions(generator()))
    left, right = (sympy.sympify(factor) for factor in factors.split())
    texts = []
    for make in (sympy.Function, function):
        first, second = (make(name) for name in names)
        inner = second(sympy.Rational(1, 2))
        texts.append([str(left * first(sympy.Symbol("t")) + right * second(sympy.Symbol("t")))])
        texts[-1] += [str(first(inner)), str(first(sympy.Integer(-3), sympy.Symbol("y")))]
    assert texts[0] == texts[1]

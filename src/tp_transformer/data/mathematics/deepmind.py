"""Adapter of DeepMind's generator for current libraries, with reproducible questions.

`mathematics_dataset` 1.0.1 is used as published: its files are not edited and its code is not
copied. Its modules use random numbers and libraries through three names that they import, `random`,
`np` and `sympy`. In that package only, these names are bound to replacements, which supply what has
been removed from the libraries since 2019 and use separate random generators, so that a question
depends only on its address.

Other influences on a question, and how they are removed:

- `random` and `numpy.random` are global, so other threads affect them: `_Random`, and a separate
  `RandomState` in `_numpy_view`.
- `numbers__is_prime*` draws primes from the generator of sympy: `randprime` in `_sympy_view`.
- sympy caches factors of large numbers and then returns them in another order, so that earlier
  questions affect later ones: `factorint` in `_sympy_view` returns them in ascending order.
- An unused letter is taken from a set of strings, in the order of `PYTHONHASHSEED`: `_pop`.
- The order of "Let ..." sentences is that of a set of objects hashed by address:
  `_expand_entities`.
"""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from tp_transformer.data.mathematics.modules import (
    EXTRAPOLATE,
    INTERPOLATE,
    MAX_QUESTION,
    TRAIN_SPLITS,
)
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.vocabulary import MAX_ANSWER
from tp_transformer.errors import UserError

# About 1 in 205 draws of `comparison__sort_more` has a short enough answer: the probability of
# 20,000 failures in a row is 1e-42.
MAX_REDRAWS = 20_000

_PACKAGE = "mathematics_dataset"
_FILES = (
    *(f"modules.{area}" for area in MATHEMATICS.areas),
    *(f"sample.{name}" for name in ("arithmetic", "linear_system", "number", "ops", "polynomials")),
    *(f"util.{name}" for name in ("combinatorics", "composition", "display", "probability")),
)
# Must be changed with any change that affects which question an address gives.
_EDITION = b"tpt-questions-1"

# The names are bound for the whole process, so only one thread draws at a time.
_LOCK = threading.RLock()


class TooLongError(Exception):
    """Raised in a draw that is already known to be too long."""


Sampler = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Address:
    """The address of a question: everything that it depends on.

    `attempt` counts the redraws of a test question that occurs in training.
    """

    module: str
    split: str
    seed: int = 0
    index: int = 0
    attempt: int = 0

    def entropy(self, redraw: int) -> bytes:
        """Return 64 bytes that differ from those of all other addresses and redraws."""
        fields = (self.module, self.split, self.seed, self.index, self.attempt, redraw)
        text = "/".join(map(str, fields))
        return hashlib.blake2b(text.encode(), digest_size=64, person=_EDITION).digest()


class Generator:
    """DeepMind's package with replaced names; one per process, used by one thread at a time."""

    def __init__(self) -> None:
        self.random = _Random()
        self.numpy_random = np.random.RandomState()
        self.files = _import_package()
        self._sympy_random = import_module("sympy.core.random")
        self._bind_names()
        self.samplers = self.make_samplers()

    def _bind_names(self) -> None:
        numpy_view, sympy_view = _numpy_view(self.numpy_random), _sympy_view(self.random)
        views = {"random": self.random, "np": numpy_view, "sympy": sympy_view}
        for file in self.files.values():
            for name in views.keys() & vars(file).keys():
                setattr(file, name, views[name])
        composition: Any = self.files["util.composition"]
        composition.Context.pop = _pop(self.random, sorted(composition._ALLOWED_SYMBOLS))
        composition.expand_entities = partial(_expand_entities, self.random, composition.Entity)

    def make_samplers(self) -> dict[tuple[str, str], Sampler]:
        """The function of DeepMind's package for each (split, module), bound to its difficulty."""
        samplers = {}
        for area in MATHEMATICS.areas:
            file: Any = self.files[f"modules.{area}"]
            by_split = {INTERPOLATE: file.test(), EXTRAPOLATE: file.test_extra()}
            for level, split in enumerate(TRAIN_SPLITS):
                by_split[split] = file.train(partial(_third, level))
            for split, by_name in by_split.items():
                for name, sampler in by_name.items():
                    samplers[split, f"{area}__{name}"] = sampler
        return samplers

    def draw(self, split: str, module: str, entropy: bytes) -> tuple[str, str]:
        """Draw a question and its answer, of any length, seeded with 64 bytes."""
        self.random.seed(int.from_bytes(entropy[:32], "little"))
        self.numpy_random.seed(np.frombuffer(entropy[32:], dtype="<u4"))
        self._sympy_random.seed(int.from_bytes(entropy[:8], "little"))
        problem = self.samplers[split, module]()
        return str(problem.question), str(problem.answer)

    def question(self, address: Address) -> tuple[str, str]:
        """Return the question and the answer at an address, within the published lengths."""
        for redraw in range(MAX_REDRAWS):
            try:
                question, answer = self.draw(address.split, address.module, address.entropy(redraw))
            except (TooLongError, AssertionError):
                continue  # some draws fail an assertion of DeepMind's code
            if len(question) <= MAX_QUESTION and len(answer) <= MAX_ANSWER:
                return question, answer
        raise RuntimeError(f"{MAX_REDRAWS} draws in a row were too long or failed: {address}")

    @contextmanager
    def session(self) -> Iterator[None]:
        """Reserve the generator for this thread; restore the random state of sympy at the end."""
        rngs = [self._sympy_random.rng, self._sympy_random._assumptions_rng]
        with _LOCK:
            states = [rng.getstate() for rng in rngs]
            try:
                yield
            finally:
                for rng, state in zip(rngs, states, strict=True):
                    rng.setstate(state)


def generator() -> Generator:
    """Return the generator of this process."""
    with _LOCK:
        return _generator()


@cache
def _generator() -> Generator:
    return Generator()


class _Random(random.Random):
    """Python's generator, which accepts whole floats as bounds, as it did until Python 3.12."""

    def randint(self, a: Any, b: Any) -> int:
        return super().randint(int(a), int(b))


class _Array(np.ndarray[Any, Any]):
    """An array with `itemset`, which numpy 2 removed."""

    def itemset(self, index: Any, value: Any) -> None:
        self[index] = value


def _numpy_view(rng: np.random.RandomState) -> ModuleType:
    def with_itemset(make: Callable[..., npt.NDArray[Any]]) -> Callable[..., npt.NDArray[Any]]:
        return lambda *args, **kwargs: make(*args, **kwargs).view(_Array)

    return view(
        np,
        object=object,
        zeros=with_itemset(np.zeros),
        empty=with_itemset(np.empty),
        random=SimpleNamespace(dirichlet=rng.dirichlet, randint=rng.randint, binomial=rng.binomial),
    )


def _sympy_view(rng: random.Random) -> ModuleType:
    sympy: Any = import_module("sympy")

    def factorint(n: Any) -> dict[int, int]:
        # -1 stays last, as in sympy.
        return dict(sorted(sympy.factorint(n).items(), key=lambda item: (item[0] < 0, item[0])))

    def randprime(low: Any, high: Any) -> int:
        low, high = int(low), int(high)
        prime = sympy.nextprime(rng.randint(low - 1, high))
        return cast(int, prime if prime < high else sympy.prevprime(high))

    primes = SimpleNamespace(randprime=randprime, nextprime=sympy.nextprime)
    # `sympy.var` would also write the letter into the globals of its caller.
    return view(
        sympy,
        factorint=factorint,
        ntheory=SimpleNamespace(generate=primes),
        var=sympy.Symbol,
    )


def view(module: ModuleType, **changed: Any) -> ModuleType:
    """Return a module with the same names, except for those that are replaced."""
    view = ModuleType(module.__name__)
    vars(view).update(vars(module))
    vars(view).update(changed)
    return view


def _pop(rng: random.Random, letters: list[str]) -> Callable[[Any], str]:
    def pop(context: Any) -> str:
        """Choose an unused letter, in alphabetical order instead of the order of a set."""
        used = context._relation_symbols | context._self_symbols | context._child_symbols
        allowed = [letter for letter in letters if letter not in used]
        if not allowed:
            raise ValueError("every letter is used")
        letter = rng.choice(allowed)
        context._self_symbols.add(letter)
        return letter

    return pop


def _expand_entities(
    rng: random.Random, entity_type: Any, context: Any, **kwargs: Any
) -> tuple[str, dict[str, Any]]:
    """Describe the entities of a question, shuffled from the order of their creation."""
    named = {key: value for key, value in kwargs.items() if isinstance(value, entity_type)}
    entities: list[Any] = list(dict.fromkeys([*context.child_entities, *named.values()]))
    kwargs |= {key: entity.handle for key, entity in named.items()}
    rng.shuffle(entities)
    sentences = []
    for entity in entities:
        sentences.append(entity.child_description)
        if not entity.expression_used:
            sentences.append(entity.description)
    return " ".join(filter(None, sentences)), kwargs


def _third(level: int, limits: tuple[float, float]) -> tuple[float, float]:
    """Return the easy, medium or hard third of a range of entropies."""
    low, high = limits
    length = high - low
    return low + level / 3 * length, low + (level + 1) / 3 * length


def _import_package() -> dict[str, ModuleType]:
    """Return the files of DeepMind's package that generate questions, by their path in it."""
    try:
        moved: Any = import_module("sympy.solvers.diophantine")
        home: Any = import_module("sympy.solvers.diophantine.diophantine")
        import_module(_PACKAGE)
    except ImportError as error:
        raise UserError(
            "generating questions needs DeepMind's generator: "
            "pip install 'tp-transformer[generate]'"
        ) from error
    # The package imports this function from its location of 2019.
    absent = not hasattr(moved, "base_solution_linear")
    if absent:
        moved.base_solution_linear = home.base_solution_linear
    try:
        return {name: import_module(f"{_PACKAGE}.{name}") for name in _FILES}
    finally:
        if absent:
            del moved.base_solution_linear

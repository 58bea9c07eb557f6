"""Associative recall with keys of two parts: a test of binding.

A question has a key, and a list of keys with their values. A key has two parts. The key asked for
is one of four that combine two first parts with two second parts, and keys of the four that share a
part have different values. So neither part alone determines the value, and the list does not tell
which of the four is asked for. The answer goes through the list, with a dash for each other key, up
to the value:

    k3 m7 ? k8 m1 v6 k3 m1 v5 k3 m7 v2 k8 m7 v4    ->    - - v2

With the option `steps=False`, the answer is the value only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from tp_transformer.data.task import TASKS, TRAIN, Row, Task
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import Seed, Size

TEST, UNSEEN, LONGER = "test", "unseen", "longer"
OTHER_KEY = "-"  # in an answer, for a key that is not the one asked for
_MODULE = "recall"
_FEWEST_PAIRS = 4  # two first parts with two second parts
_UNSEEN_SHARE = 0.1  # of the keys
_BLOCK = 1024  # questions drawn at once
_MOST_EMPTY_BLOCKS = 20  # before the questions are said to be exhausted

Integers = npt.NDArray[np.int64]


@TASKS.register("recall")
def recall(
    *,
    parts: Size = 4,
    values: Size = 8,
    pairs: Size = 4,
    count: Size = 50_000,
    test_count: Size = 2000,
    steps: bool = True,
    seed: Seed = 0,
) -> Task:
    """Recall the value of a key of two parts, neither of which determines the value alone.

    Args:
        parts: number of first parts and of second parts of keys
        values: number of values
        pairs: keys with values in a question; twice as many in the split `longer`
        count: training questions
        test_count: questions of each test split
        steps: whether an answer has a dash for each key that is listed before the one asked for
        seed: seed of the questions
    """
    draw = _Draw(parts=parts, values=values, steps=steps, seed=seed)
    sizes = {
        TRAIN: (count, pairs, draw.trained),
        TEST: (test_count, pairs, draw.trained),
        UNSEEN: (test_count, pairs, draw.unseen),
        LONGER: (test_count, 2 * pairs, draw.trained),
    }
    draw.check(pairs)

    def rows() -> Iterator[Row]:
        known: set[str] = set()
        for number, (split, (n, n_pairs, asked)) in enumerate(sizes.items()):
            rng = np.random.default_rng([seed, number])
            for question, answer in draw.distinct(n, n_pairs, asked, known, rng):
                yield Row(split, _MODULE, question, answer)

    return Task(
        name="recall",
        vocabulary=Vocabulary.of([" ".join(draw.words)], "words"),
        splits=dict.fromkeys(sizes, (_MODULE,)),
        titles={UNSEEN: "Unseen keys", LONGER: "Longer lists"},
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """Random questions with a number of parts and of values; a key is a number."""

    parts: int
    values: int
    steps: bool
    seed: int

    @property
    def words(self) -> list[str]:
        """The words of all questions and answers."""
        named = (("k", self.parts), ("m", self.parts), ("v", self.values))
        return [f"{letter}{i}" for letter, n in named for i in range(n)] + ["?", OTHER_KEY]

    @property
    def unseen(self) -> Integers:
        """The keys that no training question asks for."""
        n_keys = self.parts**2
        order = np.random.default_rng(self.seed).permutation(n_keys)
        return order[: max(1, round(_UNSEEN_SHARE * n_keys))]

    @property
    def trained(self) -> Integers:
        """The keys that training questions ask for."""
        return np.setdiff1d(np.arange(self.parts**2), self.unseen)

    def check(self, pairs: int) -> None:
        """Raise an error if there are no questions of these sizes."""
        for name, size, least in (
            ("parts", self.parts, 2),
            ("values", self.values, 2),
            ("pairs", pairs, _FEWEST_PAIRS),
        ):
            if size < least:
                raise SettingsError(f"{name} must be {least} or more, not {size}")
        if 2 * pairs > self.parts**2:
            raise SettingsError(
                f"there are {self.parts**2} keys, too few for lists of {2 * pairs}; "
                "take more parts or fewer pairs"
            )

    def distinct(
        self, count: int, pairs: int, asked: Integers, known: set[str], rng: np.random.Generator
    ) -> Iterator[tuple[str, str]]:
        """Yield questions with answers that are not among the known ones, and add them to those."""
        n_left, n_empty = count, 0
        while n_left:
            n_before = n_left
            for question, answer in self._block(pairs, asked, rng):
                if n_left and question not in known:
                    known.add(question)
                    n_left -= 1
                    yield question, answer
            n_empty = n_empty + 1 if n_left == n_before else 0
            if n_empty == _MOST_EMPTY_BLOCKS:
                raise SettingsError(
                    f"there are not enough different questions: {n_left:,} of {count:,} are "
                    "missing; take more parts, values or pairs, or ask for fewer questions"
                )

    def _block(
        self, pairs: int, asked: Integers, rng: np.random.Generator
    ) -> Iterator[tuple[str, str]]:
        """Yield random questions with answers, drawn together."""
        value = rng.integers(self.values, size=(_BLOCK, pairs))
        # Of the four keys, the first and the last share a part with the second and the third.
        differ = (value[:, 0:1] != value[:, 1:3]) & (value[:, 3:4] != value[:, 1:3])
        value = value[differ.all(axis=1)]
        n, rows = len(value), np.arange(len(value))
        first, second = np.divmod(rng.choice(asked, n), self.parts)
        other_first = (first + rng.integers(1, self.parts, n)) % self.parts
        other_second = (second + rng.integers(1, self.parts, n)) % self.parts
        corners = product((first, other_first), (second, other_second))
        four = [first_part * self.parts + second_part for first_part, second_part in corners]
        # The further keys are those with the largest random numbers.
        scores = rng.random((n, self.parts**2))
        for key in four:
            scores[rows, key] = -1
        further = np.argsort(-scores, axis=1)[:, : pairs - len(four)]
        keys = np.column_stack([*four, further])
        order = np.argsort(rng.random(value.shape), axis=1)
        listed, listed_value = (np.take_along_axis(array, order, 1) for array in (keys, value))
        for row, row_values, key in zip(
            listed.tolist(), listed_value.tolist(), four[0].tolist(), strict=True
        ):
            entries = (f"{self._name(i)} v{j}" for i, j in zip(row, row_values, strict=True))
            index = row.index(key)
            dashes = f"{OTHER_KEY} " * index if self.steps else ""
            yield f"{self._name(key)} ? {' '.join(entries)}", f"{dashes}v{row_values[index]}"

    def _name(self, key: int) -> str:
        return f"k{key // self.parts} m{key % self.parts}"

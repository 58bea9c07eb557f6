"""Compositional table lookup: a test of composition and of its depth.

Liška, Kruszewski and Baroni (2018), "Memorize or generalize? Searching for a compositional RNN in a
haystack". A table maps each bit string to another, one to one. A question is a bit string and the
tables to apply to it, from left to right:

    010 t3 t1    ->    t3(010) t1(t3(010))

An answer has the result of each table, or with the option `steps=False` of the last one only.
"""

from collections.abc import Iterator
from itertools import accumulate, product, starmap

import numpy as np

from tp_transformer.data.task import TASKS, TRAIN, Row, Task
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import OpenShare, Seed, Size

TEST, DEEPER = "test", "deeper"
_MOST_QUESTIONS = 2_000_000  # of the trained depths

Composition = tuple[int, ...]


@TASKS.register("lookup")
def lookup(
    *,
    tables: Size = 8,
    bits: Size = 3,
    depth: Size = 3,
    deeper: Size = 2,
    test_share: OpenShare = 0.1,
    deeper_count: Size = 2000,
    steps: bool = True,
    seed: Seed = 0,
) -> Task:
    """Apply lookup tables one after another to a bit string (Liška et al., 2018).

    Args:
        tables: number of tables
        bits: length of the bit strings
        depth: number of tables in the longest training questions
        deeper: number of further depths, which the split `deeper` has
        test_share: share of the compositions of two or more tables that are only tested
        deeper_count: questions of each further depth
        steps: whether an answer has the result of each table, not of the last one only
        seed: seed of the tables and of the questions
    """
    _check_sizes(tables, bits, depth)
    rng = np.random.default_rng([seed, 0])
    maps = [rng.permutation(2**bits).tolist() for _ in range(tables)]
    strings = [f"{number:0{bits}b}" for number in range(2**bits)]

    def questions() -> Iterator[tuple[str, Composition, int]]:
        rng = np.random.default_rng([seed, 1])
        for n_tables in range(1, depth + 1):
            for composition in product(range(tables), repeat=n_tables):
                is_tested = n_tables > 1 and rng.random() < test_share
                for start in range(2**bits):
                    yield TEST if is_tested else TRAIN, composition, start
        for n_tables in range(depth + 1, depth + deeper + 1):
            for composition, start in _random(n_tables, tables, 2**bits, deeper_count, rng):
                yield DEEPER, composition, start

    def row(split: str, composition: Composition, start: int) -> Row:
        values = accumulate(composition, lambda value, table: maps[table][value], initial=start)
        results = [strings[value] for value in values][1:]
        names = " ".join(f"t{table + 1}" for table in composition)
        answer = " ".join(results if steps else results[-1:])
        return Row(split, _module(len(composition)), f"{strings[start]} {names}", answer)

    words = [*strings, *(f"t{table + 1}" for table in range(tables))]
    return Task(
        name="lookup",
        vocabulary=Vocabulary.of([" ".join(words)], "words"),
        splits={
            TRAIN: tuple(map(_module, range(1, depth + 1))),
            TEST: tuple(map(_module, range(2, depth + 1))),
            DEEPER: tuple(map(_module, range(depth + 1, depth + deeper + 1))),
        },
        titles={TEST: "Unseen compositions", DEEPER: "Deeper compositions"},
        rows=lambda: starmap(row, questions()),
    )


def _check_sizes(tables: int, bits: int, depth: int) -> None:
    if depth < 2:
        raise SettingsError(f"depth must be 2 or more, not {depth}")
    if max(bits, depth) > 30 or 2**bits * tables**depth > _MOST_QUESTIONS:
        raise SettingsError(
            f"{tables} tables of {bits} bits to depth {depth} have more than {_MOST_QUESTIONS:,} "
            "questions; take fewer tables, fewer bits or less depth"
        )


def _module(n_tables: int) -> str:
    return f"depth-{n_tables}"


def _random(
    n_tables: int, tables: int, n_strings: int, count: int, rng: np.random.Generator
) -> Iterator[tuple[Composition, int]]:
    """Yield distinct compositions with strings, `count` of them, or all if there are fewer."""
    n_all = n_strings * tables**n_tables  # exceeds 63 bits only if it is far above `count`
    known: set[tuple[Composition, int]] = set()
    while len(known) < min(count, n_all):
        composition = tuple(rng.integers(tables, size=n_tables).tolist())
        question = composition, int(rng.integers(n_strings))
        if question not in known:
            known.add(question)
            yield question

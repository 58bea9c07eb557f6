"""Every position of a sample's questions: its character and what it is in the expression."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tp_transformer.interpret.expressions import Expression, parse
from tp_transformer.interpret.record import symbols
from tp_transformer.interpret.structure import LABELS, labels, unreversed_sides

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Every position of a sample's questions, one after another."""

    questions: tuple[str, ...]
    expressions: tuple[Expression | None, ...]
    question: Integers  # (position,): of which question
    characters: str
    labels: dict[str, list[str | None]]
    unreversed_sides: list[str | None]

    @classmethod
    def of(cls, questions: Sequence[str]) -> "Positions":
        """Parse the questions; where there is no expression there are no labels."""
        expressions = tuple(map(parse, questions))
        found: dict[str, list[str | None]] = {name: [] for name in LABELS}
        unreversed: list[str | None] = []
        for question, expression in zip(questions, expressions, strict=True):
            none: list[str | None] = [None] * len(symbols(question))
            own = None if expression is None else labels(expression)
            for name in LABELS:
                found[name] += none if own is None else own[name]
            unreversed += none if expression is None else unreversed_sides(expression)
        lengths = [len(symbols(question)) for question in questions]
        return cls(
            questions=tuple(questions),
            expressions=expressions,
            question=np.repeat(np.arange(len(questions)), lengths),
            characters="".join(map(symbols, questions)),
            labels=found,
            unreversed_sides=unreversed,
        )

    @property
    def longest(self) -> int:
        """The most positions of a question."""
        return int(np.bincount(self.question).max())

    def split(self, values: Integers) -> tuple[Integers, ...]:
        """The values of all positions, question by question."""
        return tuple(np.split(values, np.flatnonzero(np.diff(self.question)) + 1))

    def character_features(self, reach: int) -> npt.NDArray[np.float64]:
        """What can be known without a model: a position's number, its character, its neighbours.

        Each is one-hot. Beyond a question's ends the neighbour is none.
        """
        alphabet = sorted(set(self.characters))
        number = {character: i + 1 for i, character in enumerate(alphabet)}
        rows = []
        for question in self.questions:
            ids = [number[character] for character in symbols(question)]
            padded = np.pad(ids, reach)
            windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
            rows.append(np.column_stack([windows, np.arange(len(ids))]))
        columns = np.concatenate(rows).T
        return np.concatenate([np.eye(column.max() + 1)[column] for column in columns], axis=1)

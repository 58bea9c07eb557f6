"""Every source position of a sample: its character, and its labels in the question."""

from dataclasses import dataclass

import numpy as np

from tp_transformer.interpret.core.arrays import Floats, Integers
from tp_transformer.interpret.core.sample import Sample, token_characters
from tp_transformer.interpret.core.structure import LABELS, labels, unreversed_sides
from tp_transformer.interpret.core.wording import WORDING_LABELS, question_labels


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The source positions of all questions of a sample, concatenated."""

    questions: tuple[str, ...]
    question: Integers  # (position,): the index of the question
    characters: str
    labels: dict[str, list[str | None]]
    unreversed_sides: list[str | None]

    @classmethod
    def of(cls, sample: Sample) -> "Positions":
        """Collect the positions; labels of expressions come first, and also if there are none."""
        found: dict[str, list[str | None]] = {name: [] for name in (*LABELS, *WORDING_LABELS)}
        unreversed: list[str | None] = []
        texts = [token_characters(question) for question in sample.questions]
        for text, expression in zip(texts, sample.expressions, strict=True):
            none: list[str | None] = [None] * len(text)
            own = question_labels(text[1:-1]) if expression is None else labels(expression)
            for name, values in found.items():
                values += own.get(name, none)
            unreversed += none if expression is None else unreversed_sides(expression)
        return cls(
            questions=sample.questions,
            question=np.repeat(np.arange(len(texts)), list(map(len, texts))),
            characters="".join(texts),
            labels={
                name: values
                for name, values in found.items()
                if name in LABELS or any(value is not None for value in values)
            },
            unreversed_sides=unreversed,
        )

    @property
    def longest(self) -> int:
        """The number of positions of the longest question."""
        return int(np.bincount(self.question).max())

    def split(self, values: Integers) -> tuple[Integers, ...]:
        """Split values of all positions by question."""
        return tuple(np.split(values, np.flatnonzero(np.diff(self.question)) + 1))

    def character_features(self, reach: int) -> Floats:
        """Return features of the text alone, one-hot: (position, feature).

        They are the index of the position, its character, and `reach` characters on each side,
        with a class of its own for neighbours beyond the ends of the question.
        """
        alphabet = sorted(set(self.characters))
        ids_of = {character: i + 1 for i, character in enumerate(alphabet)}
        rows = []
        for question in self.questions:
            ids = [ids_of[character] for character in token_characters(question)]
            padded = np.pad(ids, reach)
            windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
            rows.append(np.column_stack([windows, np.arange(len(ids))]))
        columns = np.concatenate(rows).T
        return np.concatenate([np.eye(column.max() + 1)[column] for column in columns], axis=1)

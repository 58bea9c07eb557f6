"""Which questions of a store a model is asked."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from tp_transformer.data.permutation import key_of, permute
from tp_transformer.data.store import TRAIN, Segment, Split, Store
from tp_transformer.data.vocabulary import Ids, Ragged, Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import Count, Seed, check_fields
from tp_transformer.scoring.verdict import passes

_TEXTS_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to ask.

    Attributes:
        modules: names of modules, or patterns such as arithmetic__*
        splits: of the store; all that it has when absent
        train_count: questions of each module's training split, drawn at random
        seed: another one draws others
    """

    modules: tuple[str, ...] = ("*",)
    splits: tuple[str, ...] | None = None
    train_count: Count = 1000
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Asked:
    """The questions of one module in one split: all of them, or those drawn."""

    split: str
    module: str
    rows: Ids  # ascending
    sha256: str  # of the questions and answers; two results with the same one can be paired


def choose(store: Store, choice: Choice, held_out: Ids | None = None) -> list[Asked]:
    """The questions to ask, in the order of the splits and modules.

    Of the training split not those held out, which the model never trained on.
    """
    store.task.match(choice.modules, TRAIN)  # refuses what cannot match in any split
    names = list(store)
    if choice.splits is not None:
        names = [name for name in store if name in choice.splits]
        for name in choice.splits:
            _ = store[name]  # refuses what is not there
    found = []
    for name in names:
        for module, segments in _by_module(store[name], choice.modules).items():
            rows = _rows(store[name], module, segments, choice, held_out)
            found.append(_asked(name, module, segments, rows))
    found = [asked for asked in found if len(asked.rows)]
    if not found:
        raise SettingsError(f"{store.path} has no question of that choice of modules and splits")
    return found


def _by_module(split: Split, patterns: Sequence[str]) -> dict[str, list[Segment]]:
    by_module: dict[str, list[Segment]] = {}
    for segment in split.select(patterns):
        by_module.setdefault(segment.module, []).append(segment)
    return by_module


def _rows(
    split: Split, module: str, segments: Sequence[Segment], choice: Choice, held_out: Ids | None
) -> Ids:
    """The rows of a module to ask: all of them, or for training so many that were trained on."""
    rows = np.concatenate([np.arange(one.start, one.start + one.count) for one in segments])
    if split.name != TRAIN:
        return rows
    left_out = np.zeros(0, np.int64) if held_out is None else held_out
    left_out = np.concatenate(
        [left_out[(left_out >= one.start) & (left_out < one.start + one.count)] for one in segments]
    )
    # Drawn first and then left out: models with other rows held out get nearly the same questions.
    n_drawn = choice.train_count + len(left_out)
    if n_drawn < len(rows):
        key = key_of(choice.seed, split.task.place(TRAIN, module))
        rows = rows[permute(np.arange(n_drawn), len(rows), key)]
    rows = rows[~np.isin(rows, left_out)]
    return np.sort(rows[: choice.train_count])


def _asked(split: str, module: str, segments: Sequence[Segment], rows: Ids) -> Asked:
    content = [[one.difficulty, one.count, one.checksum] for one in segments]
    digest = hashlib.sha256(json.dumps(content).encode())
    # Counted from the module's first row, so that the store's other modules do not matter.
    digest.update((rows - segments[0].start).astype("<i8").tobytes())
    return Asked(split, module, rows, digest.hexdigest())


class Questions(Sequence[Asked]):
    """All questions that are asked; one's number is its place among them."""

    def __init__(self, store: Store, asked: Sequence[Asked]) -> None:
        self.store = store
        self._asked = list(asked)
        self._rows = np.concatenate([one.rows for one in asked])
        self._starts = np.cumsum([0, *(len(one.rows) for one in asked)])
        lengths = [store[one.split].lengths(one.rows) for one in asked]
        self.question_lengths, self.answer_lengths = (
            np.concatenate(column) for column in zip(*lengths, strict=True)
        )

    @overload
    def __getitem__(self, place: int) -> Asked: ...

    @overload
    def __getitem__(self, place: slice) -> list[Asked]: ...

    def __getitem__(self, place: int | slice) -> Asked | list[Asked]:
        return self._asked[place]

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def n(self) -> int:
        """How many questions there are."""
        return len(self._rows)

    def numbers(self, place: int) -> Ids:
        """The numbers of the questions of one module and split."""
        return np.arange(self._starts[place], self._starts[place + 1])

    def find(self, number: int) -> dict[str, str | int]:
        """The split, module and row of a question."""
        one = self._asked[int(np.searchsorted(self._starts, number, side="right")) - 1]
        return {"split": one.split, "module": one.module, "row": int(self._rows[number])}

    def passes(self, numbers: Ids, limit: int) -> Iterator[Ids]:
        """Questions in passes of at most `limit` tokens, each within one split."""
        for of_split in self._by_split(numbers):
            sources, targets = self.question_lengths[of_split] + 2, self.answer_lengths[of_split]
            for chosen in passes(sources, targets + 1, limit):
                yield of_split[chosen]

    def tokens(self, numbers: Ids, vocabulary: Vocabulary) -> tuple[Ragged, Ragged]:
        """The questions and answers of a pass as ids."""
        split = self.find(int(numbers[0]))["split"]
        return self.store[str(split)].tokens(self._rows[numbers], vocabulary)

    def texts(self, numbers: Ids) -> Iterator[tuple[int, str, str]]:
        """The number, question and answer of some questions, a few in memory at a time."""
        for of_split in self._by_split(numbers):
            split = self.store[str(self.find(int(of_split[0]))["split"])]
            for start in range(0, len(of_split), _TEXTS_AT_ONCE):
                chosen = of_split[start : start + _TEXTS_AT_ONCE]
                yield from zip(chosen.tolist(), *split.rows(self._rows[chosen]), strict=True)

    def _by_split(self, numbers: Ids) -> Iterator[Ids]:
        """Ascending numbers, split by split."""
        for name in dict.fromkeys(one.split for one in self._asked):
            places = [place for place, one in enumerate(self._asked) if one.split == name]
            start, end = self._starts[places[0]], self._starts[places[-1] + 1]
            of_split = numbers[(numbers >= start) & (numbers < end)]
            if len(of_split):
                yield of_split

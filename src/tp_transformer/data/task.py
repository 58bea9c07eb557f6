"""Tasks: tokens, modules and splits of questions and answers.

The description of a task is written into the stores of its questions, so that code that reads a
store or results needs nothing else. A task of another package is a function with a decorator:

>>> @TASKS.register("mine")
... def mine(*, count: int = 1000) -> Task: ...
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, NamedTuple, cast

import msgspec

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.registry import Registry

TRAIN = "train"

NAME = re.compile(r"\w[\w-]{0,99}")  # of a task or a split, which is a file
_MOST_LISTED = 20  # number of modules that an error message lists
_MaxLength = Annotated[int, msgspec.Meta(ge=1)] | None


class Row(NamedTuple):
    """A question with its answer, its split and its module."""

    split: str
    module: str
    question: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """The description of a set of questions and answers.

    Attributes:
        name: of the task
        vocabulary: the tokens of questions and answers
        splits: the modules of each split, in the order of their rows. A module is a group of
            questions that are scored together. `train` is trained on, all others are for tests.
        difficulties: the difficulties of training questions, the easiest first
        continues: the training module that a module of a test split continues, where the names
            differ
        area_separator: the text between the area and the rest of the name of a module
        titles: display names of splits
        max_question: tokens of the longest question; absent means any number
        max_answer: tokens of the longest answer; absent means any number
        rows: yields all questions of a generated task; not saved
    """

    name: str
    vocabulary: Vocabulary
    splits: Mapping[str, tuple[str, ...]]
    difficulties: tuple[str, ...] = ()
    continues: Mapping[str, str] = field(default_factory=dict)
    area_separator: str | None = None
    titles: Mapping[str, str] = field(default_factory=dict)
    max_question: _MaxLength = None
    max_answer: _MaxLength = None
    rows: Callable[[], Iterable[Row]] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for split, modules in self.splits.items():
            if not NAME.fullmatch(split):
                raise ValueError(
                    f"the split name {split!r} must be usable as a file name "
                    "(letters, digits, _ and -)"
                )
            if not modules or not all(modules) or len(set(modules)) != len(modules):
                raise ValueError(f"{split} must have modules with different names")

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The modules of all splits."""
        return tuple(dict.fromkeys(name for names in self.splits.values() for name in names))

    @cached_property
    def test_splits(self) -> tuple[str, ...]:
        """The splits for testing."""
        return tuple(split for split in self.splits if split != TRAIN)

    @cached_property
    def areas(self) -> tuple[str, ...]:
        """The areas of all modules; a single area without a name if modules have none."""
        return tuple(dict.fromkeys(map(self.area, self.modules)))

    def area(self, module: str) -> str:
        """The area of a module."""
        return module.partition(self.area_separator)[0] if self.area_separator else ""

    def title(self, split: str) -> str:
        """Return the name of a split for tables."""
        return self.titles.get(split, split.capitalize())

    @cached_property
    def _indices(self) -> dict[str, dict[str, int]]:
        return {
            split: {name: index for index, name in enumerate(names)}
            for split, names in self.splits.items()
        }

    def has(self, split: str, module: str) -> bool:
        """Whether a split has a module."""
        return module in self._indices.get(split, ())

    def index_of(self, split: str, module: str) -> int:
        """The index of a module in the order of a split."""
        return self._indices[split][module]

    def rank(self, split: str, module: str, difficulty: str | None) -> tuple[int, int]:
        """Return the rank of a module and difficulty in the order of the rows of a split."""
        levels = self.difficulties
        return self.index_of(split, module), levels.index(difficulty) if difficulty else len(levels)

    def match(self, patterns: str | Iterable[str], split: str) -> tuple[str, ...]:
        """Return the modules of a split that match a pattern, such as `arithmetic__*`.

        A module that continues another one matches by either name, so that the same patterns can be
        used for all splits. A pattern that matches no module of any split is an error; the result
        can still be empty, because not every split has every module.
        """
        chosen = [patterns] if isinstance(patterns, str) else list(patterns)
        for pattern in chosen:
            if not any(fnmatchcase(name, pattern) for name in self.modules):
                raise SettingsError(self._no_match(pattern))
        return tuple(
            name
            for name in self.splits.get(split, ())
            if any(
                fnmatchcase(name, pattern) or fnmatchcase(self.continues.get(name, name), pattern)
                for pattern in chosen
            )
        )

    def _no_match(self, pattern: str) -> str:
        near = difflib.get_close_matches(pattern, self.modules, n=3)
        meant = f" (the nearest are {', '.join(near)})" if near else ""
        if self.area_separator:
            example = f"as in '{self.area(self.modules[0])}{self.area_separator}*'"
            there = f"{example}, and the areas are {', '.join(self.areas)}"
        else:
            more = ", …" if len(self.modules) > _MOST_LISTED else ""
            there = f"and the modules are {', '.join(self.modules[:_MOST_LISTED])}{more}"
        return f"no module matches {pattern!r}{meant}; `*` matches any characters, {there}"

    def to_json(self) -> dict[str, Any]:
        """Return the values to write as JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        del values["rows"]
        values["vocabulary"] = self.vocabulary.to_json()
        return cast(dict[str, Any], json.loads(json.dumps(values)))  # tuples become lists

    @classmethod
    def from_json(cls, values: Any) -> "Task":
        """Return what `to_json` converted; raise a ValueError for invalid values."""
        if not isinstance(values, dict):
            raise ValueError("the task must be a mapping")
        vocabulary = Vocabulary.from_json(values.get("vocabulary"))
        return msgspec.convert({**values, "vocabulary": vocabulary, "rows": None}, cls)


TASKS: Registry[Callable[..., Task]] = Registry("task")

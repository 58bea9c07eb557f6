"""Tasks: tokens, modules and splits of questions and answers.

The description of a task is written into the stores of its questions, so that code that reads a
store or results needs nothing else. A task of another package is a function with a decorator:

>>> @TASKS.register("mine")
... def mine(*, count: int = 1000) -> Task: ...
"""

import difflib
import json
import re
import reprlib
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from types import NoneType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import PositiveInt
from tp_transformer.registry import Registry

TRAIN = "train"

SPLIT_NAME = re.compile(r"\w[\w-]{0,99}")  # a split is a file
_MOST_LISTED = 20  # number of modules that an error message lists
_MOST = 2**63 - 1  # the type of numbers of rows and bytes
_JSON_NAMES: dict[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
_NOT_SAVED = {"saved": False}  # metadata of a field that is not in a file

T = TypeVar("T")


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
    max_question: PositiveInt | None = None
    max_answer: PositiveInt | None = None
    rows: Callable[[], Iterable[Row]] | None = field(
        default=None, compare=False, repr=False, metadata=_NOT_SAVED
    )

    def __post_init__(self) -> None:
        for split, modules in self.splits.items():
            if not SPLIT_NAME.fullmatch(split):
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
    def _places(self) -> dict[str, dict[str, int]]:
        return {
            split: {name: place for place, name in enumerate(names)}
            for split, names in self.splits.items()
        }

    def has(self, split: str, module: str) -> bool:
        """Whether a split has a module."""
        return module in self._places.get(split, ())

    def place(self, split: str, module: str) -> int:
        """The place of a module in the order of a split."""
        return self._places[split][module]

    def rank(self, split: str, module: str, difficulty: str | None) -> tuple[int, int]:
        """Return the rank of a module and difficulty in the order of the rows of a split."""
        levels = self.difficulties
        return self.place(split, module), levels.index(difficulty) if difficulty else len(levels)

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
        values = {name: getattr(self, name) for name in _saved_fields(Task)}
        values["vocabulary"] = self.vocabulary.to_json()
        return cast(dict[str, Any], json.loads(json.dumps(values)))  # tuples become lists

    @classmethod
    def from_json(cls, values: Any) -> "Task":
        """Return what `to_json` converted; raise a ValueError for invalid values."""
        return read_fields(cls, values, "task")


TASKS: Registry[Callable[..., Task]] = Registry("task")


def read_fields(kind: type[T], value: Any, where: str) -> T:
    """Convert a mapping of JSON to a dataclass.

    Raises:
        ValueError: for a missing or unknown key or an invalid value, named by `where`
    """
    hints = _saved_fields(cast(Any, kind))
    noun = where or "it"
    if _checked(value, dict, noun).keys() != hints.keys():
        for key in (key for key in hints if key not in value):
            raise ValueError(f"{noun} has no {key!r}")
        for key in (key for key in value if key not in hints):
            raise ValueError(f"{noun} has the unknown key {reprlib.repr(key)}")
    return kind(**{key: read_as(hints[key], value[key], _below(where, key)) for key in hints})


def read_as(kind: Any, value: Any, where: str) -> Any:
    """Convert a JSON value to a type: a dataclass, a tuple or mapping of a type, a text, a number.

    Numbers are whole and at least 0, or the least value of their range. A dataclass may have a
    classmethod `from_json` of its own.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if NoneType in parts:
        return None if value is None else read_as(parts[0], value, where)
    if origin is Annotated:
        if type(value) is not int or not parts[1].ge <= value <= _MOST:
            shown = reprlib.repr(value)
            raise ValueError(f"{where} must be a whole number from {parts[1].ge} up, not {shown}")
        return value
    if origin is tuple:
        items = _checked(value, list, where)
        if get_origin(parts[0]) is not Annotated:
            return tuple(read_as(parts[0], item, f"{where}[{i}]") for i, item in enumerate(items))
        try:
            return tuple(array("Q", items))  # a fast check: integers of at least 0
        except (TypeError, OverflowError) as error:
            raise ValueError(f"{where} must be whole numbers from 0 up: {error}") from error
    if origin in (dict, Mapping):
        entries = _checked(value, dict, where).items()
        return {key: read_as(parts[1], entry, _below(where, key)) for key, entry in entries}
    if hasattr(kind, "from_json"):
        return kind.from_json(value)
    if is_dataclass(kind):
        return read_fields(cast(type, kind), value, where)
    return value if kind is Any else _checked(value, kind, where)


def _checked(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{where} must be {_JSON_NAMES[kind]}, not {reprlib.repr(value)}")
    return value


@cache
def _saved_fields(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass that are in a file."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind) if each.metadata != _NOT_SAVED}


def _below(where: str, key: str) -> str:
    name = key if re.fullmatch(r"[\w-]{1,50}", key) else reprlib.repr(key)
    return f"{where}.{name}" if where else name

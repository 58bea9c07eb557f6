"""The questions that an analysis looks at: those of a store, given ones, or nested fractions."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import permutations
from math import perm

import numpy as np

from tp_transformer.data.sampling import key_of, permute
from tp_transformer.data.store import TRAIN, Store
from tp_transformer.data.vocabulary import PAD, SOS, Vocabulary
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.figures import END, START
from tp_transformer.interpret.core.structure import has_reversed_side
from tp_transformer.model.batch import group_by_length
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.model.solver import evaluating
from tp_transformer.runtime.progress import track
from tp_transformer.scoring.expressions import Expression, parse
from tp_transformer.scoring.verdict import judge

BATCH_SIZE = 32  # questions
PAPERS_MODULE = "arithmetic__mixed"

# Of nested fractions.
LETTERS, NUMERATORS = "abcd", "ad"
FORM = "(a/b)/(c/d)"
DIGITS = range(2, 10)
MOST_FRACTIONS = perm(len(DIGITS), len(LETTERS))
WORDINGS = ("What is {}?", "Calculate {}.", "Evaluate {}.", "What is the value of {}?", "{}")
_FRACTION = re.compile(r"\(([2-9])/([2-9])\)/\(([2-9])/([2-9])\)")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Questions with their correct answers, and a description of their origin."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    origin: str

    def __post_init__(self) -> None:
        if len(self.questions) != len(self.answers):
            raise ValueError(f"{len(self.questions)} questions but {len(self.answers)} answers")
        if not self.questions:
            raise SettingsError("an analysis needs at least one question")

    @classmethod
    def of(cls, questions: "Sample | Sequence[str]", model: AnyModel) -> "Sample":
        """Return a sample; plain questions are paired with the model's own answers."""
        if isinstance(questions, Sample):
            return questions
        asked = (questions,) if isinstance(questions, str) else tuple(questions)
        answers = model.solve(asked) if asked else ()
        texts = tuple(_without_special(answer, model.vocabulary) for answer in answers)
        return cls(questions=asked, answers=texts, origin="given questions")

    def __len__(self) -> int:
        return len(self.questions)

    @cached_property
    def expressions(self) -> tuple[Expression | None, ...]:
        """The expression of each question, or None; parsed once."""
        return tuple(map(parse, self.questions))

    @property
    def parsed(self) -> tuple[Expression | str, ...]:
        """The expression of each question, or the text of a question that has none."""
        return tuple(
            question if expression is None else expression
            for question, expression in zip(self.questions, self.expressions, strict=True)
        )

    def some(self, indices: Sequence[int]) -> "Sample":
        """Return the questions at these indices."""
        return Sample(
            questions=tuple(self.questions[index] for index in indices),
            answers=tuple(self.answers[index] for index in indices),
            origin=self.origin,
        )

    def shown(self, count: int, n_characters: int) -> list[int]:
        """Return the indices of questions to show in a figure.

        Questions that fit on a line of `n_characters` come first, then fractions of fractions, then
        short questions.
        """

        def rank(index: int) -> tuple[bool, bool, int]:
            expression, length = self.expressions[index], len(self.questions[index]) + 2
            is_nested = expression is not None and has_reversed_side(expression)
            return length > n_characters, not is_nested, length

        return sorted(range(len(self)), key=rank)[:count]

    def batches(self) -> Iterator[tuple[list[int], "Sample"]]:
        """Yield the questions in batches of similar lengths, with their indices in the sample."""
        lengths = np.array([len(question) for question in self.questions])
        for rows in group_by_length(lengths, limit=BATCH_SIZE):
            indices = rows.tolist()
            yield indices, self.some(indices)


def _without_special(answer: str, vocabulary: Vocabulary) -> str:
    """Return an answer without start and padding tokens, which an untrained model may give."""
    special = (PAD, SOS)
    if vocabulary.is_words:
        return " ".join(word for word in answer.split(" ") if word not in special)
    return re.sub("|".join(special), "", answer)


def token_characters(question: str) -> str:
    """Return one character for each source token, the start and end tokens included."""
    return START + question + END


def token_texts(text: str, vocabulary: Vocabulary) -> Sequence[str]:
    """Return the text of each token, the start and end tokens included."""
    if not vocabulary.is_words:
        return token_characters(text)
    return (START, *filter(None, text.split(" ")), END)


def draw(
    model: AnyModel,
    store: Store,
    *,
    module: str | None = None,
    split: str | None = None,
    count: int = 128,
    seed: int = 0,
    answered: bool = True,
) -> Sample:
    """Draw random questions of a module; by default only those that the model answers correctly.

    Without a split they come from the first test split; without a module, from the paper's, or from
    the only one of the split. If the model answers fewer questions than `count`, the sample is
    smaller and its origin says so.
    """
    if count < 1:
        raise SettingsError(f"a sample has at least 1 question, not {count}")
    split = _first_test_split(store) if split is None else split
    modules = store[split].modules
    module = module or (next(iter(modules)) if len(modules) == 1 else PAPERS_MODULE)
    if module not in modules:
        raise SettingsError(
            f"{store.path} has no {module} in its {split} split; choose another by --module: "
            f"{', '.join(modules)}"
        )
    rows = modules[module]
    order = permute(
        np.arange(len(rows)), len(rows), key_of(seed, store.task.index_of(split, module))
    )
    taken: list[int] = []
    n_tried = 0
    for start in track("asking the model", range(0, len(order), max(count, BATCH_SIZE))):
        drawn = rows.start + order[start : start + max(count, BATCH_SIZE)]
        n_tried += len(drawn)
        if answered:
            with evaluating(model):
                drawn = drawn[judge(model, *store[split].tokens(drawn, model.vocabulary)).right]
        taken += drawn.tolist()
        if len(taken) >= count:
            break
    if not taken:
        raise UserError(
            f"the model answers none of the {n_tried:,} questions of {module}: train it for "
            "longer, choose another module, or look at any questions (--answered false)"
        )
    questions, answers = store[split].rows(taken[:count])
    noun = "question" if len(questions) == 1 else "questions"
    origin = f"{len(questions)} {noun} of {module} ({split}, seed {seed})"
    if answered:
        is_short = len(questions) < count
        origin += f", all of {n_tried:,} that it" if is_short else ", which it"
        origin += " answers correctly"
    return Sample(questions=tuple(questions), answers=tuple(answers), origin=origin)


def _first_test_split(store: Store) -> str:
    tests = [split for split in store.task.test_splits if split in store]
    if not tests:
        raise SettingsError(f"{store.path} has no test split; name a split: --split {TRAIN}")
    return tests[0]


@dataclass(frozen=True, kw_only=True)
class NestedFraction:
    """A question of the form (a/b)/(c/d), in a wording of the dataset."""

    numbers: tuple[int, ...]  # a, b, c, d
    wording: str

    @property
    def question(self) -> str:
        """The text of the question."""
        return self.wording.format("({}/{})/({}/{})".format(*self.numbers))

    @property
    def answer(self) -> str:
        """The correct answer, as the dataset writes it."""
        a, b, c, d = self.numbers
        return str(Fraction(a * d, b * c))

    def flipped(self, letter: str) -> str:
        """Return the answer that is right if one number were on the other side of the fraction."""
        squared = Fraction(self.numbers[LETTERS.index(letter)]) ** 2
        return str(Fraction(self.answer) * (1 / squared if letter in NUMERATORS else squared))

    @property
    def operator(self) -> int:
        """The source position of the outer operator; 0 is the start token."""
        return 1 + self.wording.index("{}") + FORM.index(")/(") + 1

    def position(self, letter: str) -> int:
        """Return the source position of a number."""
        return 1 + self.wording.index("{}") + FORM.index(letter)

    def exchanged(self, letters: str) -> "NestedFraction":
        """Return the same question with two numbers exchanged."""
        numbers = list(self.numbers)
        first, second = (LETTERS.index(letter) for letter in letters)
        numbers[first], numbers[second] = numbers[second], numbers[first]
        return NestedFraction(numbers=tuple(numbers), wording=self.wording)


def nested_fractions(count: int, seed: int = 0) -> list[NestedFraction]:
    """Draw different questions of four different digits each.

    All numbers have one digit, so that an exchange moves no other token.
    """
    choices = list(permutations(DIGITS, len(LETTERS)))
    if not 1 <= count <= MOST_FRACTIONS:
        raise SettingsError(f"there are 1 to {MOST_FRACTIONS} nested fractions to ask, not {count}")
    rng = np.random.default_rng(seed)
    return [
        NestedFraction(numbers=choices[place], wording=WORDINGS[rng.integers(len(WORDINGS))])
        for place in rng.permutation(len(choices))[:count]
    ]


def nested_sample(fractions: Sequence[NestedFraction], origin: str) -> Sample:
    """Return nested fractions with their correct answers as a sample."""
    return Sample(
        questions=tuple(fraction.question for fraction in fractions),
        answers=tuple(fraction.answer for fraction in fractions),
        origin=origin,
    )


def drawn_sample(count: int, seed: int) -> Sample:
    """Draw a sample of nested fractions, of all there are if `count` is larger."""
    fractions = nested_fractions(min(count, MOST_FRACTIONS), seed)
    noun = "nested fraction" if len(fractions) == 1 else "nested fractions"
    return nested_sample(fractions, f"{len(fractions)} {noun} of digits (seed {seed})")


def read_fractions(sample: Sample) -> list[NestedFraction]:
    """Return the questions of a sample as nested fractions; any other question is an error."""
    return [_read(question) for question in sample.questions]


def _read(question: str) -> NestedFraction:
    match = _FRACTION.search(question)
    if match is None or len(set(match.groups())) < len(LETTERS) or set("{}") & set(question):
        raise SettingsError(
            f"{question!r} is not a nested fraction (a/b)/(c/d) of four different digits from 2 "
            "to 9, which this analysis needs"
        )
    wording = f"{question[: match.start()]}{{}}{question[match.end() :]}"
    return NestedFraction(numbers=tuple(map(int, match.groups())), wording=wording)

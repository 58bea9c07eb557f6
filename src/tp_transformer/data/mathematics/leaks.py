"""Redrawing of test questions that occur in training, and counts of repeated training questions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tp_transformer.data.mathematics.deepmind import Address
from tp_transformer.data.mathematics.generate import GeneratedExample, draw
from tp_transformer.data.mathematics.modules import TRAIN_SPLITS
from tp_transformer.data.mathematics.partial import GeneratedFile, Pieces, Texts
from tp_transformer.data.store import texts_as_bytes
from tp_transformer.foundation.parallel import OpenPool, in_order
from tp_transformer.foundation.permutation import key_of

MAX_ATTEMPTS = 20  # attempts for a test question before it is kept although it occurs in training
CHECKED_TOGETHER = 500_000  # test questions that are looked up in training together: 100 MB
DRAWN_HERE = 500  # number of redraws below which starting workers would take longer


class Redraws:
    """Test questions that occur in training, and their replacements."""

    def __init__(
        self, files: Sequence[GeneratedFile], pieces: Pieces, seed: int, open_pool: OpenPool
    ) -> None:
        self._train = [file for file in files if file.split in TRAIN_SPLITS]
        self._pieces, self._seed, self._open_pool = pieces, seed, open_pool
        self.found: dict[Address, GeneratedExample] = {}
        tests = [file for file in files if file.split not in TRAIN_SPLITS]
        self._left = [
            Address(module=file.module, split=file.split, seed=seed, index=int(index))
            for file, known in zip(tests, self._known(tests), strict=True)
            for index in np.flatnonzero(known)
        ]
        for attempt in range(1, MAX_ATTEMPTS):
            if not self._left:
                break
            self._draw(attempt)

    def _known(self, tests: Sequence[GeneratedFile]) -> list[npt.NDArray[np.bool_]]:
        """Return, for each test file, which of its questions occur in training."""
        if not tests or not self._train:
            return [np.zeros(file.count, bool) for file in tests]
        known: list[npt.NDArray[np.bool_]] = []
        for group in _groups(tests, CHECKED_TOGETHER):
            columns = [self._pieces.questions(file) for file in group]
            chunks = [chunk for column in columns for chunk in column.chunks]
            found = self._in_training(pa.chunked_array(chunks))
            known += np.split(found, np.cumsum([len(column) for column in columns])[:-1])
        return known

    def _in_training(self, candidates: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        wanted = pc.unique(candidates)
        found = pa.array([], pa.string())
        for file in self._train:
            column = self._pieces.questions(file)
            hits = column.filter(pc.is_in(column, value_set=wanted))
            found = pc.unique(pa.chunked_array([found, *hits.chunks]))
        return np.asarray(pc.is_in(candidates, value_set=found))

    def _draw(self, attempt: int) -> None:
        tasks = [[replace(address, attempt=attempt)] for address in self._left]
        is_few = len(tasks) <= DRAWN_HERE
        found = map(draw, tasks) if is_few else in_order(draw, tasks, self._open_pool)
        drawn = [example for (example,) in found]
        known = self._in_training(pa.chunked_array([pa.array([one.question for one in drawn])]))
        left, self._left = self._left, []
        for address, example, occurs in zip(left, drawn, known, strict=True):
            if occurs:
                self._left.append(address)
            else:
                self.found[address] = example

    def counts(self) -> dict[str, int]:
        """Return the number of questions of each test file that were replaced."""
        return _by_file(self.found)

    def still_in_training(self) -> dict[str, int]:
        """Return the number of questions of each test file that still occur in training."""
        return _by_file(self._left)

    def apply(self, file: GeneratedFile, start: int, texts: Texts) -> tuple[list[str], list[str]]:
        """Return a piece of a test file with the replacements."""
        questions, answers = (column.to_pylist() for column in texts)
        for number in range(len(questions)):
            address = Address(
                module=file.module, split=file.split, seed=self._seed, index=start + number
            )
            if example := self.found.get(address):
                questions[number], answers[number] = example.question, example.answer
        return questions, answers


def _by_file(addresses: Iterable[Address]) -> dict[str, int]:
    counts = Counter(f"{address.split}/{address.module}" for address in addresses)
    return dict(sorted(counts.items()))


def _groups(files: Iterable[GeneratedFile], most: int) -> Iterator[list[GeneratedFile]]:
    """Yield groups of files with at most this many questions in total, or of one file."""
    group: list[GeneratedFile] = []
    for file in files:
        if group and sum(one.count for one in group) + file.count > most:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def count_repeats(files: Sequence[GeneratedFile], pieces: Pieces) -> dict[str, int]:
    """Return the number of training questions of each module that repeat an earlier one."""
    train = [file for file in files if file.split in TRAIN_SPLITS]
    counts = {}
    for module in dict.fromkeys(file.module for file in train):
        own = [file for file in train if file.module == module]
        digests = [_digests(texts[0]) for file in own for texts in pieces.read(file)]
        joined = np.concatenate(digests)
        counts[module] = len(joined) - len(np.unique(joined))
    return {module: count for module, count in counts.items() if count}


def _digests(texts: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Return a hash of 64 bits of each text; collisions among millions of texts are unlikely."""
    offsets, data = texts_as_bytes(texts)
    characters = np.frombuffer(data, np.uint8)
    place = np.arange(len(characters)) - np.repeat(offsets[:-1], np.diff(offsets))
    factors = key_of(np.arange(int(place.max(initial=0)) + 1)) | np.uint64(1)
    terms = (characters.astype(np.uint64) + np.uint64(1)) * factors[place]
    return np.add.reduceat(terms, offsets[:-1])

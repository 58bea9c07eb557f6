"""The questions of an evaluation, chosen from a store."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tp_transformer import settings
from tp_transformer.data.sampling import Feed, FeedConfig, key_of, permute
from tp_transformer.data.store import MANIFEST, TRAIN, Segment, Split, Store
from tp_transformer.data.vocabulary import Ids, Ragged, Vocabulary
from tp_transformer.errors import SettingsError
from tp_transformer.runtime.run_folder import CONFIG, read_origin, run_of, sha256
from tp_transformer.scoring.options import QuestionChoice
from tp_transformer.scoring.verdict import passes

_TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class ModuleQuestions:
    """The chosen questions of one module in one split."""

    split: str
    module: str
    rows: Ids  # ascending
    sha256: str  # of the questions and answers; equal hashes mean that results can be paired


def choose(
    store: Store, choice: QuestionChoice, held_out: Ids | None = None
) -> list[ModuleQuestions]:
    """Return the chosen questions, in the order of the splits and modules.

    Training questions exclude those held out, on which the model was not trained.
    """
    store.task.match(choice.modules, TRAIN)  # raises if a pattern matches no module of any split
    for name in choice.splits or ():
        _ = store[name]  # raises if the store lacks it
    chosen = []
    for name in store:
        if choice.splits is not None and name not in choice.splits:
            continue
        by_module: dict[str, list[Segment]] = {}
        for segment in store[name].select(choice.modules):
            by_module.setdefault(segment.module, []).append(segment)
        for module, segments in by_module.items():
            rows = _rows(store[name], module, segments, choice, held_out)
            if len(rows):
                chosen.append(ModuleQuestions(name, module, rows, _sha256(segments, rows)))
    if not chosen:
        raise SettingsError(f"{store.path} has no questions of these modules and splits")
    return chosen


def _rows(
    split: Split,
    module: str,
    segments: Sequence[Segment],
    choice: QuestionChoice,
    held_out: Ids | None,
) -> Ids:
    """Return the rows of a module: all of them, or a sample of the rows trained on."""
    rows = np.concatenate([np.arange(each.start, each.start + each.count) for each in segments])
    if split.name != TRAIN:
        return rows
    left_out = rows[:0] if held_out is None else held_out[np.isin(held_out, rows)]
    # Excluded after sampling, so that models with other held-out rows get nearly the same rows.
    n_drawn = choice.train_count + len(left_out)
    if n_drawn < len(rows):
        key = key_of(choice.seed, split.task.index_of(TRAIN, module))
        rows = rows[permute(np.arange(n_drawn), len(rows), key)]
    rows = rows[~np.isin(rows, left_out)]
    return np.sort(rows[: choice.train_count])


def _sha256(segments: Sequence[Segment], rows: Ids) -> str:
    """Return a hash of the questions and answers of some rows of a module."""
    content = [[segment.difficulty, segment.count, segment.checksum] for segment in segments]
    digest = hashlib.sha256(json.dumps(content).encode())
    # Relative to the first row of the module, so that other modules of the store do not matter.
    digest.update((rows - segments[0].start).astype("<i8").tobytes())
    return digest.hexdigest()


class EvaluationQuestions:
    """All questions of an evaluation, numbered from 0, by module and split (`asked`)."""

    def __init__(self, store: Store, asked: Sequence[ModuleQuestions]) -> None:
        self.store = store
        self.asked = asked
        self._rows = np.concatenate([module.rows for module in asked])
        self._starts = np.cumsum([0, *(len(module.rows) for module in asked)])
        lengths = [store[module.split].lengths(module.rows) for module in asked]
        self.question_lengths, self.answer_lengths = (
            np.concatenate(column) for column in zip(*lengths, strict=True)
        )

    @property
    def n(self) -> int:
        """The number of questions."""
        return len(self._rows)

    def numbers(self, index: int) -> Ids:
        """Return the numbers of the questions of one module and split."""
        return np.arange(self._starts[index], self._starts[index + 1])

    def find(self, number: int) -> dict[str, str | int]:
        """Return the split, module and row of a question."""
        asked = self.asked[int(np.searchsorted(self._starts, number, side="right")) - 1]
        return {"split": asked.split, "module": asked.module, "row": int(self._rows[number])}

    def passes(self, numbers: Ids, limit: int) -> Iterator[Ids]:
        """Yield batches of at most `limit` tokens, each within one split."""
        for of_split in self._by_split(numbers):
            sources, targets = self.question_lengths[of_split] + 2, self.answer_lengths[of_split]
            for chosen in passes(sources, targets + 1, limit):
                yield of_split[chosen]

    def tokens(self, numbers: Ids, vocabulary: Vocabulary) -> tuple[Ragged, Ragged]:
        """Return the questions and answers of a batch as ids."""
        split = self.find(int(numbers[0]))["split"]
        return self.store[str(split)].tokens(self._rows[numbers], vocabulary)

    def texts(self, numbers: Ids) -> Iterator[tuple[int, str, str]]:
        """Yield the number, question and answer of some questions, reading a few at a time."""
        for of_split in self._by_split(numbers):
            split = self.store[str(self.find(int(of_split[0]))["split"])]
            for start in range(0, len(of_split), _TEXTS_AT_ONCE):
                chosen = of_split[start : start + _TEXTS_AT_ONCE]
                yield from zip(chosen.tolist(), *split.rows(self._rows[chosen]), strict=True)

    def _by_split(self, numbers: Ids) -> Iterator[Ids]:
        """Yield ascending numbers, split by split."""
        for name in dict.fromkeys(module.split for module in self.asked):
            modules = [index for index, module in enumerate(self.asked) if module.split == name]
            start, end = self._starts[modules[0]], self._starts[modules[-1] + 1]
            of_split = numbers[(numbers >= start) & (numbers < end)]
            if len(of_split):
                yield of_split


def held_out_rows(folder: str | Path | None, store: Store) -> Ids | None:
    """Return the rows of the training split that the run held out, or None if unknown."""
    run = None if folder is None else run_of(folder)
    if run is None or TRAIN not in store:
        return None
    origin = read_origin(run)
    if origin.get("data_sha256") != sha256(store.path / MANIFEST):  # the store may have moved
        return None
    file = run / CONFIG
    message = f"cannot read from {file} which questions were held out"
    recorded = origin.get("config_sha256")  # absent in runs of earlier versions
    if recorded is not None and sha256(file) not in (None, recorded):
        raise SettingsError(f"{message}: it was changed after the run was started; restore it")
    values = settings.read(file)
    fields, validation = values.get("data"), values.get("validation")
    count = validation.get("count") if isinstance(validation, dict) else None
    if not isinstance(fields, dict) or type(count) is not int or count < 0:
        raise SettingsError(message)
    data = settings.to_dataclass(FeedConfig, fields, "data")
    feed = Feed(
        store[TRAIN], batch_size=1, modules=data.modules, weights=data.weights, held_out=count
    )
    return feed.held_out_rows

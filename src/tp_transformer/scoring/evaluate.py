"""Exact match per module: a model, a store, and results.json at the end.

Every rank asks its share of the questions and all get all verdicts. What has been found is kept
beside the result (`journal.py`): an evaluation that was stopped goes on, on any number of ranks.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from tp_transformer import atomic, provenance
from tp_transformer.data.permutation import key_of, permute
from tp_transformer.data.store import open_store
from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.distributed import Ranks, open_ranks
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.model.family import AnyModel, load
from tp_transformer.progress import Update
from tp_transformer.ranges import Count, PositiveInt, check_fields
from tp_transformer.scoring.diagnose import KINDS, Diagnosis
from tp_transformer.scoring.held_out import held_out_rows
from tp_transformer.scoring.journal import RIGHT, UNSURE, WRONG, Answers, Journal
from tp_transformer.scoring.questions import Choice, Questions, choose
from tp_transformer.scoring.results import ModuleScore, Results, SplitScore, Values
from tp_transformer.scoring.verdict import (
    CPU_SYMBOLS,
    GPU_SYMBOLS,
    NEAR_TIE,
    SUSPECT,
    Bools,
    Floats,
    in_double,
    judge,
    judge_in_bfloat16,
)

DIAGNOSED = 100  # wrong answers of each module that are looked at, if no more are asked for
JUDGES = {"float32": judge, "bfloat16": judge_in_bfloat16}
DECODED_AT_ONCE = 512  # by one rank, between two lines of the journal
LONGEST = 200  # symbols of an answer by a model without positions, as many as the others have

Array = TypeVar("Array", bound=np.ndarray[Any, Any])
Show = Callable[[str], AbstractContextManager[Update]]  # such as `progress`


@dataclass(frozen=True, kw_only=True)
class Work:
    """How to evaluate.

    Attributes:
        decode: questions on which greedy decoding is checked to give the same verdict
        diagnose: wrong answers of each module and split that are decoded and diagnosed
        predictions: a file for every answer; then all wrong ones are decoded and diagnosed
        precision: bfloat16 is quicker where there are circuits for it; what it leaves in doubt is
            asked again in float32
        symbols_per_pass: most symbols that one pass holds, by the device if absent; no verdict
            depends on it
    """

    decode: Count = 0
    diagnose: Count = DIAGNOSED
    predictions: Path | None = None
    precision: str = "float32"
    symbols_per_pass: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.precision not in JUDGES:
            raise SettingsError(
                f"the precision is one of {', '.join(JUDGES)}, not {self.precision!r}"
            )

    def limit(self, device: torch.device) -> int:
        """The most symbols of a pass on a device."""
        return self.symbols_per_pass or (CPU_SYMBOLS if device.type == "cpu" else GPU_SYMBOLS)


def evaluate(
    folder: str | Path | None,
    data: str | Path,
    out: str | Path,
    choice: Choice | None = None,
    work: Work | None = None,
    *,
    device: str = "auto",
    show: Show | None = None,
) -> Results | None:
    """Score the model in a folder on the questions of a store, and write the results to `out`.

    Under torchrun all ranks do their share; the first one has the results, the others None.
    """
    choice, work = choice or Choice(), work or Work()
    with open_ranks(device) as ranks:
        model = ranks.each(lambda: load(folder)).float().to(ranks.device)
        store = ranks.each(lambda: open_store(data))
        held_out = ranks.each(lambda: held_out_rows(folder, store))
        questions = ranks.each(lambda: Questions(store, choose(store, choice, held_out)))
        ranks.each(lambda: _refuse(model, questions, [out, work.predictions]))
        seen = show if show is not None and ranks.is_first else _unseen
        evaluation = Evaluation(model, questions, work, Path(out), ranks, seen)
        evaluation.ask()
        evaluation.settle()
        decoding = evaluation.check_decoding(work.decode, choice.seed)
        numbers = evaluation.wrong(None if work.predictions else work.diagnose)
        evaluation.decode(numbers)
        if not ranks.is_first:
            return None
        diagnoses, means = evaluation.diagnose(numbers)
        results = Results(
            model=provenance.describe(model, folder, evaluation.sha256),
            data={
                "name": store.path.name,
                "kind": store.source.get("kind"),
                "task": store.task.to_json(),
                "sha256": {n: s.digest for n, s in store.items()},
                "held_out": None if held_out is None else len(held_out),
            },
            choice=asdict(choice),
            made={
                **provenance.circumstances(ranks.device),
                "n_ranks": ranks.n_ranks,
                "precision": work.precision,
                "diagnosis": means,
            },
            splits=evaluation.scores(diagnoses),
            near_ties=evaluation.near_ties(),
            decoding=decoding,
        )
        if work.predictions is not None:
            evaluation.write_predictions(work.predictions)
        results.write(out)
        evaluation.forget()
    return results


class Evaluation:
    """One model on some questions: verdicts first, then answers, then what is made of both."""

    def __init__(
        self,
        model: AnyModel,
        questions: Questions,
        work: Work,
        out: Path,
        ranks: Ranks,
        show: Show,
    ) -> None:
        self.model, self.questions, self.work = model, questions, work
        self.ranks, self.show = ranks, show
        self.right: Bools = np.zeros(questions.n, bool)
        self.margins: dict[int, float] = {}  # of the answers that float64 decided
        self.sha256 = provenance.model_hash(model)
        key = _hash(self.sha256, work.precision, *(one.sha256 for one in questions))
        ranks.each(lambda: out.parent.mkdir(parents=True, exist_ok=True))
        self._journal = Journal(out, ranks.rank, key, questions.n)
        self._answers = Answers(out, key, model.n_positions or LONGEST)

    def ask(self) -> None:
        """Find the verdict on every question that has none yet, each rank on its share."""
        journal = self._journal
        self.ranks.first(journal.read)
        known, loss = self._shared(journal.known), self._shared(journal.loss)
        journal.known, journal.loss = known.copy(), loss.copy()
        self.ranks.each(self._ask_share)
        journal.known = known + self._summed(journal.known - known)
        journal.loss = loss + self._summed(journal.loss - loss)
        self.right = journal.known == RIGHT

    def _ask_share(self) -> None:
        find, limit = JUDGES[self.work.precision], self.work.limit(self.ranks.device)
        journal, rank, n_ranks = self._journal, self.ranks.rank, self.ranks.n_ranks
        left = np.flatnonzero(~journal.done)
        total = self.questions.n
        done = before = total - len(left)
        try:
            with self.show("evaluating") as update:
                for numbers in list(self.questions.passes(left, limit))[rank::n_ranks]:
                    verdicts = find(self.model, *self._tokens(numbers))
                    known = np.where(verdicts.right, RIGHT, WRONG)
                    known[np.abs(verdicts.margin) < SUSPECT] = UNSURE
                    journal.known[numbers], journal.loss[numbers] = known, verdicts.loss
                    done += len(numbers)
                    update(min(before + (done - before) * n_ranks, total), total)
                    journal.save()
        finally:  # also when killed or interrupted: what was found is not lost
            journal.save(now=True)

    def settle(self) -> None:
        """Decide in float64 where rounding could turn the verdict."""
        unsure = np.flatnonzero(self._journal.known == UNSURE)
        margins = self._margins(unsure)
        self.right[unsure] = margins > 0
        self.margins = dict(zip(unsure.tolist(), margins.tolist(), strict=True))

    def check_decoding(self, count: int, seed: int) -> Values | None:
        """Whether greedy decoding comes to the same verdicts, on a sample of the questions."""
        if not count:
            return None
        n = min(count, self.questions.n)
        sample = np.sort(permute(np.arange(n), self.questions.n, key_of(seed, count)))
        # Room for one symbol more than the longest answer: its end, or the mistake of not ending.
        enough = int(self.questions.answer_lengths.max()) + 1
        texts = self._solved(sample, "checking by decoding", enough)
        other = np.array(
            [
                number
                for number, _, answer in self.questions.texts(sample)
                if (texts[number] == answer) != self.right[number]
            ],
            np.int64,
        )
        margins = self._margins(other)
        return {
            "n": n,
            "other_verdict": self._listed(other.tolist(), margins.tolist()),
            "near_ties_among_them": int((np.abs(margins) < NEAR_TIE).sum()),
        }

    def wrong(self, per_module: int | None) -> Ids:
        """The numbers of wrong answers: all, or so many of each module and split at random."""
        found = []
        for place in range(len(self.questions)):
            numbers = self.questions.numbers(place)
            wrong = numbers[~self.right[numbers]]
            if per_module is not None and 0 < per_module < len(wrong):
                drawn = permute(np.arange(per_module), len(wrong), key_of(place))
                wrong = np.sort(wrong[drawn])
            found.append(wrong[:0] if per_module == 0 else wrong)
        return np.concatenate(found)

    def decode(self, numbers: Ids) -> None:
        """Decode the answers to some questions in full; the first rank has them then."""
        answers = self._answers
        self.ranks.first(answers.read)
        had = json.loads(self.ranks.first(lambda: json.dumps(list(answers.texts))))
        left = numbers[~np.isin(numbers, had)]
        if len(left):
            self.ranks.first(answers.begin)
            self._solved(left, "decoding wrong answers", answers.max_length, answers)

    def diagnose(self, numbers: Ids) -> tuple[dict[int, str], Values]:
        """What is wrong with each of the wrong answers that were decoded; by what means."""
        found: dict[int, str] = {}
        with self.show("diagnosing") as update, Diagnosis() as diagnosis:
            for number, _, answer in self.questions.texts(numbers):
                found[number] = diagnosis.kind(answer, self._answers.texts[number])
                update(len(found), len(numbers))
        means = {"has_sympy": diagnosis.has_sympy, "n_out_of_time": diagnosis.n_out_of_time}
        return found, means

    def scores(self, diagnoses: dict[int, str]) -> dict[str, SplitScore]:
        """The score of every module, split by split."""
        splits: dict[str, dict[str, ModuleScore]] = {}
        for place, one in enumerate(self.questions):
            numbers = self.questions.numbers(place)
            n_symbols = int(self.questions.answer_lengths[numbers].sum()) + len(numbers)
            kinds = [diagnoses[number] for number in numbers.tolist() if number in diagnoses]
            splits.setdefault(one.split, {})[one.module] = ModuleScore(
                verdicts=self.right[numbers],
                loss=float(self._journal.loss[numbers].sum()) / n_symbols,
                n_symbols=n_symbols,
                sha256=one.sha256,
                near_ties=sum(int(numbers[0]) <= tied <= int(numbers[-1]) for tied in self._tied),
                wrong={kind: kinds.count(kind) for kind in KINDS if kind in kinds},
            )
        return {name: SplitScore(modules) for name, modules in splits.items()}

    def near_ties(self) -> list[Values]:
        """The answers whose best two symbols are so close that rounding may exchange them."""
        return self._listed(self._tied, [self.margins[number] for number in self._tied])

    def write_predictions(self, file: Path) -> None:
        """Write every answer as a line of JSON; the right ones need no decoding."""
        decoded = self._answers.texts
        everything = np.arange(self.questions.n)
        with atomic.whole(file) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
            for number, question, answer in self.questions.texts(everything):
                right = bool(self.right[number])
                line = {
                    **self.questions.find(number),
                    "question": question,
                    "answer": answer,
                    "predicted": answer if right else decoded[number],
                    "right": right,
                }
                lines.write(json.dumps(line) + "\n")

    def forget(self) -> None:
        """Remove what was kept beside the results."""
        self._journal.remove()
        self._answers.remove()

    @property
    def _tied(self) -> list[int]:
        return [number for number, margin in self.margins.items() if abs(margin) < NEAR_TIE]

    def _listed(self, numbers: list[int], margins: list[float]) -> list[Values]:
        return [
            {**self.questions.find(number), "right": bool(self.right[number]), "margin": margin}
            for number, margin in zip(numbers, margins, strict=True)
        ]

    def _tokens(self, numbers: Ids) -> tuple[Ragged, Ragged]:
        return self.questions.tokens(numbers, self.model.vocabulary)

    def _margins(self, numbers: Ids) -> Floats:
        """The margins of some answers in float64, found by all ranks together."""
        found = np.zeros(self.questions.n)

        def share() -> None:
            if len(numbers):
                model = in_double(self.model)
                shares = list(self.questions.passes(numbers, CPU_SYMBOLS))
                for mine in shares[self.ranks.rank :: self.ranks.n_ranks]:
                    verdicts = judge(model, *self._tokens(mine))
                    # Of an exact tie the first symbol is taken, which is the right one or is not.
                    tiny = np.where(verdicts.right, np.finfo(float).tiny, -np.finfo(float).tiny)
                    found[mine] = np.where(verdicts.margin == 0, tiny, verdicts.margin)

        self.ranks.each(share)
        return self._summed(found)[numbers]

    def _solved(
        self, numbers: Ids, title: str, max_length: int, keep: Answers | None = None
    ) -> dict[int, str]:
        """The answers by greedy decoding, by all ranks together, all of which then have them."""
        found: dict[int, str] = {}
        at_once = DECODED_AT_ONCE * self.ranks.n_ranks
        with self.show(title) as update:
            for start in range(0, len(numbers), at_once):
                new = self._solve_together(numbers[start : start + at_once], max_length)
                found.update(new)
                if keep is not None and self.ranks.is_first:
                    keep.add(new)
                update(len(found), len(numbers))
        return found

    def _solve_together(self, numbers: Ids, max_length: int) -> dict[int, str]:
        ranks = self.ranks
        mine = numbers[ranks.rank :: ranks.n_ranks]
        asked = [question for _, question, _ in self.questions.texts(mine)]
        texts = ranks.each(lambda: self.model.solve(asked, max_length=max_length))
        own = json.dumps(list(zip(mine.tolist(), texts, strict=True)))
        found: dict[int, str] = {}
        for rank in range(ranks.n_ranks):
            found.update(json.loads(ranks.share(own, source=rank)))
        return found

    def _shared(self, array: Array) -> Array:
        """The first rank's array."""
        if self.ranks.n_ranks == 1:
            return array
        shared = self.ranks.share_tensor(torch.from_numpy(array).to(self.ranks.device))
        return shared.cpu().numpy()  # type: ignore[return-value]

    def _summed(self, array: Array) -> Array:
        """The sum of the ranks' arrays."""
        if self.ranks.n_ranks == 1:
            return array
        summed = self.ranks.sum(torch.from_numpy(array).to(self.ranks.device))
        return summed.cpu().numpy()  # type: ignore[return-value]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _refuse(model: AnyModel, questions: Questions, files: list[str | Path | None]) -> None:
    """Refuse what would only fail after hours: texts too long for the model, folders as files."""
    longest = max(questions.question_lengths.max(), questions.answer_lengths.max())
    if model.n_positions is not None and longest + 2 > model.n_positions:
        raise SettingsError(
            f"there are texts of {longest} tokens; the model reads at most {model.n_positions - 2}"
        )
    for file in files:
        if file is not None and Path(file).is_dir():
            raise UserError(f"{file} is a folder; name a file to write to")


@contextmanager
def _unseen(_title: str) -> Iterator[Update]:
    yield lambda _done, _total: None

"""Evaluation of a model: exact match on each module of a store.

The questions are divided among ranks, and all ranks get all verdicts. Verdicts are saved beside the
result (`journal.py`), so that an interrupted evaluation resumes on any number of ranks.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from tp_transformer.data.sampling import key_of, permute
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.vocabulary import Ids, Ragged
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.model import bundled, checkpoint
from tp_transformer.model.base import Model
from tp_transformer.model.checkpoint import AnyModel, load
from tp_transformer.runtime import provenance
from tp_transformer.runtime.files import atomic_write
from tp_transformer.runtime.progress import Show, Update
from tp_transformer.runtime.provenance import command_line
from tp_transformer.runtime.ranks import Ranks, native_precision, open_ranks
from tp_transformer.scoring.diagnose import KINDS, Diagnosis
from tp_transformer.scoring.journal import RIGHT, UNSURE, WRONG, Journal
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.scoring.questions import EvaluationQuestions, choose, held_out_rows
from tp_transformer.scoring.results import (
    Mistake,
    ModuleScore,
    Results,
    SplitScore,
    Values,
    check_replaced_results,
)
from tp_transformer.scoring.verdict import (
    CPU_TOKENS,
    GPU_TOKENS,
    NEAR_TIE,
    SUSPECT,
    Bools,
    Floats,
    in_double,
    judge,
    judge_in_bfloat16,
)

JUDGES = {"float32": judge, "bfloat16": judge_in_bfloat16, "int8": judge}
DECODED_AT_ONCE = 512  # questions per rank between two saves
EXAMPLES = 2  # wrong answers of each kind, module and split that the results contain
LONGEST = 200  # tokens of an answer of a model without positions

Array = TypeVar("Array", bound=np.ndarray[Any, Any])


def evaluate(
    model: AnyModel | str | Path | None,
    data: Store | str | Path,
    out: str | Path | None = None,
    choice: QuestionChoice | None = None,
    options: EvaluationOptions | None = None,
    *,
    name: str | None = None,
    device: str = "auto",
    show: Show | None = None,
) -> Results:
    """Score a model on the questions of a store.

    A model that is passed as an object is not changed. Inside `model.trace(edit=…)`, the edited
    model is scored.

    Args:
        model: a model, or the folder of a model or a run, or the name of a bundled model; None is
            the default bundled model. Only a run tells which training questions were held out
        data: a store or its folder
        out: results.json to write, beside which an interrupted evaluation keeps what it has
        choice: which questions; by default all test questions and some of the training questions
        options: what else to compute
        name: the name of the model in tables; by default that of its folder
        device: auto, cpu, cuda or mps
        show: makes a progress bar from a title
    """
    choice, options = choice or QuestionChoice(), options or EvaluationOptions()
    folder = None if isinstance(model, Model) else model or bundled.default()
    with open_ranks(device) as ranks:
        used = ranks.each(
            lambda: copy.deepcopy(model).eval() if isinstance(model, Model) else load(model)
        )
        used = used.float().to(ranks.device)
        store = ranks.each(lambda: data if isinstance(data, Store) else open_store(data))
        held_out = ranks.each(lambda: held_out_rows(folder, store))
        questions = ranks.each(lambda: EvaluationQuestions(store, choose(store, choice, held_out)))
        ranks.each(lambda: _check_inputs(used, questions, [out, options.predictions]))
        seen = show if show is not None and ranks.is_first else _unseen
        file = None if out is None else Path(out)
        evaluation = Evaluation(used, questions, options, file, ranks, seen)
        if file is not None and not options.overwrite:
            identity = evaluation.sha256, evaluation.precision, _described(store), asdict(choice)
            ranks.first(lambda: check_replaced_results(file, *identity))
        scored = evaluation.run(choice.seed)

        def finish() -> str:
            if out is not None and not isinstance(model, Model):
                arguments = {"model": model, "data": store.path, "out": out}
                arguments["device"] = None if device == "auto" else device
                scored["made"]["command"] = command_line("evaluate", choice, options, **arguments)
            description = checkpoint.describe(used, folder, evaluation.sha256)
            n_held_out = None if held_out is None else len(held_out)
            results = Results(
                model=description if name is None else {**description, "name": name},
                data={**_described(store), "held_out": n_held_out},
                choice=asdict(choice),
                **scored,
            )
            evaluation.write(results, file)
            return json.dumps(results.to_json())

        return Results.from_json(json.loads(ranks.first(finish)))


def _described(store: Store) -> Values:
    return {
        "name": store.path.name,
        "kind": store.source.get("kind"),
        "seed": store.source.get("seed"),
        "task": store.task.to_json(),
        "sha256": {name: split.digest for name, split in store.items()},
    }


class Evaluation:
    """The evaluation of a model: verdicts, then decoded answers, then scores."""

    def __init__(
        self,
        model: AnyModel,
        questions: EvaluationQuestions,
        options: EvaluationOptions,
        out: Path | None,
        ranks: Ranks,
        show: Show,
    ) -> None:
        self.questions, self.options = questions, options
        self.ranks, self.show = ranks, show
        self.right: Bools = np.zeros(questions.n, bool)
        self.margins: dict[int, float] = {}  # of the answers decided in float64
        self.sha256 = checkpoint.model_hash(model)
        self.precision = native_precision(options.precision, ranks.device)
        is_int8 = self.precision == "int8"
        self.model = ranks.each(lambda: model.in_precision("int8")) if is_int8 else model
        hashes = [self.sha256, self.precision, *(asked.sha256 for asked in questions.asked)]
        key = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
        if out is not None:
            ranks.each(lambda: out.parent.mkdir(parents=True, exist_ok=True))
        self._journal = Journal(out, ranks.rank, key, questions.n)

    def run(self, seed: int) -> Values:
        """Evaluate; return what rank 0 found, as fields of `Results`."""
        self.ask()
        self.settle()
        decoding = self.check_decoding(self.options.decode, seed)
        numbers = self.wrong(None if self.options.predictions else self.options.diagnose)
        self.decode(numbers)
        if not self.ranks.is_first:
            return {}
        mistakes, means = self.diagnose(numbers)
        environment = {
            **provenance.environment(self.ranks.device),
            "n_ranks": self.ranks.n_ranks,
            "precision": self.precision,
            "diagnosis": means,
        }
        return {
            "made": environment,
            "splits": self.scores(mistakes),
            "near_ties": self.near_ties(),
            "decoding": decoding,
        }

    def ask(self) -> None:
        """Compute the missing verdicts, divided among ranks."""
        self.ranks.first(self._journal.read)
        self._merge()
        self.ranks.each(self._ask_share)
        self._merge()
        self.right = self._journal.states == RIGHT

    def _merge(self) -> None:
        """Give all ranks the verdicts that any of them has; those of others are zeros."""
        journal, highest = self._journal, self.ranks.max
        journal.states = self._reduce(highest, journal.states)
        journal.loss = self._reduce(highest, journal.loss)

    def _ask_share(self) -> None:
        find = JUDGES[self.precision]
        most = CPU_TOKENS if self.ranks.device.type == "cpu" else GPU_TOKENS
        limit = self.options.symbols_per_pass or most
        journal, rank, n_ranks = self._journal, self.ranks.rank, self.ranks.n_ranks
        left = np.flatnonzero(~journal.done)
        total = self.questions.n
        done = before = total - len(left)
        try:
            with self.show("evaluating") as update:
                for numbers in list(self.questions.passes(left, limit))[rank::n_ranks]:
                    verdicts = find(self.model, *self._tokens(numbers))
                    states = np.where(verdicts.right, RIGHT, WRONG)
                    states[np.abs(verdicts.margin) < SUSPECT] = UNSURE
                    journal.states[numbers], journal.loss[numbers] = states, verdicts.loss
                    done += len(numbers)
                    update(min(before + (done - before) * n_ranks, total), total)
                    journal.save()
        finally:  # also if interrupted
            journal.save(now=True)

    def settle(self) -> None:
        """Decide in float64 the verdicts that rounding could change."""
        unsure = np.flatnonzero(self._journal.states == UNSURE)
        margins = self._margins(unsure)
        self.right[unsure] = margins > 0
        self.margins = dict(zip(unsure.tolist(), margins.tolist(), strict=True))

    def check_decoding(self, count: int, seed: int) -> Values | None:
        """Compare the verdicts with those of greedy decoding on a sample of the questions."""
        if not count:
            return None
        n = min(count, self.questions.n)
        sample = np.sort(permute(np.arange(n), self.questions.n, key_of(seed, count)))
        # One token more than the longest answer: its end token, or a wrong continuation.
        enough = int(self.questions.answer_lengths.max()) + 1
        predicted: dict[int, str] = {}
        self._solve(sample, "checking by decoding", enough, predicted.update)
        other = [
            number
            for number, _, answer in self.questions.texts(sample)
            if (predicted[number] == answer) != self.right[number]
        ]
        margins = self._margins(np.array(other, np.int64))
        return {
            "n": n,
            "other_verdict": self._listed(other, margins.tolist()),
            "near_ties_among_them": int((np.abs(margins) < NEAR_TIE).sum()),
        }

    def wrong(self, per_module: int | None) -> Ids:
        """Return the numbers of wrong answers: all, or a random sample of each module and split."""
        samples = []
        for index in range(len(self.questions.asked)):
            numbers = self.questions.numbers(index)
            wrong = numbers[~self.right[numbers]]
            if per_module is not None and per_module < len(wrong):
                wrong = np.sort(wrong[permute(np.arange(per_module), len(wrong), key_of(index))])
            samples.append(wrong)
        return np.concatenate(samples)

    def decode(self, numbers: Ids) -> None:
        """Decode the answers to some questions in full; rank 0 gets them."""
        journal = self._journal
        decoded = json.loads(self.ranks.first(lambda: json.dumps(list(journal.answers))))
        left = numbers[~np.isin(numbers, decoded)]

        def keep(answers: dict[int, str]) -> None:
            journal.answers |= answers
            journal.save()

        try:
            self._solve(left, "decoding wrong answers", self.model.n_positions or LONGEST, keep)
        finally:  # also if interrupted
            journal.save(now=len(left) > 0)

    def diagnose(self, numbers: Ids) -> tuple[dict[int, Mistake], Values]:
        """Return each decoded wrong answer with its kind, and the means of the diagnosis."""
        mistakes: dict[int, Mistake] = {}
        with self.show("diagnosing") as update, Diagnosis() as diagnosis:
            for number, question, answer in self.questions.texts(numbers):
                predicted = self._journal.answers[number]
                mistakes[number] = Mistake(
                    kind=diagnosis.kind(answer, predicted),
                    question=question,
                    answer=answer,
                    predicted=predicted,
                )
                update(len(mistakes), len(numbers))
        means = {"has_sympy": diagnosis.has_sympy, "n_out_of_time": diagnosis.n_out_of_time}
        return mistakes, means

    def scores(self, mistakes: dict[int, Mistake]) -> dict[str, SplitScore]:
        """Return the scores of all modules by split."""
        splits: dict[str, dict[str, ModuleScore]] = {}
        for index, asked in enumerate(self.questions.asked):
            numbers = self.questions.numbers(index)
            n_tokens = int(self.questions.answer_lengths[numbers].sum()) + len(numbers)
            by_kind: dict[str, list[Mistake]] = {kind: [] for kind in KINDS}
            for number in numbers.tolist():
                if number in mistakes:
                    by_kind[mistakes[number].kind].append(mistakes[number])
            splits.setdefault(asked.split, {})[asked.module] = ModuleScore(
                verdicts=self.right[numbers],
                loss=float(self._journal.loss[numbers].sum()) / n_tokens,
                n_tokens=n_tokens,
                sha256=asked.sha256,
                near_ties=sum(int(numbers[0]) <= tied <= int(numbers[-1]) for tied in self._tied),
                wrong={kind: len(wrong) for kind, wrong in by_kind.items() if wrong},
                examples=tuple(each for wrong in by_kind.values() for each in wrong[:EXAMPLES]),
            )
        return {name: SplitScore(modules) for name, modules in splits.items()}

    def near_ties(self) -> list[Values]:
        """Return the answers whose margin is below `NEAR_TIE`."""
        return self._listed(self._tied, [self.margins[number] for number in self._tied])

    def write(self, results: Results, file: Path | None) -> None:
        """Write the requested files, and remove those of an interrupted evaluation."""
        if self.options.predictions is not None:
            self._write_predictions(self.options.predictions)
        if file is not None:
            results.save(file)
        self._journal.remove()

    def _write_predictions(self, file: Path) -> None:
        """Write all answers as JSON lines; correct answers need no decoding."""
        decoded = self._journal.answers
        everything = np.arange(self.questions.n)
        with atomic_write(file) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
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
        """Return the margins of some answers in float64, computed by all ranks."""
        margins = np.zeros(self.questions.n)

        def share() -> None:
            if not len(numbers):
                return
            model = in_double(self.model)
            shares = list(self.questions.passes(numbers, CPU_TOKENS))
            for mine in shares[self.ranks.rank :: self.ranks.n_ranks]:
                verdicts = judge(model, *self._tokens(mine))
                # In an exact tie argmax takes the first token, which may be the correct one.
                tiny = np.where(verdicts.right, np.finfo(float).tiny, -np.finfo(float).tiny)
                margins[mine] = np.where(verdicts.margin == 0, tiny, verdicts.margin)

        self.ranks.each(share)
        return self._reduce(self.ranks.sum, margins)[numbers]

    def _solve(
        self, numbers: Ids, title: str, max_length: int, keep: Callable[[dict[int, str]], None]
    ) -> None:
        """Decode answers greedily, some at a time by all ranks, and give them to all ranks."""
        if not len(numbers):
            return
        ranks, at_once = self.ranks, DECODED_AT_ONCE * self.ranks.n_ranks
        with self.show(title) as update:
            for start in range(0, len(numbers), at_once):
                mine = numbers[start : start + at_once][ranks.rank :: ranks.n_ranks]
                asked = [question for _, question, _ in self.questions.texts(mine)]
                texts = ranks.each(partial(self.model.solve, asked, max_length=max_length))
                pairs = json.dumps(list(zip(mine.tolist(), texts, strict=True)))
                for rank in range(ranks.n_ranks):
                    keep(dict(json.loads(ranks.share(pairs, source=rank))))
                update(min(start + at_once, len(numbers)), len(numbers))

    def _reduce(self, operation: Callable[[Tensor], Tensor], array: Array) -> Array:
        """Return an array after a collective operation of all ranks."""
        if self.ranks.n_ranks == 1:
            return array
        reduced = operation(torch.from_numpy(array).to(self.ranks.device))
        return reduced.cpu().numpy()  # type: ignore[return-value]


def _check_inputs(
    model: AnyModel, questions: EvaluationQuestions, files: list[str | Path | None]
) -> None:
    """Raise early if texts are too long for the model, or if an output file is a folder."""
    longest = max(questions.question_lengths.max(), questions.answer_lengths.max())
    if model.n_positions is not None and longest + 2 > model.n_positions:
        raise SettingsError(
            f"the store has texts of {longest} tokens; the model reads at most "
            f"{model.n_positions - 2}"
        )
    for file in files:
        if file is not None and Path(file).is_dir():
            raise UserError(f"{file} is a folder; give a file to write to")


@contextmanager
def _unseen(_title: str) -> Iterator[Update]:
    yield lambda _done, _total: None

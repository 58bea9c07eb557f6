"""The plan of a reproduction: runs, time, memory and disk space, without starting it."""

import heapq
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from tp_transformer.data.mathematics.generate import generate
from tp_transformer.data.mathematics.modules import TRAIN_SPLITS
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import MANIFEST, Store, open_store
from tp_transformer.data.task import TRAIN
from tp_transformer.data.vocabulary import Ids
from tp_transformer.data.writer import write_store
from tp_transformer.model.flops import PASSES, config_flops
from tp_transformer.runtime.processes import n_cores
from tp_transformer.runtime.ranks import choose_device
from tp_transformer.study.reproduce.run import Reproduction, runs_at_once
from tp_transformer.study.reproduce.scale import ScaleRow
from tp_transformer.training import checkpoint
from tp_transformer.training.plan import TrainingPlan, plan_run

SECONDS = 10.0  # of measured steps, for all rows together
_SAMPLED = 400  # training questions that are generated to measure with
_LENGTHS = 4096  # questions whose lengths decide the number of operations
# A measured step on a CPU has at most so many operations: one or two seconds of a core.
_MOST_OPERATIONS = 1e11


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """What the runs of a row would take.

    Attributes:
        name: of the row
        steps: of a whole run
        batch_size: samples of a step
        steps_left: of each seed
        measured: the plan of a run with `measured_batch` samples in a step
        measured_batch: samples of a measured step
        flops: operations of a step
    """

    name: str
    steps: int
    batch_size: int
    steps_left: tuple[int, ...]
    measured: TrainingPlan
    measured_batch: int
    flops: float

    @property
    def sample_seconds(self) -> float:
        """The measured time of a sample."""
        return self.measured.step_seconds / self.measured_batch

    @property
    def step_seconds(self) -> float:
        """The time of a step, in proportion to its samples."""
        return self.sample_seconds * self.batch_size

    @property
    def run_flops(self) -> float:
        """The operations of a whole run."""
        return self.flops * self.steps

    @property
    def disk(self) -> int:
        """The bytes of the checkpoints of all seeds."""
        return self.measured.disk * len(self.steps_left)


@dataclass(frozen=True, kw_only=True)
class ReproductionPlan:
    """What a reproduction would take from now on.

    Attributes:
        rows: the plans of the rows
        at_once: number of runs at a time
        n_questions: number of questions to generate
        question_seconds: measured time to generate a question on one core
        question_bytes: disk space of a question
        n_tests: number of test questions that each run is scored on
        n_scored: number of runs to score
        source_tokens: mean number of tokens of a question, with start and end
        target_tokens: of an answer
        is_sample: whether the steps were measured on a sample of generated questions
    """

    rows: tuple[RowPlan, ...]
    at_once: int
    n_questions: int
    question_seconds: float
    question_bytes: float
    n_tests: int
    n_scored: int
    source_tokens: float
    target_tokens: float
    is_sample: bool

    @property
    def generation_seconds(self) -> float:
        """The time to generate the questions on all cores."""
        return self.n_questions * self.question_seconds / n_cores()

    @property
    def training_seconds(self) -> float:
        """The time of all runs, each started when one before it has ended."""
        n_seeds = max(len(row.steps_left) for row in self.rows)
        lengths = [
            row.steps_left[seed] * row.step_seconds
            for seed in range(n_seeds)
            for row in self.rows
            if row.steps_left[seed]
        ]
        return makespan(lengths, self.at_once)

    @property
    def scoring_seconds(self) -> float:
        """The time of the forward passes over the test questions, without decoded mistakes."""
        mean = sum(row.sample_seconds for row in self.rows) / len(self.rows)
        return self.n_scored * self.n_tests * mean / PASSES

    @property
    def memory(self) -> int | None:
        """The bytes of all processes at a time."""
        peaks = [row.measured.memory for row in self.rows]
        known = [peak for peak in peaks if peak is not None]
        return self.at_once * max(known) if known else None

    @property
    def disk(self) -> int:
        """The bytes of questions and checkpoints."""
        return int(self.n_questions * self.question_bytes) + sum(row.disk for row in self.rows)


def makespan(lengths: Sequence[float], n_workers: int) -> float:
    """Return the time of tasks in their order, each given to the worker that is free first."""
    ends = [0.0] * n_workers
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends)


def plan_reproduction(work: Reproduction, seconds: float = SECONDS) -> ReproductionPlan:
    """Return what a reproduction would take, measured on this machine; nothing is kept."""
    order = work.scale.order
    files = [] if order is None or work.data is not None else order.files()
    with _store(work) as (store, question_seconds, question_bytes), _one_thread():
        lengths = _lengths(store, work)
        is_there = store.path == work.store
        rows = [_row_plan(work, row, store, lengths, seconds) for row in work.scale.rows]
        if is_there:
            n_tests = sum(
                segment.count
                for name, split in store.items()
                if name != TRAIN
                for segment in split.select(work.scale.modules)
            )
        else:
            n_tests = sum(len(file) for file in files if file.split not in TRAIN_SPLITS)
    return ReproductionPlan(
        rows=tuple(rows),
        at_once=min(runs_at_once(), len(work.runs())),
        n_questions=0 if is_there else sum(len(file) for file in files),
        question_seconds=question_seconds,
        question_bytes=question_bytes,
        n_tests=n_tests,
        n_scored=sum(not work.results(*key).is_file() for key in work.runs()),
        source_tokens=float(lengths[0].mean()),
        target_tokens=float(lengths[1].mean()),
        is_sample=not is_there,
    )


def _row_plan(
    work: Reproduction, row: ScaleRow, store: Store, lengths: tuple[Ids, Ids], seconds: float
) -> RowPlan:
    scale = work.scale
    config = scale.config(row, scale.seeds[0])
    vocabulary = store.task.vocabulary
    per_sample = config_flops(config.model, *lengths, vocabulary) / len(lengths[0])
    size = config.data.batch_size
    changed: dict[str, object] = {}
    if choose_device("auto").type == "cpu":
        size = min(size, max(1, int(_MOST_OPERATIONS / per_sample)))
        changed = {"data.batch_size": size, "training.precision": "float32"}
    # A folder that is not there: what a run in its own folder has left is counted below.
    folder = work.run_folder(row, scale.seeds[0]).with_name("measured")
    measured = plan_run(
        scale.config(row, scale.seeds[0], changed),
        store,
        folder,
        seconds=seconds / len(scale.rows),
    )
    steps = config.training.steps
    assert steps is not None  # noqa: S101, budgets are in steps
    return RowPlan(
        name=row.name,
        steps=steps,
        batch_size=config.data.batch_size,
        steps_left=tuple(_steps_left(work, row, seed, steps) for seed in scale.seeds),
        measured=measured,
        measured_batch=size,
        flops=per_sample * config.data.batch_size,
    )


def _steps_left(work: Reproduction, row: ScaleRow, seed: int, steps: int) -> int:
    if work.results(row, seed).is_file():
        return 0
    state = checkpoint.newest_state(work.run_folder(row, seed))
    return steps - (0 if state is None else state.step)


def _lengths(store: Store, work: Reproduction) -> tuple[Ids, Ids]:
    """Return the numbers of tokens of questions and answers of the first samples."""
    feed = Feed(store[TRAIN], batch_size=_LENGTHS, modules=work.scale.modules)
    sources, targets = feed.tokens(0)
    return sources.lengths, targets.lengths


@contextmanager
def _store(work: Reproduction) -> Iterator[tuple[Store, float, float]]:
    """Yield questions to measure with, and the seconds and bytes of one generated question.

    They are those of the reproduction if it has them already, or else a small sample.
    """
    if work.data is not None or (work.store / MANIFEST).is_file():
        yield open_store(work.store), 0.0, 0.0
        return
    with tempfile.TemporaryDirectory() as folder:
        path, order = Path(folder) / "sample", work.scale.order or Order()
        _write_sample(Path(folder) / "first", order, each=1)  # imports the generator
        start = time.perf_counter()
        count = _write_sample(path, order, each=2)
        seconds = (time.perf_counter() - start) / count
        n_bytes = sum(file.stat().st_size for file in path.glob("*.arrow"))
        yield open_store(path), seconds, n_bytes / count


def _write_sample(path: Path, order: Order, *, each: int) -> int:
    """Write a store with some training questions of each file; return their number."""
    files = [file for file in order.files() if file.split in TRAIN_SPLITS]
    each *= max(1, _SAMPLED // len(files) // 2)
    with write_store(path, MATHEMATICS, {"kind": "sample"}) as writer:
        for file in files:
            found = list(generate(file.module, split=file.split, count=each, seed=order.seed))
            questions, answers = [one.question for one in found], [one.answer for one in found]
            writer.append(*file.key, questions, answers)
    return each * len(files)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the runs do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

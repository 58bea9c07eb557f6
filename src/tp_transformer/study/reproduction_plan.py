"""`tpt reproduce --dry-run`: runs, time, memory and disk space, without starting anything.

For the paper's size it also has the commands for GPUs; docs/scaling.md estimates their time.
"""

import heapq
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

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
from tp_transformer.show.table import Table
from tp_transformer.study.engine import one_thread
from tp_transformer.study.reproduce import Reproduction, read_band, runs_at_once
from tp_transformer.study.scales import PAPER, ScaleRow
from tp_transformer.training import checkpoint
from tp_transformer.training.launch import GPUS_PER_MACHINE, Launch
from tp_transformer.training.plan import TrainingPlan, plan_run, size_text

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
        steps_left: of each seed
        flops: operations of a step
        training: the plan of a run; its times are measured in batches that may be smaller
    """

    name: str
    steps: int
    steps_left: tuple[int, ...]
    flops: float
    training: TrainingPlan


@dataclass(frozen=True, kw_only=True)
class ReproductionPlan:
    """What a reproduction would take from now on.

    Attributes:
        rows: the plans of the rows
        at_once: number of runs at a time
        n_questions: number of questions to generate
        n_tests: number of test questions that each run is scored on
        seconds: time to train, to generate questions and to score, which excludes the decoding of
            mistakes
        memory: bytes of all processes at a time; None if unknown
        disk: bytes of questions and checkpoints
        is_sample: whether the steps were measured on a sample of generated questions
    """

    rows: tuple[RowPlan, ...]
    at_once: int
    n_questions: int
    n_tests: int
    seconds: dict[str, float]
    memory: int | None
    disk: int
    is_sample: bool


def plan_reproduction(work: Reproduction, seconds: float = SECONDS) -> ReproductionPlan:
    """Return what a reproduction would take, measured on this machine; nothing is kept."""
    runs = work.runs()
    with _store(work) as (store, question_seconds, question_bytes), one_thread():
        is_sample = store.path != work.store
        files = work.scale.order.files() if is_sample and work.scale.order is not None else []
        tests = [split for name, split in store.items() if name != TRAIN]
        n_tests = (
            sum(file.count for file in files if file.split not in TRAIN_SPLITS)
            if is_sample
            else sum(part.count for split in tests for part in split.select(work.scale.modules))
        )
        lengths = _lengths(store, work)
        rows = [_row_plan(work, row, store, lengths, seconds) for row in work.scale.rows]
    at_once = min(runs_at_once(), len(runs))
    n_questions, n_scored = sum(file.count for file in files), sum(not r.is_scored for r in runs)
    sample_seconds = [row.training.step_seconds / row.training.batch_size for row in rows]
    peaks = [row.training.memory for row in rows if row.training.memory is not None]
    return ReproductionPlan(
        rows=tuple(rows),
        at_once=at_once,
        n_questions=n_questions,
        n_tests=n_tests,
        seconds={
            "train": training_seconds(rows, at_once),
            "generate questions": n_questions * question_seconds / n_cores(),
            "score": n_scored * n_tests * sum(sample_seconds) / len(rows) / PASSES,
        },
        memory=at_once * max(peaks) if peaks else None,
        disk=int(n_questions * question_bytes)
        + sum(row.training.disk * len(row.steps_left) for row in rows),
        is_sample=is_sample,
    )


def training_seconds(rows: Sequence[RowPlan], at_once: int) -> float:
    """Return the time of all runs, each started when one before it has ended."""
    by_seed = zip(*(row.steps_left for row in rows), strict=True)
    ends = [0.0] * at_once
    for steps_left in by_seed:
        for row, steps in zip(rows, steps_left, strict=True):
            heapq.heappush(ends, heapq.heappop(ends) + steps * row.training.step_seconds)
    return max(ends)


def _row_plan(
    work: Reproduction, row: ScaleRow, store: Store, lengths: tuple[Ids, Ids], seconds: float
) -> RowPlan:
    scale = work.scale
    config = scale.config(row, scale.seeds[0])
    batch_size, steps = config.data.batch_size, config.training.steps or 0
    sample_flops = config_flops(config.model, *lengths, store.task.vocabulary) / len(lengths[0])
    measured_size, changed = batch_size, {}
    if choose_device("auto").type == "cpu":
        measured_size = min(batch_size, max(1, int(_MOST_OPERATIONS / sample_flops)))
        changed = {"data.batch_size": measured_size, "training.precision": "float32"}
    measured = plan_run(
        scale.config(row, scale.seeds[0], changed),
        store,
        work.out / "measured",  # which is not there: what runs have left is counted below
        seconds=seconds / len(scale.rows),
    )
    step_seconds = measured.step_seconds * batch_size / measured_size
    return RowPlan(
        name=row.name,
        steps=steps,
        steps_left=tuple(_steps_left(work, row, seed, steps) for seed in scale.seeds),
        flops=sample_flops * batch_size,
        training=replace(measured, batch_size=batch_size, step_seconds=step_seconds),
    )


def _steps_left(work: Reproduction, row: ScaleRow, seed: int, steps: int) -> int:
    run = work.run(row, seed)
    state = checkpoint.newest_state(run.folder)
    return 0 if run.is_scored else steps - (0 if state is None else state.step)


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
            examples = list(generate(file.module, split=file.split, count=each, seed=order.seed))
            questions = [example.question for example in examples]
            writer.append(*file.key, questions, [example.answer for example in examples])
    return each * len(files)


def render_plan(work: Reproduction, plan: ReproductionPlan, console: Console) -> None:
    """Print a plan."""
    _print(_lines(work, plan), console)
    console.print()
    heads = ("row", "parameters", "steps", "batch", "GFLOP/step", "s/step", "time/run")
    rows = [
        (
            row.name,
            f"{row.training.n_parameters:,}",
            f"{row.steps:,}",
            f"{row.training.batch_size:,}",
            _rounded(row.flops / 1e9),
            _rounded(row.training.step_seconds),
            duration_text(row.steps * row.training.step_seconds),
        )
        for row in plan.rows
    ]
    console.print(Table(heads=heads, rows=rows).terminal(wrapped=False))
    if work.scale.name == PAPER.name:
        _render_commands(work, console)


def _print(lines: Iterator[str] | list[str], console: Console) -> None:
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _lines(work: Reproduction, plan: ReproductionPlan) -> Iterator[str]:
    scale, first = work.scale, plan.rows[0].training
    seeds = " ".join(map(str, scale.seeds))
    n_left = sum(left > 0 for row in plan.rows for left in row.steps_left)
    yield f"scale    {scale.name}: {len(plan.rows)} rows of Table 1, seeds {seeds}"
    yield f"runs     {n_left} of {len(work.runs())} left, {plan.at_once} at a time"
    if plan.n_questions:
        yield f"data     {plan.n_questions:,} questions to generate, {plan.n_tests:,} of them tests"
    elif plan.n_tests:
        yield f"data     {work.store}, {plan.n_tests:,} test questions"
    else:
        yield "data     the published questions, prepared with `tpt data prepare`: --data DIR"
    spent = [f"{duration_text(s)} to {what}" for what, s in plan.seconds.items() if s]
    yield f"time     {', '.join(spent) or 'nothing left'}; without analyses and the report"
    sample = ", on a sample of generated questions" if plan.is_sample else ""
    yield (
        f"         measured for {SECONDS:.0f} s on {first.where}{sample}, at the present load of "
        "this machine; large models on a CPU in smaller batches and float32"
    )
    memory = "unknown" if plan.memory is None else f"at least {size_text(plan.memory)}"
    yield f"memory   {memory}"
    yield f"disk     {size_text(plan.disk)}; {size_text(first.free_bytes)} are free"
    band = read_band(scale.name)
    yield f"band     {'not measured yet' if band is None else f'measured {band.source}'}"


def duration_text(seconds: float) -> str:
    """Format an estimated duration, such as 50 s, 12 min, 9.5 h, 12 days or 1.2 years."""
    units = {"s": 1, "min": 60, "h": 3600, "days": 86400, "years": 365 * 86400}
    unit = next((unit for unit, size in units.items() if seconds < 100 * size), "years")
    return f"{_rounded(seconds / units[unit])} {unit}"


def _rounded(value: float) -> str:
    """Format a number with two digits at least, and no exponent."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _render_commands(work: Reproduction, console: Console) -> None:
    """Print the command lines for GPUs."""
    launches = [launch(work, row) for row in work.scale.rows]
    scale, data = work.scale.name, str(work.data or "math")
    again = ["tpt", "reproduce", "--scale", scale, "--data", data, "--out", str(work.out)]
    for title, lines in (
        (f"{GPUS_PER_MACHINE} GPUs of one machine", [each.one_machine() for each in launches]),
        ("Two machines: the same command on both", [each.machines() for each in launches]),
        ("Slurm: this script for each row, with its --config and --run", [launches[0].slurm()]),
        ("Then, to score, interpret and report", [shlex.join(again)]),
    ):
        console.print()
        console.print(Rule(Text(title, style="bold"), align="left"))
        _print(lines, console)


def launch(work: Reproduction, row: ScaleRow) -> Launch:
    """Return how to train the first seed of a row on GPUs, in the folder of the reproduction."""
    run = work.run(row, work.scale.seeds[0])
    data = str(work.data or "math")
    return Launch(config=row.preset, data=data, run=str(run.folder), options=run.options)

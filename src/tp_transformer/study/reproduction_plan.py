"""`tpt reproduce --dry-run`: the runs that are left, and the plan of each row, as text.

For the paper's size it also has the commands for GPUs; docs/scaling.md estimates their time.
"""

import heapq
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tp_transformer.data.mathematics.modules import TRAIN_SPLITS
from tp_transformer.data.mathematics.produce import Order, generate
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import MANIFEST, Store, open_store
from tp_transformer.data.writer import write_store
from tp_transformer.model.checkpoint import from_config
from tp_transformer.model.config import WithoutWeights
from tp_transformer.runtime.ranks import choose_device
from tp_transformer.study.engine import StudyRun, one_thread
from tp_transformer.study.reproduce import Reproduction, read_band, runs_at_once
from tp_transformer.study.scales import PAPER, ScaleRow
from tp_transformer.training import checkpoint
from tp_transformer.training.plan import GPUS_PER_MACHINE, MEASURED, Launch, TrainingPlan, plan_run
from tp_transformer.training.record import duration

_SAMPLED = 400  # training questions that are generated to measure with
# A step that is measured on a CPU has at most so many samples times parameters: a few seconds.
_LARGEST_STEP = 2e8


def plan_lines(study: Reproduction, seconds: float = MEASURED) -> Iterator[str]:
    """Yield what a reproduction would take, measured on this machine; nothing is kept."""
    scale, runs, order = study.scale, study.runs(), study.scale.order
    left = [run for run in runs if steps_left(run)]
    seeds = " ".join(map(str, scale.seeds))
    at_once = min(runs_at_once(), len(runs))
    yield f"scale       {scale.name}: {len(scale.rows)} rows of Table 1, seeds {seeds}"
    yield f"runs        {len(left)} of {len(runs)} left, {at_once} at a time"
    with _store(study) as store, one_thread():
        if store.path == study.store:
            yield f"data        {store.path}"
        elif order is not None:
            yield f"data        {sum(map(len, order.files())):,} questions to generate"
        else:
            yield "data        the published questions, by `tpt data prepare`: --data DIR"
        band = read_band(scale.name)
        yield f"band        {'not measured yet' if band is None else f'measured {band.source}'}"
        plans = {row.name: _row_plan(study, row, store, seconds) for row in scale.rows}
    for name, plan in plans.items():
        yield from ("", f"{name}:", *plan.lines())
    times = [steps_left(run) * plans[run.folder.parent.name].step_seconds for run in left]
    yield ""
    yield f"training    {duration(makespan(times, at_once))} in all, without scores and analyses"
    if store.path != study.store:
        yield "            measured on a sample of generated questions"
    if choose_device("auto").type == "cpu":
        yield "            large models are measured in smaller batches and float32"
    if scale.name == PAPER.name:
        yield from _commands(study)


def steps_left(run: StudyRun) -> int:
    """Return the number of steps that a run has left."""
    state = checkpoint.newest_state(run.folder)
    steps = run.config.training.steps or 0
    return 0 if run.is_scored else steps - (0 if state is None else state.step)


def makespan(lengths: Sequence[float], n_workers: int) -> float:
    """Return the time of tasks in their order, each given to the worker that is free first."""
    ends = [0.0] * n_workers
    for length in lengths:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends)


def _row_plan(study: Reproduction, row: ScaleRow, store: Store, seconds: float) -> TrainingPlan:
    """Return the plan of a run of a row from its first step, at the speed of whole batches."""
    seed = study.scale.seeds[0]
    config = study.scale.config(row, seed)
    batch_size, changed = config.data.batch_size, {}
    if choose_device("auto").type == "cpu":
        with WithoutWeights():
            n_parameters = from_config(config.model, store.task.vocabulary).n_parameters
        measured_size = min(batch_size, max(1, int(_LARGEST_STEP / n_parameters)))
        changed = {"data.batch_size": measured_size, "training.precision": "float32"}
    config = study.scale.config(row, seed, changed)
    plan = plan_run(config, store, study.out / "measured", seconds=seconds)  # no such folder
    factor = batch_size / plan.batch_size
    return replace(
        plan,
        batch_size=batch_size,
        step_seconds=factor * plan.step_seconds,
        operations=None if plan.operations is None else factor * plan.operations,
    )


@contextmanager
def _store(study: Reproduction) -> Iterator[Store]:
    """Yield the questions of the reproduction, or a sample to measure with."""
    if study.data is not None or (study.store / MANIFEST).is_file():
        yield open_store(study.store)
        return
    order = study.scale.order or Order()
    files = [file for file in order.files() if file.split in TRAIN_SPLITS]
    count = max(1, _SAMPLED // len(files))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        with write_store(path, MATHEMATICS, {"kind": "sample"}) as writer:
            for file in files:
                examples = generate(file.module, split=file.split, count=count, seed=order.seed)
                texts = [(example.question, example.answer) for example in examples]
                questions, answers = map(list, zip(*texts, strict=True))
                writer.append(*file.key, questions, answers)
        yield open_store(path)


def _commands(study: Reproduction) -> Iterator[str]:
    """Yield the command lines for GPUs."""
    launches = [launch(study, row) for row in study.scale.rows]
    scale, data = study.scale.name, str(study.data or "math")
    again = ["tpt", "reproduce", "--scale", scale, "--data", data, "--out", str(study.out)]
    for title, lines in (
        (f"{GPUS_PER_MACHINE} GPUs of one machine", [each.one_machine() for each in launches]),
        ("Two machines: the same command on both", [each.machines() for each in launches]),
        ("Slurm: this script for each row, with its --config and --run", [launches[0].slurm()]),
        ("Then, to score, interpret and report", [shlex.join(again)]),
    ):
        yield from ("", f"{title}:", *lines)


def launch(study: Reproduction, row: ScaleRow) -> Launch:
    """Return how to train the first seed of a row on GPUs, in the folder of the reproduction."""
    run = study.run(row, study.scale.seeds[0])
    data = str(study.data or "math")
    return Launch(config=row.preset, data=data, run=str(run.folder), options=run.options)

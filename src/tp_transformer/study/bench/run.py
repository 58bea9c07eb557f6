"""Running a bench: data, runs in parallel processes, costs, and the table.

DIR/TASK/task.json                    what all runs of the task have in common
DIR/TASK/data/                        the store
DIR/TASK/runs/VARIANT/seed-0/         a run
DIR/TASK/runs/VARIANT/seed-0.json     its scores, of `tpt compare`
DIR/TASK/cost.json                    seconds of training steps
DIR/bench.json, .md, .tex, .svg, …    the table and its figure

A run that has its scores is not repeated, and an interrupted one continues from its checkpoint.
"""

import json
from typing import Any

import torch

from tp_transformer import settings
from tp_transformer.data.store import Store, open_store
from tp_transformer.errors import ResultsError, UserError
from tp_transformer.registry import load_extensions
from tp_transformer.runtime.files import refuse_other_content, write_json
from tp_transformer.runtime.memory import keep_freed_memory
from tp_transformer.runtime.processes import OpenPool, in_order
from tp_transformer.runtime.progress import Show
from tp_transformer.runtime.run_folder import LAST
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.study.bench.cost import CostRequest, StepSeconds, measure_costs
from tp_transformer.study.bench.plan import BENCH_TASKS, BenchPlan, BenchRun
from tp_transformer.study.bench.table import BenchTable, tabulate
from tp_transformer.training.config import config_values
from tp_transformer.training.run import train

TASK, COST = "task.json", "cost.json"


def bench(plan: BenchPlan, open_pool: OpenPool, quiet_pool: OpenPool, show: Show) -> BenchTable:
    """Train and score what is missing, measure the costs, and return the table.

    Args:
        plan: what to compare
        open_pool: opens the processes that train
        quiet_pool: opens the one process that measures costs, after training
        show: makes a progress bar from a title
    """
    prepare(plan, open_pool, show)
    runs = plan.runs()
    pending = [run for run in runs if not run.is_done]
    with show("training") as update:
        n_done = len(runs) - len(pending)
        update(n_done, len(runs))
        for number, _ in enumerate(in_order(train_run, pending, open_pool), n_done + 1):
            update(number, len(runs))
    costed = {"none", *plan.variants}
    missing = [task for task in plan.tasks if not costed <= _read_costs(plan, task).keys()]
    requests = [_cost_request(plan, task) for task in missing]
    with show("measuring costs") as update:
        measured = in_order(measure_costs, requests, quiet_pool)
        for number, (task, seconds) in enumerate(zip(missing, measured, strict=True), 1):
            write_json(plan.folder(task) / COST, seconds)
            update(number, len(missing))
    return tabulated(plan)


def tabulated(plan: BenchPlan) -> BenchTable:
    """Return the table of the runs that are done; nothing is trained or written."""
    if not any(run.is_done for run in plan.runs()):
        raise ResultsError(f"{plan.out} has no finished run of these tasks, bindings and seeds")
    for task in plan.tasks:
        if (plan.folder(task) / TASK).is_file():
            _refuse_other_task(plan, task, open_store(plan.data(task)))
    return tabulate(plan, {task: _read_costs(plan, task) for task in plan.tasks})


def prepare(plan: BenchPlan, open_pool: OpenPool, show: Show) -> None:
    """Write the data of all tasks; raise if the folder has runs with other settings or data."""
    is_begun = any(plan.out.glob(f"*/{TASK}"))
    refuse_other_content(plan.out, "the bench", is_begun=is_begun, own=list(BENCH_TASKS))
    for task in plan.tasks:
        with show(f"data of {task}") as update:
            store = BENCH_TASKS[task].write(plan.data(task), open_pool, update)
        if (plan.folder(task) / TASK).is_file():
            _refuse_other_task(plan, task, store)
        else:
            write_json(plan.folder(task) / TASK, _described(plan, task, store))


def train_run(run: BenchRun) -> None:
    """Train and score a model, in a process of its own that uses one core.

    The model at the end of the budget is scored, not that with the best validation.
    """
    load_extensions()
    keep_freed_memory()
    torch.set_num_threads(1)
    outcome = train(run.config, run.data, run.folder, device="cpu", quiet=True)
    if outcome.signal is not None:
        raise UserError(f"{run.folder} was stopped by a signal; the same command resumes it")
    splits = open_store(run.data).task.test_splits
    choice, work = QuestionChoice(splits=splits), EvaluationOptions(diagnose=0)
    evaluate(run.folder / LAST, run.data, run.results, choice, work, device="cpu")


def _described(plan: BenchPlan, task: str, store: Store) -> dict[str, dict[str, Any]]:
    """Return the settings that all runs of a task share, and the hashes of its data."""
    values = config_values(plan.config(task, "none", 0))
    del values["training"]["seed"]
    described = {**values, "data_sha256": {name: split.digest for name, split in store.items()}}
    shared: dict[str, dict[str, Any]] = json.loads(json.dumps(described))  # JSON has no tuples
    return shared


def _refuse_other_task(plan: BenchPlan, task: str, store: Store) -> None:
    file = plan.folder(task) / TASK
    try:
        recorded = json.loads(file.read_text("utf-8"))
        found = settings.differences(recorded, _described(plan, task, store))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ResultsError(f"{file} is damaged: {error!r:.200}") from error
    if found:
        raise ResultsError(
            f"{plan.folder(task)} has runs with other settings: {found[0]}; repeat the command "
            "that began it, or choose another --out"
        )


def _cost_request(plan: BenchPlan, task: str) -> CostRequest:
    variants = dict.fromkeys(["none", *plan.variants])  # all costs are relative to none
    configs = {variant: plan.config(task, variant, 0) for variant in variants}
    return CostRequest(plan.data(task), configs)


def _read_costs(plan: BenchPlan, task: str) -> StepSeconds:
    """Return the measured seconds; none if there are none yet."""
    file = plan.folder(task) / COST
    if not file.is_file():
        return {}
    try:
        values = json.loads(file.read_text("utf-8"))
        return {str(name): [float(one) for one in own] for name, own in values.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ResultsError(f"{file} is damaged; delete it to measure again") from error

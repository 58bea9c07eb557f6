"""The binding bench: bindings trained on the same samples at one budget, and compared.

DIR/TASK/task.json                    what all runs of the task have in common
DIR/TASK/data/                        the store
DIR/TASK/runs/VARIANT/seed-0/         a run
DIR/TASK/runs/VARIANT/seed-0.json     its scores, of `tpt compare`
DIR/TASK/cost.json                    seconds of training steps
DIR/bench.json, .md, .tex, .svg, …    the table and its figure

All runs of a task and seed have the same settings except those of the model, so that they train on
the same sequence of samples for the same number of steps.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from tp_transformer.data.generated import TASKS, write_task
from tp_transformer.data.mathematics.produce import Order
from tp_transformer.data.store import Store, open_store
from tp_transformer.errors import ResultsError, SettingsError
from tp_transformer.model.binding import BINDINGS, options_of
from tp_transformer.model.checkpoint import from_config, match_parameters, model_config
from tp_transformer.model.config import TransformerConfig, WithoutWeights
from tp_transformer.registry import Registry
from tp_transformer.runtime.files import refuse_other_content, write_json
from tp_transformer.runtime.memory import keep_freed_memory
from tp_transformer.runtime.processes import n_cores
from tp_transformer.runtime.ranks import open_ranks
from tp_transformer.runtime.run_folder import seed_folder
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.settings import nearest, require_known
from tp_transformer.study.bench_table import BenchTable, RunKey, StepSeconds, tabulate
from tp_transformer.study.engine import (
    StudyRun,
    begin,
    generated_store,
    one_thread,
    read_json,
    train_side_by_side,
)
from tp_transformer.training.config import RunConfig, config_values
from tp_transformer.training.setup import make_loop

TASK, COST = "task.json", "cost.json"
N_VALIDATIONS = 20  # of a run; the resolution of the samples to 90%
COST_ROUNDS = 10
COST_STEPS = 2  # of a variant in a round: `Loop.measure` takes one to warm up and one more
_UNITS = {"k": 1_000, "m": 1_000_000}
MATCHED = "none-matched"
# Variants of the model that are not the name of a binding. `none-matched` also has another d_ff.
NAMED: dict[str, dict[str, Any]] = {
    MATCHED: {"binding": "none"},
    "tp-transformer": {"binding": "hadamard", "embedding_binding": True},
}


@dataclass(frozen=True, kw_only=True)
class BenchTask:
    """What a bench trains on, and the settings of its runs."""

    preset: str = "tp-transformer-tiny"
    samples: int = 64_000  # the default budget of a run
    task: str | None = None  # a registered task that is generated as a whole
    options: Mapping[str, Any] = field(default_factory=dict)  # of that task
    order: Order | None = None  # questions of the Mathematics Dataset, if there is no `task`
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # changes of the preset

    def write(self, folder: Path) -> Store:
        """Write the store of the task, unless it is there already."""
        if self.order is not None:
            return generated_store(self.order, folder)
        return write_task(folder, self.task or "", **self.options)


BENCH_TASKS: Registry[BenchTask] = Registry("task of the bench", "tasks of the bench")

_SAMPLES = {"scan": 64_000, "lookup": 32_000, "recall": 320_000, "quotients": 128_000}
for _task, _samples in _SAMPLES.items():
    BENCH_TASKS.register(_task)(BenchTask(preset=_task, samples=_samples, task=_task))
for _split in ("length", "add-jump"):
    BENCH_TASKS.register(f"scan-{_split}")(
        BenchTask(preset="scan", task="scan", options={"split": _split})
    )
# Modules of the Mathematics Dataset with short questions, and their shares of the samples. Those
# that the tiny models of the demo learn first have more.
SUBSET = {
    "numbers__place_value": 4,
    "numbers__round_number": 2,
    "comparison__pair": 2,
    "comparison__closest": 2,
    "comparison__kth_biggest": 1,
    "arithmetic__add_or_sub": 1,
}
BENCH_TASKS.register("mathematics-subset")(
    BenchTask(
        order=Order(modules=tuple(SUBSET), count=5_000, test_count=500),
        settings={
            "model": {"n_heads": 8},
            "data": {"batch_size": 32, "weights": SUBSET},
            "optim": {"warmup": 50},
            "validation": {"count": 512},
        },
    )
)


def bench_task(name: str) -> BenchTask:
    """Return a task of the bench; any other registered task has the settings of a tiny model."""
    is_other = name in TASKS and name not in BENCH_TASKS
    return BenchTask(task=name) if is_other else BENCH_TASKS[name]


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What a bench compares."""

    out: Path  # folder of all runs and of the table
    tasks: Sequence[str]  # names in `BENCH_TASKS`, or of other registered tasks
    # Bindings or names in `NAMED`, each with fields of the model, such as sigmoid+per_head=true.
    variants: Sequence[str]
    seeds: Sequence[int]  # of the initial weights and the order of the samples
    budget: int | None = None  # samples of each run; absent: the default of each task
    reference: str | None = None  # a variant to compare with; absent: `none`, or else the first

    def __post_init__(self) -> None:
        for name in ("tasks", "variants", "seeds"):
            values = tuple(dict.fromkeys(getattr(self, name)))
            if not values:
                raise SettingsError(f"a bench needs {name}")
            object.__setattr__(self, name, values)
        if self.reference is None:
            first = "none" if "none" in self.variants else self.variants[0]
            object.__setattr__(self, "reference", first)
        if self.reference not in self.variants:
            raise SettingsError(
                f"the reference {self.reference!r} is not one of the bindings"
                f"{nearest(str(self.reference), self.variants)}: {', '.join(self.variants)}"
            )
        _ = self._configs  # raises if a model cannot be built

    def data(self, task: str) -> Path:
        """Return the folder of the store of a task."""
        return self.out / task / "data"

    def config(self, task: str, variant: str, seed: int) -> RunConfig:
        """Return the settings of a run; there are always those of `none`."""
        config = self._configs[task, variant]
        return replace(config, training=replace(config.training, seed=seed))

    @cached_property
    def _configs(self) -> dict[tuple[str, str], RunConfig]:
        """The settings of all runs, with the seed of the preset."""
        configs = {}
        for name in self.tasks:
            task = bench_task(name)
            base = RunConfig.of(task.preset, **task.settings)
            samples = task.samples if self.budget is None else self.budget
            steps = -(-samples // base.data.batch_size)
            every = max(1, steps // N_VALIDATIONS)
            training = replace(base.training, steps=steps, checkpoint_every=every, keep=1)
            validation = replace(base.validation, every=every, monitor=0)
            fields = config_values(base)["model"]
            for variant in dict.fromkeys(["none", *self.variants]):
                model = variant_model(variant, fields)
                configs[name, variant] = replace(
                    base, model=model, training=training, validation=validation
                )
        return configs

    def runs(self) -> dict[RunKey, StudyRun]:
        """Return all runs; those of the first seed come first, to give a table early."""
        runs = {}
        for seed in self.seeds:
            for task in self.tasks:
                for variant in self.variants:
                    folder = seed_folder(self.out / task / "runs" / variant, seed)
                    runs[task, variant, seed] = StudyRun(
                        name=f"{task}, {variant}, seed {seed}",
                        preset=bench_task(task).preset,
                        config=self.config(task, variant, seed),
                        data=self.data(task),
                        folder=folder,
                        results=folder.with_name(f"{folder.name}.json"),
                        device="cpu",
                        scores_last=True,  # no checkpoint is selected
                    )
        return runs


def variant_model(variant: str, fields: Mapping[str, Any]) -> TransformerConfig:
    """Return the model of a variant, from the fields of the model of a preset.

    The embedding is not bound, except in the variant `tp-transformer`: variants differ in their
    attention alone, and `none` is a plain Transformer.
    """
    name, *changes = variant.split("+")
    known = [*BINDINGS, *NAMED]
    if name not in known:
        raise SettingsError(
            f"there is no binding {name!r}{nearest(name, known)}; the bench has "
            f"{', '.join(known)}, and fields of the model follow as in sigmoid+per_head=true"
        )
    values = {**fields, "embedding_binding": False, **NAMED.get(name, {"binding": name})}
    if values["binding"] == "low-rank":  # the size of the paper's compression, unless given
        values["rank"] = values["d_model"] // values["n_heads"]
    changed = dict(_change(variant, text) for text in changes)
    options = options_of(BINDINGS[values["binding"]])
    require_known(changed, [*options, *TransformerConfig.__dataclass_fields__], variant)
    values |= changed
    config: TransformerConfig = model_config(values)
    if name != MATCHED:
        return config
    with WithoutWeights(), torch.device("meta"):
        bound = from_config(replace(config, binding="hadamard"))
    return match_parameters(config, bound.n_parameters)


def _change(variant: str, text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise SettingsError(f"{variant!r}: {text!r} is not a field and its value, such as rank=32")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def samples_of(text: str) -> int:
    """Return a number of samples that is written such as 64000, 64k or 1.5M."""
    number, factor = text.strip(), 1
    if number[-1:].lower() in _UNITS:
        number, factor = number[:-1], _UNITS[number[-1].lower()]
    try:
        count = float(number) * factor
        if not (count >= 1 and count == int(count)):
            raise ValueError
    except (ValueError, OverflowError):
        raise SettingsError(
            f"the budget is a number of samples, such as 64000, 64k or 1.5M, not {text!r}"
        ) from None
    return int(count)


def bench(
    plan: BenchPlan, processes: int | None = None, console: Console | None = None
) -> BenchTable:
    """Train and score what is missing, measure the costs, and return the table.

    Args:
        plan: what to compare
        processes: number of runs at a time, each with one thread; by default one per core
        console: for the progress; by default standard error
    """
    console = console or Console(stderr=True, highlight=False)
    refuse_other_content(
        plan.out,
        "the bench",
        is_begun=any(plan.out.glob(f"*/{TASK}")),
        own=[*BENCH_TASKS, *plan.tasks],
    )
    for task in plan.tasks:
        begin(plan.out / task / TASK, _shared(plan, task, bench_task(task).write(plan.data(task))))
    runs = list(plan.runs().values())
    pending = [run for run in runs if not run.is_scored]

    def score(run: StudyRun) -> None:
        splits = open_store(run.data).task.test_splits
        with one_thread():
            run.score(QuestionChoice(splits=splits), EvaluationOptions(diagnose=0))
        console.print(f"{sum(each.is_scored for each in runs)} of {len(runs)} runs are done")

    keep_freed_memory()
    train_side_by_side(pending, console, processes or n_cores(), ended=score)
    for task in plan.tasks:
        variants = dict.fromkeys(["none", *plan.variants])  # all costs are relative to none
        if not variants.keys() <= _costs(plan, task).keys():
            console.print(f"measuring the costs of {task}")
            configs = {variant: plan.config(task, variant, 0) for variant in variants}
            write_json(plan.out / task / COST, measure_costs(plan.data(task), configs))
    return tabulated(plan)


def tabulated(plan: BenchPlan) -> BenchTable:
    """Return the table of the runs that are done; nothing is trained or written."""
    runs = plan.runs()
    if not any(run.is_scored for run in runs.values()):
        raise ResultsError(f"{plan.out} has no finished run of these tasks, bindings and seeds")
    for task in plan.tasks:
        if (file := plan.out / task / TASK).is_file():
            begin(file, _shared(plan, task, open_store(plan.data(task))))
    costs = {task: _costs(plan, task) for task in plan.tasks}
    return tabulate(runs, str(plan.reference), costs)


def _shared(plan: BenchPlan, task: str, store: Store) -> dict[str, dict[str, Any]]:
    """Return the settings that all runs of a task share, and the hashes of its data."""
    values = config_values(plan.config(task, "none", 0))
    del values["training"]["seed"]
    return {**values, "data_sha256": {name: split.digest for name, split in store.items()}}


def _costs(plan: BenchPlan, task: str) -> StepSeconds:
    """Return the measured seconds of each variant; none if there are none yet."""
    file = plan.out / task / COST
    return read_json(file, StepSeconds) if file.is_file() else {}


def measure_costs(data: Path, configs: Mapping[str, RunConfig]) -> StepSeconds:
    """Return the processor seconds of a step of each variant in each round, with one thread.

    Speeds of runs that trained at the same time depend on what else the machine did. Here the
    variants take turns on the same batches, in rounds, and only the time of this thread counts;
    batches are prepared in another one. A first round, which is slower, is left out.
    """
    with one_thread(), open_ranks("cpu") as ranks:
        loops, store = {}, open_store(data)
        for variant, config in configs.items():
            endless = replace(config, training=replace(config.training, steps=10**6))
            loops[variant] = make_loop(endless, store, data, ranks)
        seconds: StepSeconds = {variant: [] for variant in loops}
        names = list(loops)
        for number in range(COST_ROUNDS + 1):
            turn = number % len(names)
            for variant in (*names[turn:], *names[:turn]):  # each is the first one in turn
                start = time.thread_time()
                loops[variant].measure(0.0)
                seconds[variant].append((time.thread_time() - start) / COST_STEPS)
    return {variant: rounds[1:] for variant, rounds in seconds.items()}

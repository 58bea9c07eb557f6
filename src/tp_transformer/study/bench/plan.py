"""The plan of a bench: its tasks, its variants of the model, and the settings of every run.

All runs of a task and seed have the same settings except those of the model, so that they train on
the same sequence of samples for the same number of steps.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from tp_transformer.data.generated import write_task
from tp_transformer.data.mathematics.produce import Order, produce
from tp_transformer.data.store import Store
from tp_transformer.errors import SettingsError
from tp_transformer.model.binding import BINDINGS, binding_options
from tp_transformer.model.checkpoint import from_config, match_parameters, model_config
from tp_transformer.model.config import TransformerConfig, WithoutWeights
from tp_transformer.registry import Registry
from tp_transformer.runtime.processes import OpenPool
from tp_transformer.runtime.progress import Update
from tp_transformer.runtime.run_folder import seed_folder
from tp_transformer.settings import nearest, refuse_unknown
from tp_transformer.training.config import RunConfig, config_values

N_VALIDATIONS = 20  # of a run; the resolution of the samples to 90%
_UNITS = {"k": 1_000, "m": 1_000_000}
MATCHED = "none-matched"
# Variants of the model that are not the name of a binding. `none-matched` also has another d_ff.
NAMED: dict[str, dict[str, Any]] = {
    MATCHED: {"binding": "none"},
    "tp-transformer": {"binding": "hadamard", "embedding_binding": True},
}


@dataclass(frozen=True, kw_only=True)
class BenchTask:
    """What a bench trains on, and the settings of its runs.

    Attributes:
        preset: settings of the model and of training
        samples: the default budget of a run, in samples
        task: a registered task that is generated as a whole
        options: of that task
        order: questions of the Mathematics Dataset, if there is no `task`
        settings: changes of the preset, by section
    """

    preset: str
    samples: int
    task: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    order: Order | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path, open_pool: OpenPool, progress: Update | None = None) -> Store:
        """Write the store of the task, unless it is there already."""
        if self.order is not None:
            return produce(self.order, folder, open_pool, progress=progress)
        if self.task is None:
            raise ValueError("a task of the bench needs a registered task or an order")
        return write_task(folder, self.task, **self.options)


BENCH_TASKS: Registry[BenchTask] = Registry("task of the bench", "tasks of the bench")

_SAMPLES = {"scan": 64_000, "lookup": 32_000, "recall": 320_000, "quotients": 128_000}
for _task, _samples in _SAMPLES.items():
    BENCH_TASKS.register(_task)(BenchTask(preset=_task, samples=_samples, task=_task))
for _split in ("length", "add-jump"):
    BENCH_TASKS.register(f"scan-{_split}")(
        BenchTask(preset="scan", samples=64_000, task="scan", options={"split": _split})
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
        preset="tp-transformer-tiny",
        samples=64_000,
        order=Order(modules=tuple(SUBSET), count=5_000, test_count=500),
        settings={
            "model": {"n_heads": 8},
            "data": {"batch_size": 32, "weights": SUBSET},
            "optim": {"warmup": 50},
            "validation": {"count": 512},
        },
    )
)


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """One run of a bench: where its data, its run and its scores are, and its settings."""

    task: str
    variant: str
    seed: int
    data: Path
    folder: Path
    config: RunConfig

    @property
    def results(self) -> Path:
        """The file of the scores, which is written when the run is finished."""
        return self.folder.with_name(f"{self.folder.name}.json")

    @property
    def is_done(self) -> bool:
        """Whether the run is finished and scored."""
        return self.results.is_file()


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What a bench compares.

    Attributes:
        out: folder of all runs and of the table
        tasks: names in `BENCH_TASKS`
        variants: bindings, `none-matched` or `tp-transformer`, each with changed fields of the
            model, such as `sigmoid+per_head=true`
        seeds: of the initial weights and the order of the samples
        budget: samples of each run; absent: the default of each task
        reference: the variant that the others are compared with; absent: `none`, or else the first
    """

    out: Path
    tasks: Sequence[str]
    variants: Sequence[str]
    seeds: Sequence[int]
    budget: int | None = None
    reference: str | None = None

    def __post_init__(self) -> None:
        for name in ("tasks", "variants", "seeds"):
            given = tuple(dict.fromkeys(getattr(self, name)))
            if not given:
                raise SettingsError(f"a bench needs {name}")
            object.__setattr__(self, name, given)
        if self.reference is None:
            first = "none" if "none" in self.variants else self.variants[0]
            object.__setattr__(self, "reference", first)
        if self.reference not in self.variants:
            raise SettingsError(
                f"the reference {self.reference!r} is not one of the bindings"
                f"{nearest(str(self.reference), self.variants)}: {', '.join(self.variants)}"
            )
        _ = self._configs  # refuses what cannot be built

    def folder(self, task: str) -> Path:
        """Return the folder of everything about a task."""
        return self.out / task

    def data(self, task: str) -> Path:
        """Return the folder of the store of a task."""
        return self.folder(task) / "data"

    def config(self, task: str, variant: str, seed: int) -> RunConfig:
        """Return the settings of a run; there are always those of `none`."""
        config = self._configs[task, variant]
        return replace(config, training=replace(config.training, seed=seed))

    @cached_property
    def _configs(self) -> dict[tuple[str, str], RunConfig]:
        """The settings of all runs, with the seed of the preset."""
        found = {}
        for task in self.tasks:
            chosen = BENCH_TASKS[task]
            base = RunConfig.of(chosen.preset, **chosen.settings)
            samples = chosen.samples if self.budget is None else self.budget
            steps = -(-samples // base.data.batch_size)
            every = max(1, steps // N_VALIDATIONS)
            training = replace(base.training, steps=steps, checkpoint_every=every, keep=1)
            validation = replace(base.validation, every=every, monitor=0)
            fields = config_values(base)["model"]
            for variant in dict.fromkeys(["none", *self.variants]):
                model = variant_model(variant, fields)
                found[task, variant] = replace(
                    base, model=model, training=training, validation=validation
                )
        return found

    def runs(self) -> list[BenchRun]:
        """Return all runs; those of the first seed come first, to give a table early."""
        return [
            BenchRun(
                task=task,
                variant=variant,
                seed=seed,
                data=self.data(task),
                folder=seed_folder(self.folder(task) / "runs" / variant, seed),
                config=self.config(task, variant, seed),
            )
            for seed in self.seeds
            for task in self.tasks
            for variant in self.variants
        ]


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
    options = binding_options(values["binding"])
    refuse_unknown(changed, [*options, *TransformerConfig.__dataclass_fields__], variant)
    values |= changed
    config: TransformerConfig = model_config(values)
    if name != MATCHED:
        return config
    with WithoutWeights(), torch.device("meta"):
        bound = from_config(replace(config, binding="hadamard"))
    return match_parameters(config, bound.n_parameters)


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


def _change(variant: str, text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise SettingsError(f"{variant!r}: {text!r} is not a field and its value, such as rank=32")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value

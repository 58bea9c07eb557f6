"""`tpt data`: generate, prepare, show, export and verify stores."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tp_transformer.data.mathematics.modules import (
    DIFFICULTIES,
    STORE_SPLITS,
    with_difficulties,
)
from tp_transformer.data.pair_options import Columns
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import Count, PositiveInt, Seed, Workers
from tp_transformer.runtime.progress import progress
from tp_transformer.verbs.verb import TextOptions, Verb, option_texts, register_verb, with_default

if TYPE_CHECKING:
    from tp_transformer.data.store import Store

_MATHEMATICS, MATHEMATICS_COUNT = "mathematics", 1000
_COLUMNS = ("question", "answer", "split", "group")
_COMMON = ("count", "test_count", "seed")  # options that are those of tasks as well


@register_verb("data generate")
class Generate(Verb):
    """Generate the questions of a task; the same seed gives the same questions.

    Attributes:
        out: the store to write, a folder
        task: the task, such as scan; `tpt data tasks` lists the tasks with their options
        count: questions of each module, split and difficulty of mathematics (default: 1000), or
            training questions of another task
        test_count: questions of each module in the test splits of mathematics, if not as many, or
            questions of each test split of another task
        seed: seed of the generator
        modules: only these modules of mathematics; `*` matches any characters, as in
            'arithmetic__*'
        splits: which splits of mathematics
        difficulties: which difficulties of training questions of mathematics
        workers: processes for mathematics; one per core by default
        executor: dask://HOST:PORT, a Dask cluster to use for mathematics instead of processes
        overwrite: replace a different store
    """

    resumes = True
    out: Path
    task: str = _MATHEMATICS
    count: PositiveInt | None = None
    test_count: PositiveInt | None = None
    seed: Seed = 0
    modules: tuple[str, ...] = ("*",)
    splits: Annotated[tuple[str, ...], Parameter(choices=STORE_SPLITS)] = STORE_SPLITS
    difficulties: Annotated[tuple[str, ...], Parameter(choices=DIFFICULTIES)] = DIFFICULTIES
    workers: Workers | None = None
    executor: str | None = None
    overwrite: bool = False
    options: Any = None  # those of tasks, `--task.NAME`

    @classmethod
    def complete(cls) -> "type[Generate]":
        """Return the verb with the options of tasks."""
        return _task_options().added_to(cls, "options")

    def __call__(self) -> None:
        from tp_transformer.report.store import generated_lines

        store = self._mathematics() if self.task == _MATHEMATICS else self._other_task()
        print(f"{self.out}: {_rows_of(store)}")
        for line in generated_lines(store.source):
            print(line)

    def _mathematics(self) -> "Store":
        from tp_transformer.data.generated import resolved_options
        from tp_transformer.data.mathematics.produce import Order, produce
        from tp_transformer.runtime.processes import workers

        resolved_options(self.task, self._task_options())  # raises for those of other tasks
        order = Order(
            modules=self.modules,
            splits=with_difficulties(self.splits, self.difficulties),
            count=MATHEMATICS_COUNT if self.count is None else self.count,
            test_count=self.test_count,
            seed=self.seed,
        )
        open_pool = workers(self.executor or self.workers)
        with progress("generating") as update:
            return produce(order, self.out, open_pool, overwrite=self.overwrite, progress=update)

    def _other_task(self) -> "Store":
        from tp_transformer.data.generated import task_options, write_task

        known = task_options(self.task)
        for name in ("modules", "splits", "difficulties", "workers", "executor"):
            if getattr(self, name) != getattr(Generate, name):
                raise SettingsError(f"--{name} is an option of mathematics, not of {self.task}")
        common = {
            name: value
            for name in _COMMON
            if (value := getattr(self, name)) != getattr(Generate, name)
            or (value is not None and name in known)
        }
        options = {**common, **self._task_options()}
        return write_task(self.out, self.task, overwrite=self.overwrite, **options)

    def _task_options(self) -> dict[str, str]:
        texts = option_texts(self.options)
        return {name.removeprefix("task."): text for name, text in texts.items()}


@register_verb("data tasks")
class Tasks(Verb):
    """List the tasks that `tpt data generate` knows, and their options."""

    def __call__(self) -> None:
        from tp_transformer.data.generated import TASKS, task_options, task_summary

        for task in TASKS:
            print(f"{task}: {task_summary(task)}")
            for name, option in task_options(task).items():
                flag = f"--{name.replace('_', '-')}" if name in _COMMON else f"--task.{name}"
                print(f"  {flag}: {with_default(option.metadata['help'], option.default)}")
        print("docs/tasks.md describes the tasks of the package, and presets of the same names")


@register_verb("data prepare")
class Prepare(Verb):
    """Read questions and answers into a store: pairs of your own, or the Mathematics Dataset.

    Attributes:
        source: with --task, a file of JSON lines, CSV, TSV, Parquet or text of alternating lines,
            or a folder of such files; without it, the Mathematics Dataset: the v1.0 archive, its
            folder, or the Hugging Face copy
        out: the store to write, a folder
        on_error: stop at the first fault, or skip faulty rows and report them
        overwrite: replace a store that was made from another source or with other options
        task: the name of your task
        tokenisation: whether tokens are characters, or words separated by blanks
        splits: shares of the splits, if rows do not name their splits; by default
            train=0.9,test=0.1
        seed: seed of the splits and of the order of rows
        question_column: the column of questions
        answer_column: the column of answers
        split_column: the column of splits; it may be absent
        group_column: the column of groups, which are scored separately; it may be absent
    """

    source: Path = field(kw_only=False)
    out: Path
    on_error: Literal["stop", "skip"] = "stop"
    overwrite: bool = False
    task: str | None = None
    tokenisation: Literal["characters", "words"] = "characters"
    splits: str | None = None
    seed: Seed = 0
    question_column: str = Columns.question
    answer_column: str = Columns.answer
    split_column: str = Columns.split
    group_column: str = Columns.group

    def __call__(self) -> None:
        from tp_transformer.report.store import generated_lines, skipped_lines

        store = self._store()
        print(f"{self.out}: {_rows_of(store)}")
        for line in [*generated_lines(store.source), *skipped_lines(store.skipped)]:
            print(line)

    def _store(self) -> "Store":
        from tp_transformer.data.pair_options import split_shares
        from tp_transformer.data.pairs import prepare

        is_pairs = self.task is not None
        columns = Columns(**{name: getattr(self, f"{name}_column") for name in _COLUMNS})
        if not is_pairs:
            self._check_no_options_of_pairs()
        with progress("writing" if is_pairs else "reading", in_bytes=not is_pairs) as update:
            return prepare(
                self.source,
                self.out,
                task=self.task,
                columns=columns if is_pairs else None,
                tokenisation=self.tokenisation,
                shares=None if self.splits is None else split_shares(self.splits),
                seed=self.seed,
                skip_errors=self.on_error == "skip",
                overwrite=self.overwrite,
                progress=update,
            )

    def _check_no_options_of_pairs(self) -> None:
        for name in (
            "tokenisation",
            "splits",
            "seed",
            *(f"{column}_column" for column in _COLUMNS),
        ):
            if getattr(self, name) != getattr(Prepare, name):
                flag = f"--{name.replace('_', '-')}"
                raise SettingsError(f"{flag} is for pairs of your own; name their --task")


@dataclass(frozen=True, kw_only=True)
class StoreVerb(Verb):
    """Base class for verbs that read a store.

    Attributes:
        store: the store, a folder
        modules: only these modules; `*` matches any characters, as in 'arithmetic__*'
    """

    store: Path = field(kw_only=False)
    modules: tuple[str, ...] = ("*",)


@register_verb("data show")
class Show(StoreVerb):
    """Show the contents of a store: counts, lengths, sample questions.

    Attributes:
        samples: number of sample questions of each area
        seed: seed of the choice of sample questions
        json: print JSON
    """

    samples: Count = 2
    seed: Seed = 0
    json: bool = False

    def __call__(self) -> None:
        import json

        from rich.console import Console

        from tp_transformer.data.store import open_store
        from tp_transformer.report.store import render, summarise

        summary = summarise(open_store(self.store), self.modules, self.samples, self.seed)
        if self.json:
            print(json.dumps(summary, indent=2))
        else:
            render(summary, Console(highlight=False))


@register_verb("data export")
class Export(StoreVerb):
    """Export a store for other tools.

    Attributes:
        format: v1.0 is the format of the published Mathematics Dataset
        out: a folder, or for v1.0 also a .tar.gz
    """

    format: Literal["v1.0", "parquet", "jsonl"]
    out: Path

    def __call__(self) -> None:
        from tp_transformer.data.export import export
        from tp_transformer.data.store import open_store

        store = open_store(self.store)
        with progress("writing") as update:
            n_rows = export(
                store, self.out, format=self.format, modules=[*self.modules], progress=update
            )
        print(f"{self.out}: {n_rows:,} rows as {self.format}")


@register_verb("data verify")
class Verify(Verb):
    """Compare a store with the hashes that were recorded when it was written.

    Attributes:
        store: the store, a folder
    """

    store: Path = field(kw_only=False)

    def __call__(self) -> None:
        from tp_transformer.data.store import verify

        with progress("verifying", in_bytes=True) as update:
            lines = verify(self.store, progress=update)
        print(*lines, sep="\n")


def _task_options() -> TextOptions:
    from tp_transformer.data.generated import TASKS, task_options

    options = TextOptions()
    for task in TASKS:
        for name, option in task_options(task).items():
            if name not in _COMMON:
                text = f"[{task}] {option.metadata['help']}"
                options.add(f"task.{name}", text, option.default)
    return options


def _rows_of(store: "Store") -> str:
    return ", ".join(f"{name} {len(split):,}" for name, split in store.items())

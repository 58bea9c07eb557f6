"""`tpt data`: generate, prepare, show, export and verify stores."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jsonargparse import Namespace

from tp_transformer.data.mathematics.modules import (
    DIFFICULTIES,
    STORE_SPLITS,
    with_difficulties,
)
from tp_transformer.data.pair_options import Columns
from tp_transformer.errors import SettingsError
from tp_transformer.ranges import Count, PositiveInt, Seed, Workers
from tp_transformer.verbs.verb import Arguments, Group, Verb, add_later, flag_of, yaml_default

if TYPE_CHECKING:
    from tp_transformer.data.store import Store

_MATHEMATICS, MATHEMATICS_COUNT = "mathematics", 1000
_COMMON = ("count", "test_count", "seed")  # options that are those of tasks as well


@dataclass(frozen=True, kw_only=True)
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
    splits: tuple[str, ...] = field(default=STORE_SPLITS, metadata={"choices": STORE_SPLITS})
    difficulties: tuple[str, ...] = field(default=DIFFICULTIES, metadata={"choices": DIFFICULTIES})
    workers: Workers | None = None
    executor: str | None = None
    overwrite: bool = False
    options: Namespace = field(default_factory=Namespace, metadata={"flag": None})

    @classmethod
    def arguments(cls) -> Arguments:
        """Return the options, and those of tasks as `--task.NAME`."""
        return {**super().arguments(), **_task_arguments()}

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
        from tp_transformer.runtime.progress import progress

        resolved_options(self.task, dict(self.options.items()))  # raises for those of other tasks
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
        defaults = {each.name: each.default for each in fields(self)}
        for name in ("modules", "splits", "difficulties", "workers", "executor"):
            if getattr(self, name) != defaults[name]:
                raise SettingsError(f"--{name} is an option of mathematics, not of {self.task}")
        given = {name: getattr(self, name) for name in _COMMON}
        common = {
            name: value
            for name, value in given.items()
            if value != defaults[name] or (value is not None and name in known)
        }
        options = {**common, **dict(self.options.items())}
        return write_task(self.out, self.task, overwrite=self.overwrite, **options)


@dataclass(frozen=True, kw_only=True)
class Tasks(Verb):
    """List the tasks that `tpt data generate` knows, and their options."""

    def __call__(self) -> None:
        from tp_transformer.data.generated import TASKS, task_options, task_summary

        for task in TASKS:
            print(f"{task}: {task_summary(task)}")
            for name, option in task_options(task).items():
                print(f"  {_flag(name)}: {option.metadata['help']}{yaml_default(option.default)}")
        print("docs/tasks.md describes the tasks of the package, and presets of the same names")


@dataclass(frozen=True, kw_only=True)
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
    """

    source: Path = field(metadata={"flag": "source"})
    out: Path
    on_error: Literal["stop", "skip"] = "stop"
    overwrite: bool = False
    task: str | None = None
    tokenisation: Literal["characters", "words"] = "characters"
    splits: str | None = None
    seed: Seed = 0
    columns: Columns = field(default_factory=Columns)

    def __call__(self) -> None:
        from tp_transformer.report.store import generated_lines, skipped_lines

        store = self._store()
        print(f"{self.out}: {_rows_of(store)}")
        for line in [*generated_lines(store.source), *skipped_lines(store.skipped)]:
            print(line)

    def _store(self) -> "Store":
        from tp_transformer.data.pair_options import split_shares
        from tp_transformer.data.pairs import prepare
        from tp_transformer.runtime.progress import progress

        is_pairs = self.task is not None
        if not is_pairs:
            self._refuse_options_of_pairs()
        with progress("writing" if is_pairs else "reading", in_bytes=not is_pairs) as update:
            return prepare(
                self.source,
                self.out,
                task=self.task,
                columns=self.columns if is_pairs else None,
                tokenisation=self.tokenisation,
                shares=None if self.splits is None else split_shares(self.splits),
                seed=self.seed,
                skip_errors=self.on_error == "skip",
                overwrite=self.overwrite,
                progress=update,
            )

    def _refuse_options_of_pairs(self) -> None:
        own = [each for each in fields(self) if each.name in ("tokenisation", "splits", "seed")]
        for owner, some in ((self, own), (self.columns, fields(self.columns))):
            for each in some:
                if getattr(owner, each.name) != each.default:
                    flag = flag_of(each)
                    raise SettingsError(f"{flag} is for pairs of your own; name their --task")


@dataclass(frozen=True, kw_only=True)
class StoreVerb(Verb):
    """Base class for verbs that read a store.

    Attributes:
        store: the store, a folder
        modules: only these modules; `*` matches any characters, as in 'arithmetic__*'
    """

    store: Path = field(metadata={"flag": "store"})
    modules: tuple[str, ...] = ("*",)


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
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
        from tp_transformer.runtime.progress import progress

        store = open_store(self.store)
        with progress("writing") as update:
            n_rows = export(
                store, self.out, format=self.format, modules=[*self.modules], progress=update
            )
        print(f"{self.out}: {n_rows:,} rows as {self.format}")


@dataclass(frozen=True, kw_only=True)
class Verify(Verb):
    """Compare a store with the hashes that were recorded when it was written.

    Attributes:
        store: the store, a folder
    """

    store: Path = field(metadata={"flag": "store"})

    def __call__(self) -> None:
        from tp_transformer.data.store import verify
        from tp_transformer.runtime.progress import progress

        with progress("verifying", in_bytes=True) as update:
            lines = verify(self.store, progress=update)
        print(*lines, sep="\n")


def _task_arguments() -> Arguments:
    """Return the options of tasks; an option of several tasks has a description for each."""
    from tp_transformer.data.generated import TASKS, task_options

    arguments: Arguments = {}
    for task in TASKS:
        for name, option in task_options(task).items():
            if name not in _COMMON:
                text = f"[{task}] {option.metadata['help']}{yaml_default(option.default)}"
                add_later(arguments, "options of tasks", _flag(name), f"options.{name}", text)
    return arguments


def _flag(option: str) -> str:
    """Return the option of `tpt data generate` for an option of a task."""
    return f"--{option.replace('_', '-')}" if option in _COMMON else f"--task.{option}"


def _rows_of(store: "Store") -> str:
    return ", ".join(f"{name} {len(split):,}" for name, split in store.items())


DATA = Group(
    "Generate, prepare, show, export and verify questions and answers",
    {
        "generate": Generate,
        "tasks": Tasks,
        "prepare": Prepare,
        "show": Show,
        "export": Export,
        "verify": Verify,
    },
)

"""`tpt data`: generate, prepare, show, export and verify stores."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tp_transformer.foundation.ranges import Count, PositiveInt, Seed, Workers
from tp_transformer.verbs.verb import Group, Verb

SplitName = Literal["train", "interpolate", "extrapolate"]

if TYPE_CHECKING:
    from tp_transformer.data.store import Store


@dataclass(frozen=True, kw_only=True)
class Generate(Verb):
    """Make questions with DeepMind's own generator, the same for the same seed.

    Attributes:
        out: the store to write, a folder
        modules: only these modules; `*` stands for any characters, as in 'arithmetic__*'
        splits: which of the dataset's splits
        difficulties: which difficulties of training questions
        count: questions of each module, split and difficulty
        test_count: questions of each module in the test splits, if not as many
        seed: seed of the generator
        workers: processes; one per core by default
        executor: dask://HOST:PORT, a Dask cluster to work on instead
    """

    resumes = True
    out: Path
    modules: tuple[str, ...] = ("*",)
    splits: tuple[SplitName, ...] = ("train", "interpolate", "extrapolate")
    difficulties: tuple[Literal["easy", "medium", "hard"], ...] = ("easy", "medium", "hard")
    count: PositiveInt = 1000
    test_count: PositiveInt | None = None
    seed: Seed = 0
    workers: Workers | None = None
    executor: str | None = None

    def __call__(self) -> None:
        from tp_transformer.data.mathematics.partial import Order
        from tp_transformer.data.mathematics.produce import produce
        from tp_transformer.foundation.parallel import workers
        from tp_transformer.foundation.progress import progress
        from tp_transformer.show.store import generated_lines

        splits: list[str] = []
        for split in self.splits:
            is_train = split == "train"
            splits += [f"train-{name}" for name in self.difficulties] if is_train else [split]
        order = Order(
            modules=self.modules,
            splits=tuple(splits),
            count=self.count,
            test_count=self.test_count,
            seed=self.seed,
        )
        open_pool = workers(self.executor or self.workers)
        with progress("generating") as update:
            store = produce(order, self.out, open_pool, progress=update)
        print(f"{self.out}: {_rows_of(store)}")
        for line in generated_lines(store.source):
            print(line)


@dataclass(frozen=True, kw_only=True)
class Prepare(Verb):
    """Read the published dataset into a store: the v1.0 archive, its folder, the Hugging Face copy.

    Attributes:
        source: the .tar.gz, or a folder
        out: the store to write, a folder
        on_error: what to do about faults: stop at the first, or leave out and report
    """

    source: Path = field(metadata={"flag": "source"})
    out: Path
    on_error: Literal["stop", "skip"] = "stop"

    def __call__(self) -> None:
        from tp_transformer.data.mathematics.corpus import prepare
        from tp_transformer.foundation.progress import progress
        from tp_transformer.show.store import skipped_lines

        with progress("reading", in_bytes=True) as update:
            skip = self.on_error == "skip"
            store = prepare(self.source, self.out, skip_errors=skip, progress=update)
        print(f"{self.out}: {_rows_of(store)}")
        print(*skipped_lines(store.skipped), sep="\n", end="\n" if store.skipped else "")


@dataclass(frozen=True, kw_only=True)
class StoreVerb(Verb):
    """Base class for verbs that read a store.

    Attributes:
        store: the store, a folder
        modules: only these modules; `*` stands for any characters, as in 'arithmetic__*'
    """

    store: Path = field(metadata={"flag": "store"})
    modules: tuple[str, ...] = ("*",)


@dataclass(frozen=True, kw_only=True)
class Show(StoreVerb):
    """Show what a store holds: counts, lengths, questions.

    Attributes:
        samples: questions of each area
        seed: chooses the questions
        json: for programs instead of people
    """

    samples: Count = 2
    seed: Seed = 0
    json: bool = False

    def __call__(self) -> None:
        import json

        from rich.console import Console

        from tp_transformer.data.store import open_store
        from tp_transformer.show.store import render, summarise

        summary = summarise(open_store(self.store), self.modules, self.samples, self.seed)
        if self.json:
            print(json.dumps(summary, indent=2))
        else:
            render(summary, Console(highlight=False))


@dataclass(frozen=True, kw_only=True)
class Export(StoreVerb):
    """Write a store for other tools.

    Attributes:
        format: the format of the dataset's authors, or one of other tools
        out: a folder, or for v1.0 also a .tar.gz
    """

    format: Literal["v1.0", "parquet", "jsonl"]
    out: Path

    def __call__(self) -> None:
        from tp_transformer.data.export import export
        from tp_transformer.data.store import open_store
        from tp_transformer.foundation.progress import progress

        store = open_store(self.store)
        with progress("writing") as update:
            n_rows = export(
                store, self.out, format=self.format, modules=[*self.modules], progress=update
            )
        print(f"{self.out}: {n_rows:,} rows as {self.format}")


@dataclass(frozen=True, kw_only=True)
class Verify(Verb):
    """Check a store against the hashes that were kept when it was written.

    Attributes:
        store: the store, a folder
    """

    store: Path = field(metadata={"flag": "store"})

    def __call__(self) -> None:
        from tp_transformer.data.verify import verify
        from tp_transformer.foundation.progress import progress

        with progress("verifying", in_bytes=True) as update:
            lines = verify(self.store, progress=update)
        print(*lines, sep="\n")


def _rows_of(store: "Store") -> str:
    return ", ".join(f"{name} {len(split):,}" for name, split in store.items())


DATA = Group(
    "The Mathematics Dataset: read it, look at it, pass it on",
    {"generate": Generate, "prepare": Prepare, "show": Show, "export": Export, "verify": Verify},
)

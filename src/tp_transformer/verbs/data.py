"""`tpt data`: the Mathematics Dataset made, read, looked at and passed on."""

from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from tp_transformer.foundation.ranges import Count, PositiveInt, Seed, Workers
from tp_transformer.verbs.verb import MODULES, Verb

if TYPE_CHECKING:
    from tp_transformer.data.store import Store


def _generate(options: Namespace) -> None:
    from tp_transformer.data.mathematics.partial import Order
    from tp_transformer.data.mathematics.produce import produce
    from tp_transformer.foundation.parallel import workers
    from tp_transformer.foundation.progress import progress
    from tp_transformer.show.store import generated_lines

    order = Order(
        modules=tuple(options.modules),
        splits=tuple(
            name
            for split in options.splits
            for name in (
                [f"train-{difficulty}" for difficulty in options.difficulties]
                if split == "train"
                else [split]
            )
        ),
        count=options.count,
        test_count=options.test_count,
        seed=options.seed,
    )
    open_pool = workers(options.executor or options.workers)
    with progress("generating") as update:
        store = produce(order, options.out, open_pool, progress=update)
    print(f"{options.out}: {_rows_of(store)}")
    for line in generated_lines(store.source):
        print(line)


def _prepare(options: Namespace) -> None:
    from tp_transformer.data.mathematics.corpus import prepare
    from tp_transformer.foundation.progress import progress
    from tp_transformer.show.store import skipped_lines

    with progress("reading", in_bytes=True) as update:
        skip = options.on_error == "skip"
        store = prepare(options.source, options.out, skip_errors=skip, progress=update)
    print(f"{options.out}: {_rows_of(store)}")
    print(*skipped_lines(store.skipped), sep="\n", end="\n" if store.skipped else "")


def _show(options: Namespace) -> None:
    import json

    from rich.console import Console

    from tp_transformer.data.store import open_store
    from tp_transformer.show.store import render, summarise

    summary = summarise(open_store(options.store), options.modules, options.samples, options.seed)
    if options.json:
        print(json.dumps(summary, indent=2))
    else:
        render(summary, Console(highlight=False))


def _export(options: Namespace) -> None:
    from tp_transformer.data.export import export
    from tp_transformer.data.store import open_store
    from tp_transformer.foundation.progress import progress

    store = open_store(options.store)
    with progress("writing") as update:
        n_rows = export(
            store, options.out, format=options.format, modules=options.modules, progress=update
        )
    print(f"{options.out}: {n_rows:,} rows as {options.format}")


def _verify(options: Namespace) -> None:
    from tp_transformer.data.verify import verify
    from tp_transformer.foundation.progress import progress

    with progress("verifying", in_bytes=True) as update:
        lines = verify(options.store, progress=update)
    print(*lines, sep="\n")


def _rows_of(store: "Store") -> str:
    return ", ".join(f"{name} {len(split):,}" for name, split in store.items())


_STORE = {"type": Path, "help": "the store, a folder"}

_VERBS = {
    "generate": Verb(
        "make questions with DeepMind's own generator, the same for the same seed",
        _generate,
        {
            "--out": {"type": Path, "required": True, "help": "the store to write, a folder"},
            "--modules": MODULES,
            "--splits": {
                "nargs": "+",
                "choices": ["train", "interpolate", "extrapolate"],
                "default": ["train", "interpolate", "extrapolate"],
                "help": "which of the dataset's splits",
            },
            "--difficulties": {
                "nargs": "+",
                "choices": ["easy", "medium", "hard"],
                "default": ["easy", "medium", "hard"],
                "help": "which difficulties of training questions",
            },
            "--count": {
                "type": PositiveInt,
                "default": 1000,
                "help": "questions of each module, split and difficulty",
            },
            "--test-count": {
                "type": PositiveInt | None,
                "help": "questions of each module in the test splits, if not as many",
            },
            "--seed": {"type": Seed, "default": 0, "help": "another seed, other questions"},
            "--workers": {"type": Workers | None, "help": "processes; one per core by default"},
            "--executor": {
                "type": str | None,
                "help": "dask://HOST:PORT, a Dask cluster to work on instead",
            },
        },
        goes_on=True,
    ),
    "prepare": Verb(
        "read the published dataset into a store: the v1.0 archive or folder, or the Hugging "
        "Face copy",
        _prepare,
        {
            "source": {"type": Path, "help": "the .tar.gz, or a folder"},
            "--out": {"type": Path, "required": True, "help": "the store to write, a folder"},
            "--on-error": {
                "choices": ["stop", "skip"],
                "default": "stop",
                "help": "what to do about faults: stop at the first, or leave out and report",
            },
        },
    ),
    "show": Verb(
        "show what a store holds: counts, lengths, questions",
        _show,
        {
            "store": _STORE,
            "--modules": MODULES,
            "--samples": {"type": Count, "default": 2, "help": "questions of each area"},
            "--seed": {"type": Seed, "default": 0, "help": "chooses the questions"},
            "--json": {"action": "store_true", "help": "for programs instead of people"},
        },
    ),
    "export": Verb(
        "write a store for other tools",
        _export,
        {
            "store": _STORE,
            "--format": {"choices": ["v1.0", "parquet", "jsonl"], "required": True},
            "--out": {
                "type": Path,
                "required": True,
                "help": "a folder, or for v1.0 also a .tar.gz",
            },
            "--modules": MODULES,
        },
    ),
    "verify": Verb(
        "check a store against the hashes that were kept when it was written",
        _verify,
        {"store": _STORE},
    ),
}

DATA = Verb("the Mathematics Dataset: read it, look at it, pass it on", verbs=_VERBS)

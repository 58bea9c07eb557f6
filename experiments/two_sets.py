"""Data for two-set training: few questions that are repeated often, and many that are not.

Charton and Kempe (2024, https://arxiv.org/abs/2410.07041) take a part of the samples from a small
random subset of the questions. Here the questions of the small set occur many times in a store, so
that a random quarter of the samples are copies of them, and `tpt train` needs no option. The copies
have the module and the difficulty of their questions and come before all other rows, so that the
shares of the modules and the questions held out for validation are those of the original store.
"""

from pathlib import Path

from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import TRAIN, Store, open_store
from tp_transformer.data.writer import write_store

SHARE = 0.25  # of the samples, from the small set


def write(store: Path, out: Path, modules: tuple[str, ...], held_out: int, repeated: int) -> Path:
    """Write a store with two sets of questions.

    Args:
        store: the original store
        out: folder of the new store
        modules: names of the modules to copy
        held_out: number of questions of all modules that training holds out, `validation.count`
        repeated: number of questions of each module and difficulty in the small set
    """
    original = open_store(store)
    split = original[TRAIN]
    segments = split.select(modules)
    expected = validation(original, modules, held_out)
    source = {"kind": "two sets", "original": split.digest, "repeated": repeated}
    out.parent.mkdir(parents=True, exist_ok=True)
    with write_store(out, original.task, source) as writer:
        for segment in segments:
            n_others = segment.count - repeated - len(expected) / len(segments)
            copies = round(SHARE / (1 - SHARE) * n_others / repeated)
            # The rows of the segment have the last copy.
            for rows in [segment.rows[:repeated]] * (copies - 1) + [segment.rows]:
                writer.append(TRAIN, segment.module, segment.difficulty, *split.rows(rows))
    if validation(open_store(out), modules, held_out) != expected:
        raise SystemExit(
            f"{store} has too few questions: training holds out at most a twentieth of a module "
            "and difficulty, and would hold out more with repeated questions"
        )
    return out


def validation(store: Store, modules: tuple[str, ...], held_out: int) -> list[tuple[str, str]]:
    """Return the questions and answers that training holds out."""
    feed = Feed(store[TRAIN], batch_size=1, modules=modules, held_out=held_out)
    return list(zip(*feed.split.rows(feed.held_out_rows), strict=True))

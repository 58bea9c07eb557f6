"""Share of padding in a training batch, before and after it is divided into parts.

    python benchmarks/padding.py STORE

Compares, for random batches of 1024 training rows, the positions of one padded batch, the positions
of its parts, and the tokens. A target position counts as 4/3 of a source position, because the
cells of the decoder have 4/3 of the parameters of those of the encoder.
"""

import sys

from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.sampling import Sampler
from tp_transformer.data.store import open_store
from tp_transformer.data.vocabulary import Ragged
from tp_transformer.model.batch import Batch, cut

BATCH, STEPS = 1024, 50


def positions(batches: list[Batch]) -> tuple[int, int]:
    """Return the source and target positions, the latter without the start token."""
    source = sum(batch.source.numel() for batch in batches)
    return source, sum(batch.target_output.numel() for batch in batches)


def symbols(source: Ragged, target: Ragged) -> tuple[int, int]:
    """Return the number of positions that hold a token."""
    return int(source.lengths.sum()), int((target.lengths - 1).sum())


def main(folder: str) -> None:
    """Print the shares."""
    split, vocabulary = open_store(folder)["train"], MATHEMATICS.vocabulary
    sampler = Sampler(split.segments, batch_size=BATCH, seed=0)
    whole, cut_up, held, n_parts = [0, 0], [0, 0], [0, 0], 0
    for step in range(STEPS):
        source, target = split.tokens(sampler.rows(step), vocabulary)
        parts = cut(source, target, vocabulary.pad)
        n_parts += len(parts)
        padded = [Batch.from_ragged(source, target, vocabulary.pad)]
        for total, counts in (
            (whole, positions(padded)),
            (cut_up, positions(parts)),
            (held, symbols(source, target)),
        ):
            total[0] += counts[0]
            total[1] += counts[1]
    print(f"one padded batch: tokens at {held[0] / whole[0]:.1%} of source positions, ", end="")
    print(f"{held[1] / whole[1]:.1%} of target positions")
    print(f"cut into {n_parts / STEPS:.1f} parts: {held[0] / cut_up[0]:.1%} and ", end="")
    print(f"{held[1] / cut_up[1]:.1%}")
    cost = [source + 4 / 3 * target for source, target in (whole, cut_up, held)]
    print(f"times the tokens alone: {cost[0] / cost[2]:.3f}, and cut {cost[1] / cost[2]:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])

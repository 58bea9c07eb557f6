"""Generation of a whole store: parallel, resumable, without test questions that occur in training.

Finished questions are written to small files in a hidden folder beside the store, so that
generation can be resumed after it was killed. When all questions are generated, test questions that
occur in training are redrawn, and everything is written as one store. The result does not depend on
the number of workers or on interruptions.
"""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from tp_transformer.data.mathematics.deepmind import generator
from tp_transformer.data.mathematics.generate import (
    CHUNK,
    Chunk,
    GeneratedExample,
    generate_chunks,
)
from tp_transformer.data.mathematics.leaks import Redraws, count_repeats
from tp_transformer.data.mathematics.modules import TRAIN_SPLITS
from tp_transformer.data.mathematics.partial import GeneratedFile, Order, Pieces, unfinished
from tp_transformer.data.mathematics.task import MATHEMATICS
from tp_transformer.data.store import Store, open_store
from tp_transformer.data.writer import StoreWriter, is_written, refuse_another, write_store
from tp_transformer.foundation.errors import StoreError
from tp_transformer.foundation.parallel import OpenPool
from tp_transformer.foundation.progress import Counted, Update

PIECE_ROWS = 20_000
PIECE_SECONDS = 20.0  # maximum work that is lost if the process is killed


def produce(
    order: Order,
    out: str | Path,
    open_pool: OpenPool,
    *,
    overwrite: bool = False,
    progress: Update | None = None,
) -> Store:
    """Generate the requested questions into the store `out`, or resume this.

    A different store there is an error, unless `overwrite` is true.
    """
    path = Path(out)
    generator()  # raises if the extra is not installed
    files, source = order.files(), {"kind": "generated", **order.describe()}
    refuse_another(path, source, overwrite=overwrite)
    if is_written(path, source):
        return open_store(path)
    try:
        with unfinished(path, order) as folder:
            pieces = Pieces(folder)
            _generate_missing(files, pieces, order.seed, open_pool, progress)
            redraws = Redraws(files, pieces, order.seed, open_pool)
            source |= {
                "redrawn": redraws.counts(),
                "still_in_training": redraws.still_in_training(),
                "training_repeats": count_repeats(files, pieces),
            }
            with write_store(path, MATHEMATICS, source) as writer:
                for file in files:
                    _append(writer, file, pieces, redraws)
            shutil.rmtree(folder)
    except OSError as error:
        raise StoreError(f"cannot generate {path}: {error}") from error
    return open_store(path)


def _generate_missing(
    files: Sequence[GeneratedFile],
    pieces: Pieces,
    seed: int,
    open_pool: OpenPool,
    progress: Update | None,
) -> None:
    counts = {(file.split, file.module): pieces.count(file) for file in files}
    counted = Counted(sum(file.count for file in files), progress, done=sum(counts.values()))
    if counted.done == counted.total:
        return
    begun = dict(counts)
    chunks = (
        Chunk(file.module, file.split, seed, start, min(start + CHUNK, file.count))
        for file in files
        for start in range(begun[file.split, file.module], file.count, CHUNK)
    )
    unsaved: list[GeneratedExample] = []
    saved_at = time.monotonic()

    def save() -> None:
        nonlocal unsaved, saved_at
        if unsaved:
            key = unsaved[0].split, unsaved[0].module
            questions, answers = zip(*((one.question, one.answer) for one in unsaved), strict=True)
            pieces.add(*key, counts[key], list(questions), list(answers))
            counts[key] += len(unsaved)
        unsaved, saved_at = [], time.monotonic()

    try:
        for examples in generate_chunks(chunks, open_pool):
            key = examples[0].split, examples[0].module
            is_other = unsaved and key != (unsaved[0].split, unsaved[0].module)
            is_late = time.monotonic() - saved_at >= PIECE_SECONDS
            if is_other or is_late or len(unsaved) >= PIECE_ROWS:
                save()
            unsaved += examples
            counted.add(len(examples))
    finally:
        save()


def _append(writer: StoreWriter, file: GeneratedFile, pieces: Pieces, redraws: Redraws) -> None:
    start = 0
    for texts in pieces.read(file):
        questions, answers = texts
        if file.split in TRAIN_SPLITS:
            writer.append(*file.key, questions, answers)
        else:
            writer.append(*file.key, *redraws.apply(file, start, texts))
        start += len(questions)

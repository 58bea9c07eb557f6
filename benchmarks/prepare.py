"""Time of `tpt data prepare`, compared with reading the same archive with Python's gzip.

    python benchmarks/prepare.py ARCHIVE [repeats]

Both run in turn, so that other processes affect them alike. Prints each repetition, the ratio of
the medians, and the maximum memory.
"""

import gzip
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tp_transformer.data.mathematics.corpus import prepare


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return elapsed seconds, and seconds of processor time."""
    start, start_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - start_cpu


def read_with_gzip(archive: Path) -> None:
    """Read an archive to its end, a megabyte at a time."""
    with gzip.open(archive) as file:
        while file.read(2**20):
            pass


def main(archive: Path, repeats: int = 7) -> None:
    """Print both times for each repetition, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(archive, Path(folder) / "first")
        gzips, prepares = [], []
        for repeat in range(repeats):
            out = Path(folder) / str(repeat)
            gzips.append(seconds(lambda: read_with_gzip(archive)))
            prepares.append(seconds(partial(prepare, archive, out)))
            shutil.rmtree(out)
            print(
                f"gzip alone {gzips[-1][0]:.2f} s ({gzips[-1][1]:.2f} s of CPU)   "
                f"prepare {prepares[-1][0]:.2f} s ({prepares[-1][1]:.2f} s of CPU)"
            )
    clock, cpu = (
        statistics.median(p[i] for p in prepares) / statistics.median(g[i] for g in gzips)
        for i in (0, 1)
    )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"prepare / gzip alone: {clock:.2f} by the clock, {cpu:.2f} in CPU time; {most} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]))

"""Parallel tasks: results in order, a bounded number of pending tasks, lost workers replaced.

Based on `concurrent.futures.Executor`, so that process pools and Dask clusters both work.
"""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

from tp_transformer.errors import SettingsError, UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Pending tasks per worker: enough that no worker waits if one task takes longer than others, and
# few enough that memory is bounded.
LOOK_AHEAD = 4
# Restarts without a new result before an error is raised.
MAX_RESTARTS = 3
# Time for an executor to notice that its workers were killed.
SECONDS_TO_END = 5.0
# Time for a Dask scheduler to answer.
DASK_PATIENCE = "10s"


@dataclass(frozen=True)
class Pool:
    """An open executor, its number of workers, and the exceptions that report a lost worker."""

    executor: Executor
    n_workers: int
    losses: tuple[type[BaseException], ...]


OpenPool = Callable[[], AbstractContextManager[Pool]]


def workers(spec: int | str | None = None) -> OpenPool:
    """Return a function that opens the workers that `spec` describes.

    `spec` is a number of processes, None for one per core, or `dask://HOST:PORT` for a scheduler.
    """
    if isinstance(spec, str):
        if not spec.startswith("dask://"):
            raise SettingsError(f"the executor (--executor) must be dask://HOST:PORT, not {spec!r}")
        return lambda: _dask(spec.removeprefix("dask://"))
    n_processes = n_cores() if spec is None else spec
    if n_processes < 1:
        raise SettingsError(f"the number of workers must be 1 or more, not {spec!r}")
    return lambda: _processes(n_processes)


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], open_pool: OpenPool
) -> Iterator[Result]:
    """Yield the result of a function for each task, in the order of the tasks.

    If workers are lost, tasks without a result are repeated on a new executor. The function must be
    deterministic.
    """
    source = iter(tasks)
    waiting: deque[tuple[Task, Future[Result] | None]] = deque()
    restarts = 0
    while True:
        with open_pool() as pool:
            waiting = deque((task, _kept(future)) for task, future in waiting)
            try:
                for result in _run(function, source, waiting, pool):
                    restarts = 0
                    yield result
                return
            except pool.losses as error:
                restarts += 1
                if restarts > MAX_RESTARTS:
                    raise UserError(
                        f"workers were lost {restarts} times in a row "
                        f"({type(error).__name__}): is there enough memory? In a script, "
                        f"the call must be inside `if __name__ == '__main__':`"
                    ) from error


def _run(
    function: Callable[[Task], Result],
    source: Iterator[Task],
    waiting: deque[tuple[Task, Future[Result] | None]],
    pool: Pool,
) -> Iterator[Result]:
    """Yield results until there are no more tasks; `waiting` always has all pending tasks."""

    def submit(task: Task) -> Future[Result]:
        return pool.executor.submit(function, task)

    for number, (task, future) in enumerate(waiting):
        waiting[number] = task, future or submit(task)
    while True:
        while len(waiting) < LOOK_AHEAD * pool.n_workers:
            try:
                task = next(source)
            except StopIteration:
                break
            # Added to the queue first, because submitting can fail too.
            waiting.append((task, None))
            waiting[-1] = task, submit(task)
        if not waiting:
            return
        future = waiting[0][1]
        assert future is not None  # noqa: S101 - all were submitted above
        result = future.result()
        waiting.popleft()
        yield result


def _kept(future: Future[Result] | None) -> Future[Result] | None:
    """Return the future if it has a result, otherwise None."""
    if future is None or not future.done() or future.cancelled():
        return None
    return None if future.exception() else future


def n_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _processes(n_processes: int) -> Iterator[Pool]:
    context = _Spawning()
    with _terminal_signals_blocked():  # the executor starts a resource tracker process
        executor = ProcessPoolExecutor(n_processes, mp_context=context, initializer=_start_worker)
    try:
        yield Pool(executor, n_processes, (BrokenProcessPool,))
    except BaseException:
        # Results in progress are not needed: do not wait for them.
        for worker in context.workers:
            worker.kill()
        for worker in context.workers:
            worker.join()
        # A worker killed while it sends a result may leave the executor waiting for the rest.
        ending = threading.Thread(target=executor.shutdown, daemon=True)
        ending.start()
        ending.join(SECONDS_TO_END)
        raise
    executor.shutdown()


class _Worker(SpawnProcess):
    """A spawned process; forking a process with threads of torch can hang."""

    def start(self) -> None:
        """Start it so that the parent ends it, not signals from the terminal."""
        with _terminal_signals_blocked():
            super().start()


class _Spawning(SpawnContext):
    """Starts workers and keeps a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[_Worker] = []

    def Process(self, *arguments: Any, **options: Any) -> _Worker:  # type: ignore[override]  # noqa: N802
        """Make a worker for the executor."""
        self.workers.append(_Worker(*arguments, **options))
        return self.workers[-1]


@contextmanager
def _terminal_signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGHUP, also in processes started inside."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _start_worker() -> None:
    """Limit a worker to one core, and end it with its parent."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent has ended, even if it was killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _dask(address: str) -> Iterator[Pool]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise UserError("a Dask cluster needs: pip install 'tp-transformer[dask]'") from error
    losses = (distributed.KilledWorker, distributed.comm.CommClosedError, CancelledError)
    try:
        client = distributed.Client(f"tcp://{address}", timeout=DASK_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"there is no Dask scheduler at {address}: {error}") from error
    with client:
        n_workers = max(1, sum(client.nthreads().values()))
        executor = client.get_executor()
        try:
            yield Pool(executor, n_workers, losses)
        finally:
            executor.shutdown(wait=False)

"""Many tasks on many workers: results in order, a bounded look-ahead, lost workers replaced.

The work is expressed over Python's `concurrent.futures.Executor`, so that a pool of processes and
a Dask cluster serve alike.
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

from tp_transformer.foundation.errors import SettingsError, UserError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Tasks submitted per worker before the first result is taken: enough that no worker waits while
# one task takes longer than its neighbours, little enough that memory stays constant.
LOOK_AHEAD = 4
# Restarts without a single new result before the work is given up.
MAX_RESTARTS = 3
# How long an executor whose workers were killed may take to notice.
SECONDS_TO_END = 5.0
# How long to wait for a Dask scheduler to answer.
DASK_PATIENCE = "10s"


@dataclass(frozen=True)
class Pool:
    """An open executor, the number of tasks it runs at once, and how it reports a lost worker."""

    executor: Executor
    n_workers: int
    losses: tuple[type[BaseException], ...]


OpenPool = Callable[[], AbstractContextManager[Pool]]


def workers(spec: int | str | None = None) -> OpenPool:
    """What opens the workers that `spec` names, as often as they are lost.

    A number of processes; None for one per core; or `dask://HOST:PORT`, a running Dask scheduler.
    """
    if isinstance(spec, str) and spec.startswith("dask://"):
        return lambda: _dask(spec.removeprefix("dask://"))
    try:
        n_processes = _n_cores() if spec is None else int(spec)
    except ValueError:
        n_processes = 0
    if n_processes < 1:
        raise SettingsError(
            f"workers must be a positive number or dask://HOST:PORT, and not {spec!r}"
        )
    return lambda: _processes(n_processes)


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], open_pool: OpenPool
) -> Iterator[Result]:
    """The function's result for each task, in the order of the tasks.

    When workers are lost, the tasks without a result are done again on a fresh executor. A
    function that is called twice with a task must return the same.
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
                        f"({type(error).__name__}): is there enough memory? In a script of your "
                        f"own the call must stand under `if __name__ == '__main__':`"
                    ) from error


def _run(
    function: Callable[[Task], Result],
    source: Iterator[Task],
    waiting: deque[tuple[Task, Future[Result] | None]],
    pool: Pool,
) -> Iterator[Result]:
    """Results until there are no more tasks; `waiting` holds what is begun, whatever happens."""

    def submit(task: Task) -> Future[Result]:
        return pool.executor.submit(function, task)

    for place, (task, future) in enumerate(waiting):
        waiting[place] = task, future or submit(task)
    while True:
        while len(waiting) < LOOK_AHEAD * pool.n_workers:
            try:
                task = next(source)
            except StopIteration:
                break
            # In the queue before it is submitted: submitting can fail too.
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
    """The future, if it has a result that need not be computed again."""
    if future is None or not future.done() or future.cancelled():
        return None
    return None if future.exception() else future


def _n_cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _processes(n_processes: int) -> Iterator[Pool]:
    context = _Spawning()
    with _terminal_unheard():  # the executor starts a process that tracks its resources
        executor = ProcessPoolExecutor(n_processes, mp_context=context, initializer=_start_worker)
    try:
        yield Pool(executor, n_processes, (BrokenProcessPool,))
    except BaseException:
        # Nobody takes the results of what is being done: they are not waited for.
        for worker in context.workers:
            worker.kill()
        for worker in context.workers:
            worker.join()
        # A worker killed while it sends a result leaves the executor waiting for the rest of it.
        ending = threading.Thread(target=executor.shutdown, daemon=True)
        ending.start()
        ending.join(SECONDS_TO_END)
        raise
    executor.shutdown()


class _Worker(SpawnProcess):
    """A process that starts afresh: forking a process that holds torch's threads can hang."""

    def start(self) -> None:
        """Start it so that its parent ends it, not the terminal, which does not know the order."""
        with _terminal_unheard():
            super().start()


class _Spawning(SpawnContext):
    """Starts workers, and knows which."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[_Worker] = []

    def Process(self, *arguments: Any, **options: Any) -> _Worker:  # type: ignore[override]  # noqa: N802
        """Make a worker, as the executor asks for it."""
        self.workers.append(_Worker(*arguments, **options))
        return self.workers[-1]


@contextmanager
def _terminal_unheard() -> Iterator[None]:
    """Inside, Ctrl-C and SIGHUP have to wait; processes started inside never hear of them."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _start_worker() -> None:
    """Each worker uses one core, and ends with its parent."""
    for library in ("OMP", "OPENBLAS", "MKL"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed cannot tell its workers; they notice."""
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

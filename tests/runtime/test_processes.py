"""Results come in order, and a lost worker costs time but no result."""

import multiprocessing
import os
import signal
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import pytest

from tp_transformer.errors import SettingsError, UserError
from tp_transformer.runtime import processes
from tp_transformer.runtime.processes import LOOK_AHEAD, MAX_RESTARTS, Pool, in_order, workers


class Here(Executor):
    """Runs each task when it is submitted; breaks, as a pool of processes does, at some."""

    def __init__(self, log, breaks_at):
        self.log, self.breaks_at, self.broken = log, breaks_at, False

    def submit(self, function, task):
        if self.broken:
            raise BrokenProcessPool("before")
        self.log.append(task)
        future = Future()
        if len(self.log) in self.breaks_at:
            self.broken = True
        if self.broken:
            future.set_exception(BrokenProcessPool("a worker died"))
        else:
            try:
                future.set_result(function(task))
            except ZeroDivisionError as error:
                future.set_exception(error)
        return future


def pools(log, breaks_at=()):
    @contextmanager
    def open_pool():
        yield Pool(Here(log, breaks_at), 2, (BrokenProcessPool,))

    return open_pool


def double(number):
    return 2 * number


def kill_once(task):
    """Kill the worker at the first time of asking."""
    number, marker = task
    if number == 3 and not os.path.exists(marker):
        with open(marker, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


def fail(task):
    raise ZeroDivisionError(task)


def test_in_order_with_a_bounded_look_ahead():
    log = []
    results = in_order(double, iter(range(10**12)), pools(log))
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert len(log) == 4 + 2 * LOOK_AHEAD
    assert list(in_order(double, [], pools([]))) == []
    assert list(in_order(double, range(50), pools([]))) == list(range(0, 100, 2))


@pytest.mark.parametrize("place", [1, 5, 8, 9, 30, 50])
def test_lost_tasks_are_done_again_and_no_others(place):
    log = []
    assert list(in_order(double, range(50), pools(log, {place}))) == list(range(0, 100, 2))
    done_again = sorted(task for task in range(50) if log.count(task) > 1)
    assert done_again
    assert done_again[0] == place - 1


def test_losses_are_bounded_but_progress_forgives():
    with pytest.raises(UserError, match="lost 4 times in a row"):
        list(in_order(double, range(50), pools([], set(range(100)))))
    every_tenth = set(range(10, 200, 10))
    assert len(every_tenth) > MAX_RESTARTS
    assert list(in_order(double, range(100), pools([], every_tenth))) == list(range(0, 200, 2))


def test_a_mistake_of_ours_is_not_a_lost_worker():
    log = []
    with pytest.raises(ZeroDivisionError):
        list(in_order(fail, range(3), pools(log)))
    assert log == [0, 1, 2]


def test_a_killed_process_is_replaced(tmp_path):
    tasks = [(number, str(tmp_path / "killed")) for number in range(12)]
    assert list(in_order(kill_once, tasks, workers(2))) == list(range(0, 24, 2))
    assert (tmp_path / "killed").exists()


def test_stopping_early_leaves_no_process():
    results = in_order(double, range(10**9), workers(1))
    assert next(results) == 0
    assert multiprocessing.active_children()
    results.close()
    assert not multiprocessing.active_children()


def test_names_of_workers():
    for wrong in (0, -1):
        with pytest.raises(SettingsError, match="number of workers must be 1 or more"):
            workers(wrong)
    for wrong in ("many", "dask:/127.0.0.1"):
        with pytest.raises(SettingsError, match=r"\(--executor\) must be dask://HOST:PORT"):
            workers(wrong)
    assert processes.n_cores() >= 1


def test_dask_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with (
        pytest.raises(UserError, match=r"pip install 'tp-transformer\[dask\]'"),
        workers("dask://127.0.0.1:1")(),
    ):
        pass

"""A Dask cluster of two worker processes makes the same questions, even when one is killed."""

import os
import signal

import pytest

from tp_transformer.data.mathematics.produce import Chunk, generate_chunk, generate_chunks
from tp_transformer.errors import UserError
from tp_transformer.runtime import processes
from tp_transformer.runtime.processes import workers

pytest.importorskip("mathematics_dataset")
distributed = pytest.importorskip("distributed")


@pytest.fixture
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


def test_one_of_two_workers_is_killed(cluster):
    chunks = list(Chunk("algebra__linear_1d", "train-hard", 0, 0, 600).cut(20))
    address = cluster.scheduler_address.replace("tcp://", "dask://")
    found = []
    for number, questions in enumerate(generate_chunks(chunks, workers(address))):
        found.append(questions)
        if number == 3:
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
    assert found == [generate_chunk(chunk) for chunk in chunks]


def test_no_scheduler(monkeypatch):
    monkeypatch.setattr(processes, "DASK_PATIENCE", "1s")
    with pytest.raises(UserError, match="no Dask scheduler"), workers("dask://127.0.0.1:1")():
        pass

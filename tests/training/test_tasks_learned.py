"""Built-in tasks are learned by a model of their preset, in minutes on two cores."""

import os
import resource
import subprocess
import sys

import pytest

from tp_transformer.scoring.results import Results

LEAST = {"scan": 0.95, "recall": 0.95, "lookup": 0.95, "quotients": 0.95}
MINUTES = 15


@pytest.mark.slow
@pytest.mark.parametrize("task", LEAST)
def test_the_preset_learns_the_task(task, tmp_path):
    environment = {"OMP_NUM_THREADS": "2", **os.environ}  # one, where other work runs beside it

    def tpt(*arguments):
        command = [sys.executable, "-m", "tp_transformer", *map(str, arguments)]
        subprocess.run(command, check=True, env=environment, cwd=tmp_path)

    tpt("data", "generate", "--task", task, "--out", "data")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    tpt("train", "--config", task, "--data", "data", "--run", "run")
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert used < 2 * 60 * MINUTES  # of two cores, whatever else the machine does
    tpt(
        "evaluate", "--model", "run/last", "--data", "data", "--splits", "test", "--out", "out.json"
    )
    accuracy, _ = Results.read(tmp_path / "out.json").splits["test"].average
    assert accuracy > LEAST[task]

"""The command lines for GPUs are those of docs/gpus.md, and parse."""

import subprocess

from documents import ROOT, blocks, commands
from tp_transformer.training.launch import Launch

GPUS = (ROOT / "docs" / "gpus.md").read_text("utf-8")


def test_the_commands_are_those_of_the_page():
    typed = {line[2:] for block in blocks("console", GPUS) for line in block.splitlines()}
    run = Launch(config="tp-transformer", data="math", run="runs/tp")
    assert {run.one_process(), run.one_machine()} < typed
    shared = Launch(config="tp-transformer", data="math", run="/shared/runs/tp")
    assert shared.machines() in typed
    assert len(commands(GPUS)) >= 5


def test_the_slurm_script_is_that_of_the_page():
    shared = Launch(config="tp-transformer", data="/shared/math", run="/shared/runs/tp")
    assert blocks("bash", GPUS) == [shared.slurm()]


def test_paths_are_quoted():
    run = Launch(config="tp-transformer", data="my data", run="it's")
    assert "--data 'my data'" in run.one_machine()
    subprocess.run(["bash", "-n"], input=run.slurm(n_machines=4), text=True, check=True)

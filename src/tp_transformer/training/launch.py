"""Command lines that train one run on several GPUs, on several machines and under Slurm.

docs/gpus.md explains them; a test compares its commands with these.
"""

import shlex
from dataclasses import dataclass

GPUS_PER_MACHINE = 8
_PORT = 29400

_SLURM = """\
#!/bin/bash
#SBATCH --job-name={config}
#SBATCH --nodes={n_machines}
#SBATCH --ntasks-per-node=1       # one torchrun per machine, which starts a process per GPU
#SBATCH --gpus-per-node={n_gpus}
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@120       # signal this script two minutes before the time is up
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

save_and_requeue() {{
    kill -TERM "$training"        # srun forwards it; the run writes a checkpoint and exits
    wait "$training"
    scontrol requeue "$SLURM_JOB_ID"
}}
trap save_and_requeue TERM

srun torchrun \\
    --nnodes="$SLURM_NNODES" --nproc-per-node={n_gpus} --max-restarts=3 \\
    --rdzv-backend=c10d --rdzv-endpoint="$host:{port}" --rdzv-id="$SLURM_JOB_ID" \\
    -m -- tp_transformer train \\
    {arguments} \\
    {options} &
training=$!
wait "$training"
"""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A run to be trained on GPUs.

    Attributes:
        config: a preset
        data: the store, at the same path on all machines
        run: the run folder, on a file system that all machines share
        options: further options of `tpt train`
    """

    config: str
    data: str
    run: str
    options: tuple[str, ...] = ("--training.precision=bfloat16",)

    def one_process(self) -> str:
        """Return the command for one GPU, or none."""
        return f"tpt train {self._arguments()}"

    def one_machine(self) -> str:
        """Return the command for all GPUs of one machine."""
        return (
            f"torchrun --standalone --nproc-per-node={GPUS_PER_MACHINE} "
            f"-m -- tp_transformer train {self._arguments()}"
        )

    def machines(self, n_machines: int = 2) -> str:
        """Return the command to be started on each of several machines."""
        return (
            f"torchrun --nnodes={n_machines} --nproc-per-node={GPUS_PER_MACHINE} "
            f"--rdzv-backend=c10d --rdzv-endpoint=node1:{_PORT} --rdzv-id=tp "
            f"-m -- tp_transformer train {self._arguments()}"
        )

    def slurm(self, n_machines: int = 2) -> str:
        """Return the script to submit with sbatch."""
        return _SLURM.format(
            config=self.config,
            n_machines=n_machines,
            n_gpus=GPUS_PER_MACHINE,
            port=_PORT,
            arguments=shlex.join(self._where()),
            options=shlex.join(self.options),
        )

    def _arguments(self) -> str:
        return shlex.join([*self._where(), *self.options])

    def _where(self) -> list[str]:
        return ["--config", self.config, "--data", self.data, "--run", self.run]

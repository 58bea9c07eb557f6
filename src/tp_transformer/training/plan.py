"""The plan of a run: what it would take, and the commands that start it on several GPUs.

docs/gpus.md explains the commands; a test compares those of the page with these.
"""

import shlex
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tp_transformer.data.store import Store
from tp_transformer.model.flops import training_flops
from tp_transformer.ranges import LARGEST_INT
from tp_transformer.runtime.ranks import Ranks, open_ranks, unchanged_random_state
from tp_transformer.training import checkpoint
from tp_transformer.training.config import RunConfig
from tp_transformer.training.loop import Loop
from tp_transformer.training.record import duration
from tp_transformer.training.setup import Request, initialise, prepare

MEASURED = 3.0  # seconds
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
class TrainingPlan:
    """What a run would take from its next step to its end.

    Attributes:
        n_parameters: of the model
        n_rows: number of questions to train on
        batch_size: number of samples of a step
        steps_taken: by a run that exists already
        last_step: the step at which the run ends; None if only its budget ends it
        step_seconds: measured time of a step, without validation
        operations: of the matrix products of the next step; None if unknown for the architecture
        budget: seconds that are left of the budget; None if there is none
        memory: bytes of memory at the peak of the measured steps; None if unknown
        checkpoint_bytes: of one checkpoint
        model_bytes: of one model
        n_checkpoints: largest number of checkpoints at a time
        n_best: largest number of best models at a time
        free_bytes: free disk space
        where: the device and the number of threads or processes
    """

    n_parameters: int
    n_rows: int
    batch_size: int
    steps_taken: int
    last_step: int | None
    step_seconds: float
    operations: float | None
    budget: float | None
    memory: int | None
    checkpoint_bytes: int
    model_bytes: int
    n_checkpoints: int
    n_best: int
    free_bytes: int
    where: str

    @property
    def steps(self) -> int:
        """The number of steps to take at the measured speed."""
        in_time = None if self.budget is None else int(self.budget / self.step_seconds)
        left = None if self.last_step is None else max(self.last_step - self.steps_taken, 0)
        return min(number for number in (in_time, left) if number is not None)

    @property
    def seconds(self) -> float:
        """The time of these steps."""
        return self.steps * self.step_seconds

    @property
    def disk(self) -> int:
        """The largest number of bytes that checkpoints and best models take."""
        return self.n_checkpoints * self.checkpoint_bytes + self.n_best * self.model_bytes

    def lines(self) -> list[str]:
        """Return the plan as lines to print."""
        samples = self.steps * self.batch_size
        end = "" if self.last_step is None else f" of {self.last_step:,}"
        taken = f", after {self.steps_taken:,} that are taken" if self.steps_taken else ""
        memory = "unknown" if self.memory is None else f"{size_text(self.memory)} in these steps"
        work = "unknown for this architecture"
        if self.operations is not None:
            rate = self.operations / self.step_seconds
            work = f"{self.operations / 1e9:,.3g} GFLOP per step, {rate / 1e9:,.3g} GFLOP/s"
        return [
            f"parameters  {self.n_parameters:,}",
            f"steps       {self.steps:,}{end}{taken}",
            f"samples     {samples:,} in batches of {self.batch_size:,}: "
            f"{samples / self.n_rows:,.3g} epochs of {self.n_rows:,} questions",
            f"time        {duration(self.seconds)} at {self.step_seconds:.3g} s per step "
            f"({self.batch_size / self.step_seconds:,.0f} samples/s), measured for "
            f"{MEASURED:.0f} s on {self.where}; without validations",
            f"operations  {work}",
            f"memory      {memory}; batches of longer questions need more",
            f"disk        {size_text(self.disk)} at most: {self.n_checkpoints} checkpoints of "
            f"{size_text(self.checkpoint_bytes)}, {self.n_best} best models of "
            f"{size_text(self.model_bytes)}; {size_text(self.free_bytes)} are free",
        ]


def plan_run(
    config: RunConfig | str | Path | None,
    data: Store | str | Path | None,
    run: str | Path,
    *,
    device: str = "auto",
    init_from: str | Path | None = None,
    seconds: float = MEASURED,
) -> TrainingPlan:
    """Return what a run would take, measured on this machine; nothing is written."""
    request = Request(run=Path(run), config=config, data=data, init_from=init_from)
    with open_ranks(device) as ranks, unchanged_random_state(ranks.device):
        plan, loop = prepare(request, ranks)
        # A step that is not finite must neither stop the measurement nor be recorded.
        loop.training = replace(loop.training, max_bad_steps=LARGEST_INT)
        folder = plan.init_from
        if folder is not None and not plan.origin:
            ranks.each(lambda: initialise(loop, folder))
        state = checkpoint.newest_state(Path(run))
        step, elapsed = (0, 0.0) if state is None else (state.step, state.elapsed)
        loop.state.step = step
        return _plan(loop, ranks, step, elapsed, loop.measure(seconds))


def _plan(loop: Loop, ranks: Ranks, step: int, elapsed: float, step_seconds: float) -> TrainingPlan:
    training, limits = loop.training, loop.limits
    model_bytes = _bytes(loop.model.parameters())
    states = loop.optimizer.state.values()
    tensors = (value for state in states for value in state.values() if torch.is_tensor(value))
    optimizer = _bytes(tensors)
    averages = 0 if loop.ema is None else model_bytes
    n_milestones = 0
    if training.keep_every is not None and limits.last_step is not None:
        n_milestones = limits.last_step // training.keep_every
    folder = loop.run_folder.absolute()
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    on_cpu = ranks.device.type == "cpu"
    n_threads = torch.get_num_threads()
    threads = f", {n_threads} thread{'' if n_threads == 1 else 's'}" if on_cpu else ""
    processes = f", {ranks.n_ranks} processes" if ranks.n_ranks > 1 else ""
    return TrainingPlan(
        n_parameters=loop.model.n_parameters,
        n_rows=limits.n_rows,
        batch_size=limits.batch_size,
        steps_taken=step,
        last_step=limits.last_step,
        step_seconds=step_seconds,
        operations=_operations(loop, step),
        budget=None if limits.budget is None else max(limits.budget - elapsed, 0.0),
        memory=_peak_memory(ranks.device),
        checkpoint_bytes=model_bytes + optimizer + averages,
        model_bytes=model_bytes,
        n_checkpoints=training.keep + 1 + n_milestones,  # one more while it is written
        n_best=training.keep + 1,
        free_bytes=shutil.disk_usage(existing).free,
        where=f"{ranks.device.type}{threads}{processes}",
    )


def _operations(loop: Loop, step: int) -> float | None:
    """Return the operations of the matrix products of a step, over all ranks."""
    source, target = loop.feed.split.lengths(loop.feed.sampler.rows(step))
    with suppress(TypeError):  # an architecture from elsewhere
        return training_flops(loop.model, source + 2, target + 2)  # with start and end token
    return None


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _peak_memory(device: torch.device) -> int | None:
    """Return the largest number of bytes of memory so far: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "cpu":
        with suppress(ImportError):  # Windows
            from resource import RUSAGE_SELF, getrusage

            unit = 1 if sys.platform == "darwin" else 1024
            return getrusage(RUSAGE_SELF).ru_maxrss * unit
    return None


def size_text(n_bytes: int) -> str:
    """Return a number of bytes with a unit."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.3g} {unit}"
    return f"{n_bytes / 1e3:,.3g} kB"


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
            arguments=shlex.join(self._places()),
            options=shlex.join(self.options),
        )

    def _arguments(self) -> str:
        return shlex.join([*self._places(), *self.options])

    def _places(self) -> list[str]:
        return ["--config", self.config, "--data", self.data, "--run", self.run]

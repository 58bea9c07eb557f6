"""Starting and resuming a run in its folder."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from torch import Tensor

from tp_transformer.data.store import Store
from tp_transformer.foundation.distributed import (
    Ranks,
    has_bfloat16,
    open_ranks,
    unchanged_random_state,
)
from tp_transformer.foundation.errors import UserError
from tp_transformer.foundation.provenance import versions
from tp_transformer.foundation.run_folder import BEST, LAST
from tp_transformer.training import checkpoint
from tp_transformer.training.checkpoint import Best, Checkpoint, State
from tp_transformer.training.claim import begin, claim, write_origin
from tp_transformer.training.config import RunConfig, run_config
from tp_transformer.training.display import Display, Lines
from tp_transformer.training.loop import Loop
from tp_transformer.training.metrics import Metrics, NullRecorder, Recorder
from tp_transformer.training.setup import make_loop


@dataclass(frozen=True)
class Outcome:
    """The state of a run when `train` returns: its steps, its best model, the signal received."""

    run: Path
    step: int
    best: Best | None
    question: str  # of the data, for the next command
    signal: int | None = None
    was_finished: bool = False  # before this call
    is_first: bool = True  # whether this is rank 0, which prints

    def lines(self) -> list[str]:
        """Return the result and the next command, as lines to print."""
        if self.signal is not None:
            return [f"{self.run}: stopped after step {self.step:,}; the same command resumes it"]
        end = "was finished already" if self.was_finished else "is finished"
        lines = [f"{self.run} {end}, after step {self.step:,}"]
        if self.best is not None:
            lines.append(
                f"best: {self.run / BEST}, of step {self.best.step:,}, with "
                f"{self.best.exact_match:.1%} of the held-out questions correct"
            )
        lines.append(f"last: {self.run / LAST}")
        return [*lines, f"next: tpt solve --model {self.run} {quote(self.question)}"]


def train(
    config: RunConfig | str | Path | None,
    data: Store | str | Path | None,
    run: str | Path,
    *,
    device: str = "auto",
    compile: bool = False,  # noqa: A002, as torch calls it
    tensorboard: bool = False,
    quiet: bool = False,
    display: Callable[[str], Display] = Lines,
) -> Outcome:
    """Train a model in a run folder, or resume the run that the folder holds.

    The settings and the data of an existing run can be omitted, but not changed. The caller's
    random state and signal handlers are restored afterwards.

    Args:
        config: settings of the run: a preset's name, a YAML file, or a `RunConfig`, as
            `RunConfig.of` makes one from a preset with some settings overridden
        data: the store or its folder
        run: folder of the run
        device: auto, cpu, cuda or mps
        compile: compile the layers with `torch.compile`
        tensorboard: write TensorBoard files into the run folder
        quiet: print nothing
        display: makes a display from a title; by default, lines on standard error
    """
    shown = (lambda _: Display()) if quiet else display
    chosen = RunConfig.of(config) if isinstance(config, str | Path) else config
    folder = data.path if isinstance(data, Store) else data
    with open_ranks(device) as ranks, unchanged_random_state(ranks.device):
        return _train(ranks, chosen, folder, Path(run), compile, tensorboard, shown)


def _train(
    ranks: Ranks,
    config: RunConfig | None,
    data: str | Path | None,
    run: Path,
    compiled: bool,
    tensorboard: bool,
    display: Callable[[str], Display],
) -> Outcome:
    with ExitStack() as stack:
        described = ranks.first(lambda: claim(run, config, data, stack))
        plan = json.loads(described)
        loop = ranks.each(
            lambda: make_loop(run_config(plan["values"]), Path(plan["data"]), run, ranks)
        )
        if not plan["origin"]:
            ranks.first(lambda: begin(run, stack))
        notes = _describe(loop, run, plan, ranks)
        _resume(loop, ranks, notes)
        if loop.finished:
            return _outcome(loop, was_finished=True)
        if compiled:
            loop.model.compile_layers()
        metrics = ranks.each(
            lambda: _open_metrics(loop, stack, tensorboard=tensorboard, display=display)
        )
        for note in notes:
            metrics.say(note)
        return _outcome(loop, signal=_run(loop, metrics))


def _run(loop: Loop, metrics: Recorder) -> int | None:
    """Train, and log how the run ended."""
    try:
        signal = loop.run(metrics)
    except (UserError, OSError) as error:
        metrics.note(str(error))
        raise
    if signal is None:
        metrics.note(f"finished after step {loop.state.step:,}")
    return signal


def _describe(loop: Loop, run: Path, plan: dict[str, Any], ranks: Ranks) -> list[str]:
    """Write the origin of a new run; return messages about the run for its log."""
    facts = versions()
    if not plan["origin"]:
        origin = {
            **facts,
            "begun": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "seed": loop.training.seed,
            "data": plan["data"],
            "data_sha256": plan["data_sha256"],
            "n_parameters": loop.model.n_parameters,
            "device": _device_name(ranks.device),
            "n_ranks": ranks.n_ranks,
            "threads": torch.get_num_threads(),
        }
        ranks.first(lambda: write_origin(run, plan["values"], origin))
    n_train = len(loop.feed.sampler)
    notes = [
        *plan["notes"],
        f"{loop.model.n_parameters:,} parameters; "
        f"{n_train:,} question{'s' if n_train > 1 else ''} to train on, "
        f"{len(loop.feed.held_out_rows):,} held out; {_device_name(ranks.device)}, "
        f"{ranks.n_ranks} rank{'s' if ranks.n_ranks > 1 else ''}",
    ]
    for name, version in facts.items():
        earlier = plan["origin"].get(name, version)
        if earlier != version:
            notes.append(f"started with {name} {earlier}, resumed with {version}")
    if loop.training.precision == "bfloat16" and not has_bfloat16(ranks.device):
        notes.append("this CPU has no native bfloat16: float32 would be several times faster")
    return notes


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _resume(loop: Loop, ranks: Ranks, notes: list[str]) -> None:
    """Restore the newest checkpoint, if there is one.

    Rank 0 reads it and sends it to the other ranks, which may be on machines with other disks.
    """
    found: list[Checkpoint] = []

    def find() -> str | None:
        newest = checkpoint.newest(loop.run_folder, notes.append)
        if newest is None:
            return None
        found.append(newest)
        checkpoint.point_to(loop.run_folder, newest.path, newest.state)
        shapes = {name: (str(t.dtype), list(t.shape)) for name, t in newest.tensors.items()}
        return json.dumps({"state": newest.state.to_json(), "shapes": shapes})

    described = ranks.first(find)
    if not described:
        return
    values = json.loads(described)
    tensors: dict[str, Tensor] = {}
    for name, (kind, shape) in values["shapes"].items():
        if found:
            tensor = found[0].tensors[name].to(ranks.device)
        else:
            dtype = getattr(torch, kind.removeprefix("torch."))
            tensor = torch.empty(shape, dtype=dtype, device=ranks.device)
        tensors[name] = ranks.share_tensor(tensor)
    state = State.from_json(values["state"])
    ranks.each(lambda: loop.restore(state, tensors))
    notes.append(f"resuming from step {state.step:,}")


def _open_metrics(
    loop: Loop, stack: ExitStack, *, tensorboard: bool, display: Callable[[str], Display]
) -> Recorder:
    if not loop.ranks.is_first:
        return NullRecorder()
    return stack.enter_context(
        Metrics(
            loop.run_folder,
            resume_step=loop.state.step,
            tensorboard=tensorboard,
            title=str(loop.run_folder),
            revalidates=loop.state.validated != loop.state.step,
            display=display(str(loop.run_folder)),
        )
    )


def _outcome(loop: Loop, *, signal: int | None = None, was_finished: bool = False) -> Outcome:
    return Outcome(
        run=loop.run_folder,
        step=loop.state.step,
        best=loop.state.best,
        question=loop.feed.example,
        signal=signal,
        was_finished=was_finished,
        is_first=loop.ranks.is_first,
    )

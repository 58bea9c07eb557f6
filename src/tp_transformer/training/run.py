"""Starting and resuming a run in its folder."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor

from tp_transformer import settings
from tp_transformer.data.store import Store
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.runtime.provenance import (
    Values,
    command_line,
    commit,
    machine,
    now,
    versions,
)
from tp_transformer.runtime.ranks import (
    Ranks,
    open_ranks,
    unchanged_random_state,
)
from tp_transformer.runtime.run_folder import BEST, CONFIG, LAST, read_origin
from tp_transformer.training import checkpoint
from tp_transformer.training.checkpoint import Best, Checkpoint, State
from tp_transformer.training.claim import (
    Claim,
    Request,
    begin,
    claim,
    write_changes,
    write_origin,
    write_session,
)
from tp_transformer.training.config import RunConfig, run_config
from tp_transformer.training.display import Display, Lines
from tp_transformer.training.history import history_of
from tp_transformer.training.loggers import AnyLogger, LoggedRun, names_in, open_logger
from tp_transformer.training.loop import Loop
from tp_transformer.training.metrics import Metrics, Recorder
from tp_transformer.training.setup import changes, initialise, make_loop


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
            return self.result()
        solve = command_line("solve", model=self.run)
        return [*self.result(), f"next: {solve} {quote(self.question)}"]

    def result(self) -> list[str]:
        """Return the result as lines to print."""
        if self.signal is not None:
            return [f"{self.run}: stopped after step {self.step:,}; the same command resumes it"]
        end = "was finished already" if self.was_finished else "is finished"
        lines = [f"{self.run} {end}, after step {self.step:,}"]
        if self.best is not None:
            lines.append(
                f"best: {self.run / BEST}, of step {self.best.step:,}, with "
                f"{self.best.exact_match:.1%} of the held-out questions correct"
            )
        return [*lines, f"last: {self.run / LAST}"]


def train(
    config: RunConfig | str | Path | None,
    data: Store | str | Path | None,
    run: str | Path,
    *,
    device: str = "auto",
    compile: bool = False,  # noqa: A002, as torch calls it
    init_from: str | Path | None = None,
    loggers: Sequence[AnyLogger] = (),
    quiet: bool = False,
    display: Callable[[str], Display] = Lines,
) -> Outcome:
    """Train a model in a run folder, or resume the run that the folder holds.

    The settings and the data of an existing run can be omitted. Only its limits can be changed:
    `training.steps` to any number that is not below the steps taken, `training.budget` and
    `training.epochs` to larger ones; and `optim.cooldown`. The caller's random state and signal
    handlers are restored afterwards.

    Args:
        config: settings of the run: a preset's name, a YAML file, or a `RunConfig`, as
            `RunConfig.of` makes one from a preset with some settings overridden
        data: the store or its folder
        run: folder of the run
        device: auto, cpu, cuda or mps
        compile: compile the layers with `torch.compile`
        init_from: folder of a model or a run of the same architecture, whose weights a new run
            starts from
        loggers: names in `LOGGERS`, which are recorded and continue after a resumption; objects
            with the methods of `Logger`; functions that take a record
        quiet: print nothing
        display: makes a display from a title; by default, lines on standard error
    """
    shown = (lambda _: Display()) if quiet else display
    request = Request.of(config, data, run, init_from, names_in(loggers))
    own = [logger for logger in loggers if not isinstance(logger, str)]
    with open_ranks(device) as ranks, unchanged_random_state(ranks.device):
        return train_on(ranks, request, compile, own, shown)


def train_on(
    ranks: Ranks,
    request: Request,
    compiled: bool,
    own_loggers: Sequence[AnyLogger],
    display: Callable[[str], Display],
) -> Outcome:
    """Train or resume one run, with ranks that have joined already."""
    run = request.run
    with ExitStack() as stack:
        found = Claim.from_json(ranks.first(lambda: claim(request, stack).to_json()))
        ranks.each(lambda: names_in(found.loggers))
        loop = ranks.each(lambda: make_loop(run_config(found.values), Path(found.data), run, ranks))
        notes = list(found.notes)
        if found.origin:
            _continue(loop, found, notes)
        else:
            _begin(loop, found, stack)
        notes += _describe(loop, found)
        if loop.finished:
            return _outcome(loop, was_finished=True)
        if found.origin:
            place = {"step": loop.state.step, "elapsed": loop.state.elapsed}
            ranks.first(lambda: write_session(run, {**place, **_session(loop)}))
        if compiled:
            loop.model.compile_layers()
        metrics = ranks.each(
            lambda: _open_metrics(loop, stack, [*found.loggers, *own_loggers], display)
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


def _begin(loop: Loop, found: Claim, stack: ExitStack) -> None:
    """Start a new run: its weights, its folder, the description of both."""
    ranks, run = loop.ranks, loop.run_folder
    initial = {}
    if found.init_from is not None:
        folder = found.init_from
        sha256 = ranks.each(lambda: initialise(loop, folder))
        initial = {"init_from": {"folder": folder, "sha256": sha256, **_history(folder)}}
    origin = {
        **_session(loop),
        "seed": loop.training.seed,
        "data": found.data,
        "data_sha256": found.data_sha256,
        **initial,
        "n_parameters": loop.model.n_parameters,
        "loggers": found.loggers,
    }
    ranks.first(lambda: begin(run, stack))
    ranks.first(lambda: write_origin(run, found.values, origin))


def _session(loop: Loop) -> Values:
    """Describe what trains from now on: the time, the code, the machine, the resources."""
    return {
        **versions(),
        "commit": commit(),
        "begun": now(),
        **machine(),
        "device": _device_name(loop.ranks.device),
        "n_ranks": loop.ranks.n_ranks,
        "threads": torch.get_num_threads(),
        "precision": loop.precision,
    }


def _history(folder: str) -> Values:
    """Return the training of a model that a run starts from, as it is recorded, if it is."""
    try:
        found = history_of(folder)
    except UserError:  # a description that cannot be read is no reason not to train
        return {}
    return {} if found is None else {"history": found.to_json()}


def _continue(loop: Loop, found: Claim, notes: list[str]) -> None:
    """Resume an existing run, and record what is changed about it."""
    ranks, run = loop.ranks, loop.run_folder
    is_resumed = _resume(loop, ranks, notes)
    if not is_resumed and found.init_from is not None:
        folder, sha256 = found.init_from, found.origin["init_from"]["sha256"]
        if ranks.each(lambda: initialise(loop, folder)) != sha256:
            raise UserError(f"{folder} has changed since {run} was started from it; use a new run")
    step, steps = loop.state.step, loop.training.steps
    if found.earlier is not None:
        if steps is not None and steps < step:
            raise SettingsError(f"training.steps is {steps}, but {run} has taken {step:,} steps")
        notes += changes(loop, run_config(found.earlier))
    if found.earlier is not None or found.loggers != found.origin.get("loggers", []):
        ranks.first(lambda: write_changes(run, found, step))


def _describe(loop: Loop, found: Claim) -> list[str]:
    """Return messages about the run for its log."""
    ranks, n_train = loop.ranks, len(loop.feed.sampler)
    notes = [
        f"{loop.model.n_parameters:,} parameters; "
        f"{n_train:,} question{'s' if n_train > 1 else ''} to train on, "
        f"{len(loop.feed.held_out_rows):,} held out; {_device_name(ranks.device)}, "
        f"{ranks.n_ranks} rank{'s' if ranks.n_ranks > 1 else ''}",
    ]
    if found.init_from is not None and not loop.state.step:
        notes.append(f"starting from the weights of {found.init_from}")
    for name, version in versions().items():
        earlier = found.origin.get(name, version)
        if earlier != version:
            notes.append(f"started with {name} {earlier}, resumed with {version}")
    if loop.precision != loop.training.precision:
        notes.append(
            f"no native {loop.training.precision} was found here: products are in {loop.precision}"
        )
    return notes


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _resume(loop: Loop, ranks: Ranks, notes: list[str]) -> bool:
    """Restore the newest checkpoint; return whether there is one.

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
        return False
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
    return True


def _open_metrics(
    loop: Loop,
    stack: ExitStack,
    loggers: Sequence[AnyLogger],
    display: Callable[[str], Display],
) -> Recorder:
    if not loop.ranks.is_first:
        return Recorder()
    origin = read_origin(loop.run_folder)
    logged = LoggedRun(
        folder=loop.run_folder.absolute(),
        id=origin.get("id", ""),
        resume_step=loop.state.step,
        settings=settings.read(loop.run_folder / CONFIG),
    )
    return stack.enter_context(
        Metrics(
            loop.run_folder,
            resume_step=loop.state.step,
            title=str(loop.run_folder),
            loggers=[open_logger(logger, logged) for logger in loggers],
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

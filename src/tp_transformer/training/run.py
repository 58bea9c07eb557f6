"""A run: its folder is opened or created, and trained in until it ends or a signal stops it."""

import hashlib
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, Self

import msgspec
import torch

from tp_transformer import settings
from tp_transformer.data.store import Store
from tp_transformer.errors import FolderError, SettingsError, UserError
from tp_transformer.runtime.files import atomic_write, lock, write_json
from tp_transformer.runtime.provenance import (
    Values,
    command_line,
    commit,
    machine,
    now,
    versions,
)
from tp_transformer.runtime.ranks import Ranks, open_ranks, unchanged_random_state
from tp_transformer.runtime.run_folder import (
    BEST,
    CONFIG,
    LAST,
    LOCK,
    ORIGIN,
    read_origin,
    seed_folder,
    seed_runs,
    sha256,
)
from tp_transformer.training import checkpoint
from tp_transformer.training.checkpoint import Best, Checkpoint, State
from tp_transformer.training.config import (
    RunConfig,
    run_config,
)
from tp_transformer.training.history import history_of
from tp_transformer.training.loop import Loop
from tp_transformer.training.record import (
    AnyLogger,
    Display,
    Lines,
    LoggedRun,
    Metrics,
    open_logger,
)
from tp_transformer.training.setup import (
    Request,
    RunPlan,
    effects_of_changes,
    initialise,
    prepare,
    recorded_config,
)

MakeDisplay = Callable[[str], Display]  # called with a title


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
    display: MakeDisplay = Lines,
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
    request = Request(run=Path(run), config=config, data=data, init_from=init_from, loggers=loggers)
    with (
        open_ranks(device) as ranks,
        unchanged_random_state(ranks.device),
        Run.open(request, ranks) as opened,
    ):
        if compile:
            opened.loop.model.compile_layers()
        return opened.train((lambda _: Display()) if quiet else display)


def train_seeds(
    config: RunConfig | str | Path | None,
    data: Store | str | Path | None,
    run: str | Path,
    seeds: Sequence[int],
    **options: Any,
) -> list[Outcome]:
    """Train a model with each seed, in RUN/seed-0 and so on, or resume these runs.

    The arguments and options are those of `train`. The runs that exist give what is omitted: the
    settings, the data, the initial model and the loggers of further seeds, and the seeds, if none
    are given.
    """
    folder = Path(run)
    if (folder / ORIGIN).is_file():
        raise FolderError(f"{folder} is the run of one seed; choose a new folder for several seeds")
    config = RunConfig.of(config) if isinstance(config, str | Path) else config
    begun = seed_runs(folder)
    outcomes: list[Outcome] = []
    with open_ranks(options.get("device", "auto")):  # joined once for all runs
        for seed in dict.fromkeys(seeds or begun):
            seed_config, seed_data, seed_options = config, data, {**options}
            if begun and seed not in begun:
                sibling = begun[min(begun)]
                origin = read_origin(sibling)
                seed_config = config or recorded_config(sibling, origin)
                seed_data = data or origin["data"]
                initial = origin.get("init_from", {}).get("folder")
                seed_options["init_from"] = options.get("init_from") or initial
                seed_options["loggers"] = options.get("loggers") or origin.get("loggers", [])
            if seed_config is not None:
                training = replace(seed_config.training, seed=seed)
                seed_config = replace(seed_config, training=training)
            run = seed_folder(folder, seed)
            outcomes.append(train(seed_config, seed_data, run, **seed_options))
            if outcomes[-1].signal is not None:
                break
    return outcomes


def seed_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the results of the runs of several seeds and the next command, as lines to print."""
    lines = [line for outcome in outcomes for line in outcome.result()]
    if outcomes[-1].signal is not None:
        return lines
    folder, data = outcomes[0].run.parent, read_origin(outcomes[0].run)["data"]
    out = f"{folder.name}.json"
    return [*lines, f"next: {command_line('evaluate', model=folder, data=data, out=out)}"]


class Run:
    """A run folder that is open: locked by this process, recorded, with a loop to train."""

    def __init__(self, request: Request, ranks: Ranks, plan: RunPlan, loop: Loop) -> None:
        self.folder, self.ranks, self.plan, self.loop = request.run, ranks, plan, loop
        self._loggers = [logger for logger in request.loggers if not isinstance(logger, str)]
        self._notes: list[str] = []  # for the log
        self._initial_sha256 = ""  # of the model that the run starts from

    @classmethod
    @contextmanager
    def open(cls, request: Request, ranks: Ranks) -> Iterator[Self]:
        """Open the folder of a run, or create it; it stays locked inside the context."""
        with ExitStack() as stack:
            folder = request.run
            is_begun = ranks.first(lambda: (folder / ORIGIN).is_file())
            if is_begun:
                ranks.first(lambda: _lock(folder, stack))
            run = cls(request, ranks, *prepare(request, ranks))
            run._restore()
            if not is_begun:  # only now that its settings have been checked
                ranks.first(lambda: _create(folder, stack))
            ranks.first(run._write_record)
            yield run

    def train(self, display: MakeDisplay) -> Outcome:
        """Train until the run ends or a signal is received."""
        loop = self.loop
        if loop.finished:
            return self._outcome(was_finished=True)
        with self.ranks.each(lambda: self._open_display(display)) as opened:
            for note in self._describe():
                opened.say(note)
            signal = loop.run(opened)
            if signal is None:
                opened.log(f"finished after step {loop.state.step:,}")
        return self._outcome(signal=signal)

    def _restore(self) -> None:
        """Restore the newest checkpoint, or else the weights that the run starts from."""
        ranks, loop, plan = self.ranks, self.loop, self.plan
        newest = ranks.each(lambda: self._newest_checkpoint() if ranks.is_first else None)
        values = ranks.first(lambda: None if newest is None else msgspec.to_builtins(newest.state))
        if values is not None:
            tensors = ranks.share_tensors(None if newest is None else newest.tensors)
            ranks.each(lambda: loop.restore(msgspec.convert(values, State), tensors))
            self._notes.append(f"resuming from step {loop.state.step:,}")
        elif plan.init_from is not None:
            folder = plan.init_from
            self._initial_sha256 = ranks.each(lambda: initialise(loop, folder))
            recorded = plan.origin.get("init_from", {"sha256": self._initial_sha256})["sha256"]
            if self._initial_sha256 != recorded:
                raise UserError(
                    f"{plan.init_from} has changed since {self.folder} was started from it; use a "
                    "new run"
                )
            self._notes.append(f"starting from the weights of {plan.init_from}")
        if plan.changes:
            step, steps = loop.state.step, loop.training.steps
            if steps is not None and steps < step:
                raise SettingsError(
                    f"training.steps is {steps}, but {self.folder} has taken {step:,} steps"
                )
            self._notes += effects_of_changes(loop, run_config(plan.recorded))

    def _newest_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, after completing what a killed process left undone."""
        newest = checkpoint.newest(self.folder, self._notes.append)
        if newest is not None:
            training = self.loop.training
            checkpoint.update_links(self.folder, newest.path, newest.state)
            checkpoint.prune(
                self.folder, newest.state, keep=training.keep, keep_every=training.keep_every
            )
        return newest

    def _write_record(self) -> None:
        """Write run.json, which has all that is recorded about the run, and its copy config.yaml.

        If the process is killed between the two, or config.yaml is changed later, the next process
        writes it again.
        """
        plan, loop, text = self.plan, self.loop, settings.dump(self.plan.settings)
        record = {**plan.origin} or self._first_record()
        record |= {
            "loggers": plan.loggers,
            "settings": plan.settings,
            "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        if plan.changes:
            change = {"time": now(), "step": loop.state.step, "settings": plan.changes}
            record["changes"] = [*plan.origin.get("changes", []), change]
        if plan.origin and not loop.finished:
            session = {"step": loop.state.step, "elapsed": loop.state.elapsed, **self._session()}
            record["resumed"] = [*plan.origin.get("resumed", []), session]
        if record != plan.origin:
            write_json(self.folder / ORIGIN, record)
        if sha256(self.folder / CONFIG) != record["config_sha256"]:
            with atomic_write(self.folder / CONFIG) as file:
                file.write_text(text, "utf-8", newline="\n")
            if plan.origin and not plan.changes:
                self._notes.append(f"{self.folder / CONFIG} was changed; it is restored")

    def _first_record(self) -> Values:
        """Describe a new run."""
        plan, loop = self.plan, self.loop
        initial: Values = {}
        if plan.init_from is not None:
            initial = {"folder": plan.init_from, "sha256": self._initial_sha256}
            with suppress(UserError):  # a description that cannot be read is no reason to stop
                history = history_of(plan.init_from)
                if history is not None:
                    initial["history"] = msgspec.to_builtins(history)
        return {
            **self._session(),
            "id": uuid.uuid4().hex[:12],
            "seed": loop.training.seed,
            "data": plan.data,
            "data_sha256": plan.data_sha256,
            **({"init_from": initial} if initial else {}),
            "n_parameters": loop.model.n_parameters,
        }

    def _session(self) -> Values:
        """Describe what trains from now on: the time, the code, the machine, the resources."""
        return {
            **versions(),
            "commit": commit(),
            "begun": now(),
            **machine(),
            "device": self._device(),
            "n_ranks": self.ranks.n_ranks,
            "threads": torch.get_num_threads(),
            "precision": self.loop.precision,
        }

    def _describe(self) -> list[str]:
        """Return messages about the run for its log."""
        loop, n_ranks, n_train = self.loop, self.ranks.n_ranks, len(self.loop.feed.sampler)
        notes = [
            *self._notes,
            f"{loop.model.n_parameters:,} parameters; "
            f"{n_train:,} question{'s' if n_train > 1 else ''} to train on, "
            f"{len(loop.feed.held_out_rows):,} held out; {self._device()}, "
            f"{n_ranks} rank{'s' if n_ranks > 1 else ''}",
        ]
        for name, version in versions().items():
            earlier = self.plan.origin.get(name, version)
            if earlier != version:
                notes.append(f"started with {name} {earlier}, resumed with {version}")
        if loop.precision != loop.training.precision:
            notes.append(
                f"no native {loop.training.precision} was found here: products are in "
                f"{loop.precision}"
            )
        return notes

    def _device(self) -> str:
        device = self.ranks.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    def _open_display(self, display: MakeDisplay) -> Display:
        """Return what records the run: on rank 0, its files, loggers and display."""
        if not self.ranks.is_first:
            return Display()
        state, plan = self.loop.state, self.plan
        logged = LoggedRun(
            folder=self.folder.absolute(),
            id=read_origin(self.folder).get("id", ""),
            resume_step=state.step,
            settings=plan.settings,
        )
        loggers = [*plan.loggers, *self._loggers]
        return Metrics(
            self.folder,
            resume_step=state.step,
            display=display(str(self.folder)),
            loggers=[open_logger(logger, logged) for logger in loggers],
            revalidates=state.validated != state.step,
        )

    def _outcome(self, *, signal: int | None = None, was_finished: bool = False) -> Outcome:
        loop = self.loop
        return Outcome(
            run=self.folder,
            step=loop.state.step,
            best=loop.state.best,
            question=loop.feed.example,
            signal=signal,
            was_finished=was_finished,
            is_first=self.ranks.is_first,
        )


def _create(run: Path, stack: ExitStack) -> None:
    """Create and lock the folder of a new run."""
    run.mkdir(parents=True, exist_ok=True)
    _lock(run, stack)
    if (run / ORIGIN).is_file():
        raise FolderError(f"another process has started {run}; repeat the command to resume it")


def _lock(run: Path, stack: ExitStack) -> None:
    # A separate file, because `atomic_write` locks the folder itself.
    (run / LOCK).touch()
    descriptor = lock(run / LOCK)
    if descriptor is None:
        raise FolderError(f"another process is training {run}")
    stack.callback(os.close, descriptor)
    checkpoint.clear_leftovers(run)

"""A run: its settings, and starting or resuming it in its folder."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, get_type_hints

import torch
from torch import Tensor

from tp_transformer.data.feed import STEPS_AHEAD, Feed, FeedConfig
from tp_transformer.data.store import MANIFEST, TRAIN, Split, Store, open_store
from tp_transformer.foundation import atomic, run_folder, settings
from tp_transformer.foundation.allocator import refuse_beyond_memory
from tp_transformer.foundation.distributed import (
    Ranks,
    has_bfloat16,
    open_ranks,
    unchanged_random_state,
)
from tp_transformer.foundation.errors import FolderError, SettingsError, UserError
from tp_transformer.foundation.provenance import versions
from tp_transformer.foundation.run_folder import BEST, CONFIG, LAST, LOCK, LOG, METRICS, ORIGIN
from tp_transformer.foundation.settings import Values
from tp_transformer.model.family import AnyModel, ModelConfig, class_of, from_config, model_config
from tp_transformer.training import checkpoint
from tp_transformer.training.checkpoint import Best, Checkpoint, State
from tp_transformer.training.display import Display, Lines
from tp_transformer.training.loop import Loop, TrainingConfig
from tp_transformer.training.metrics import Metrics, NullRecorder, Recorder
from tp_transformer.training.optim import OptimConfig
from tp_transformer.training.validate import ValidationConfig, monitored


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run, by section."""

    model: ModelConfig
    data: FeedConfig = field(default_factory=FeedConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)


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


def run_config(values: dict[str, Values]) -> RunConfig:
    """Return the settings from the values of their sections."""
    settings.refuse_unknown(values, RunConfig.__dataclass_fields__, "a run")
    if "model" not in values:
        raise SettingsError("a run needs the section 'model'")
    hints = get_type_hints(RunConfig)
    del hints["model"]
    stages = {n: settings.to_dataclass(kind, values.get(n, {}), n) for n, kind in hints.items()}
    return RunConfig(model=model_config(values["model"]), **stages)


def config_values(config: RunConfig) -> dict[str, Values]:
    """Return the sections of values from which `run_config` makes the same settings."""
    values: dict[str, Values] = settings.to_values(config)
    return {**values, "model": class_of(config.model).config_values(config.model)}


def train(
    config: RunConfig | None,
    data: str | Path | None,
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
        config: settings of the run
        data: folder of the store
        run: folder of the run
        device: auto, cpu, cuda or mps
        compile: compile the layers with `torch.compile`
        tensorboard: write TensorBoard files into the run folder
        quiet: print nothing
        display: makes a display from a title; by default, lines on standard error
    """
    shown = (lambda _: Display()) if quiet else display
    with open_ranks(device) as ranks, unchanged_random_state(ranks.device):
        return _train(ranks, config, data, Path(run), compile, tensorboard, shown)


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
        described = ranks.first(lambda: _claim(run, config, data, stack))
        plan = json.loads(described)
        loop = ranks.each(
            lambda: _make_loop(run_config(plan["values"]), Path(plan["data"]), run, ranks)
        )
        if not plan["origin"]:
            ranks.first(lambda: _begin(run, stack))
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


def _claim(run: Path, config: RunConfig | None, data: str | Path | None, stack: ExitStack) -> str:
    """Return the settings, the data and the origin of a run as JSON.

    An existing run is locked. A new run gets its folder after its settings have been checked.
    """
    is_begun = (run / ORIGIN).is_file()
    if not is_begun:
        _refuse_other_folder(run)
        if config is None or data is None:
            raise UserError(f"{run} is not a run yet: to start one, give --config and --data")
    else:
        _lock(run, stack)
    origin = run_folder.read_origin(run) if is_begun else {}
    folder = Path(data).resolve() if data is not None else Path(origin["data"])
    store, fingerprint = _open(folder), run_folder.sha256(folder / MANIFEST)
    if config is not None:  # as many rows of the embedding as the task has tokens
        model = class_of(config.model).sized(config.model, store.task.vocabulary)
        config = replace(config, model=model)
    notes: list[str] = []
    if is_begun:
        config = _same_config(run, config, origin.get("config_sha256"), notes)
        if fingerprint != origin["data_sha256"]:
            raise UserError(f"{run} was started on other data ({origin['data']}), not {folder}")
    assert config is not None  # noqa: S101, for the type checker
    plan = {
        "values": config_values(config),
        "data": str(folder),
        "data_sha256": fingerprint,
        "origin": origin,
        "notes": notes,
    }
    return json.dumps(plan)


def _refuse_other_folder(run: Path) -> None:
    """Raise if a folder contains anything but an incomplete start of a run."""
    if run.exists() and not run.is_dir():
        raise FolderError(f"{run} is a file; choose a new folder")
    names = {entry.name for entry in run.iterdir()} if run.exists() else set()
    # A run that was killed while it started: the lock is its first file.
    begun = {CONFIG, LOCK, METRICS, LOG} if LOCK in names else set()
    for name in sorted(names - begun):
        if not name.startswith("."):
            raise FolderError(f"{run} holds something else ({name}); choose a new folder")


def _begin(run: Path, stack: ExitStack) -> None:
    run.mkdir(parents=True, exist_ok=True)
    _lock(run, stack)
    if (run / ORIGIN).is_file():
        raise FolderError(f"another process has started {run}; repeat the command to resume it")


def _lock(run: Path, stack: ExitStack) -> None:
    # A separate file, because `atomic.whole` locks the folder itself.
    (run / LOCK).touch()
    held = atomic.lock(run / LOCK)
    if held is None:
        raise FolderError(f"another process is training {run}")
    stack.callback(os.close, held)
    checkpoint.clear_leftovers(run)


def _same_config(
    run: Path, config: RunConfig | None, sha256: str | None, notes: list[str]
) -> RunConfig:
    """Return the settings of an existing run; raise if other settings are given.

    A file that was changed or truncated is an error, unless the given settings restore it.
    """
    file = run / CONFIG
    if sha256 is not None and run_folder.sha256(file) != sha256:
        text = "" if config is None else settings.dump(config_values(config))
        if hashlib.sha256(text.encode()).hexdigest() != sha256:
            raise SettingsError(
                f"{file} was changed after the run was started; restore it, or repeat the command "
                "that started the run, with all its options, to write it again"
            )
        _write_text(file, text)
        notes.append(f"{file} was changed after the run was started; it is restored")
    values = settings.run_values(file, {}, RunConfig)
    if sha256 is None and "count" not in values.get("validation", {}):
        # The last setting in the file of a run from before hashes were recorded.
        raise SettingsError(f"{file} is truncated: it does not set validation.count; restore it")
    begun = run_config(values)
    absent = settings.missing(values, config_values(begun))
    if absent:  # a run of an earlier version
        notes.append(f"{file} does not set {', '.join(absent)}: using the defaults")
    if config is not None:
        found = settings.differences(config_values(begun), config_values(config))
        if found:
            listed = "; ".join(one.replace(", not ", f" in {run}, not ", 1) for one in found)
            raise SettingsError(f"{listed}; resume with the settings of the run, or use a new run")
    return begun


def _open(data: str | Path) -> Store:
    try:
        return open_store(data)
    except (OSError, ValueError) as error:  # also a path that is invalid or too long
        raise UserError(f"cannot read the store of the run: {error!r:.200}") from error


def _make_loop(config: RunConfig, data: Path, run: Path, ranks: Ranks) -> Loop:
    store = open_store(data)
    split = store[TRAIN]
    if config.data.batch_size < ranks.n_ranks:
        raise SettingsError(
            f"a batch of {config.data.batch_size} cannot be divided among {ranks.n_ranks} ranks"
        )
    torch.manual_seed(config.training.seed)
    model = from_config(config.model, store.task.vocabulary)
    model.max_answer = store.task.max_answer or max(one.max_lengths[1] for one in store.values())
    _refuse_lengths(model, split, config.data)
    _refuse_sizes(model, split, config.data, ranks)
    feed = Feed(
        split,
        batch_size=config.data.batch_size,
        seed=config.training.seed,
        modules=config.data.modules,
        weights=config.data.weights,
        vocabulary=model.vocabulary,
        held_out=config.validation.count,
    )
    monitor = None
    if config.validation.monitor:
        if not store.task.test_splits:
            raise SettingsError(f"{data} has no test split to monitor")
        test = store[store.task.test_splits[0]]
        _refuse_lengths(model, test, config.data)
        count = config.validation.monitor
        monitor = monitored(test, config.data.modules, count, model.vocabulary)
    return Loop(
        model.to(ranks.device),
        feed,
        run,
        ranks,
        optim=config.optim,
        training=config.training,
        validation=config.validation,
        monitor=monitor,
    )


def _refuse_lengths(model: AnyModel, split: Split, config: FeedConfig) -> None:
    """Raise if a text has more tokens than the model has positions."""
    for one in split.select(config.modules):
        longest = max(len(one.question_lengths), len(one.answer_lengths)) - 1
        if model.n_positions is not None and longest + 2 > model.n_positions:
            raise SettingsError(
                f"{one.module} has texts of {longest} tokens; the model reads at most "
                f"{model.n_positions - 2}"
            )


def _refuse_sizes(model: AnyModel, split: Split, config: FeedConfig, ranks: Ranks) -> None:
    """Raise if a model or a batch would not fit into memory."""
    if ranks.device.type == "cpu":  # weights, gradient and two averages of Adam
        refuse_beyond_memory("weights, gradient and averages", 16 * model.n_parameters)
    segments = split.select(config.modules)
    n_tokens = sum(
        n * length
        for one in segments
        for lengths in (one.question_lengths, one.answer_lengths)
        for length, n in enumerate(lengths)
    )
    mean = n_tokens // max(1, sum(one.count for one in segments))
    ids = config.batch_size // ranks.n_ranks * (4 + mean)
    refuse_beyond_memory(f"batches of {config.batch_size:,}", 8 * ids * STEPS_AHEAD)


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
        ranks.first(lambda: _write_origin(run, plan["values"], origin))
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


def _write_origin(run: Path, values: dict[str, Values], origin: dict[str, Any]) -> None:
    _write_text(run / CONFIG, settings.dump(values))
    origin = {**origin, "config_sha256": run_folder.sha256(run / CONFIG)}
    # Written last: a folder with this file is a run.
    _write_text(run / ORIGIN, json.dumps(origin, indent=2) + "\n")


def _write_text(path: Path, text: str) -> None:
    with atomic.whole(path) as file:
        file.write_text(text, "utf-8", newline="\n")


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

"""Checkpoints: the complete state of a run, written atomically.

RUN/checkpoints/step-00001000 is a model folder that `tp_transformer.load` reads, with two more
files: `training.safetensors` has the state of the optimizer (and the raw weights, if those of the
model are a moving average); `state.json` has the rest, and the size and hash of each file. Random
numbers and the position in the data follow from the seed and the step, so they are not saved.
RUN/last links to the newest checkpoint, and RUN/best to the model in RUN/best-models that has the
best validation score according to that checkpoint. Both links are updated after a checkpoint is
written and before an older one is removed, so that readers always find them, and at each start.

Which checkpoints are kept depends only on what the checkpoints record: a run that was interrupted
ends with the same ones as a run that was not.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tp_transformer.errors import CheckpointError, UserError
from tp_transformer.model import folder as model_folder
from tp_transformer.model.checkpoint import AnyModel
from tp_transformer.runtime.files import atomic_write, replace_link, resolve_link
from tp_transformer.runtime.files import clear_leftovers as clear_unfinished
from tp_transformer.runtime.run_folder import BEST, BEST_MODELS, CHECKPOINTS, LAST
from tp_transformer.training.optim import Ema

TRAINING, STATE = "training.safetensors", "state.json"
FILES = {TRAINING, model_folder.WEIGHTS, model_folder.CONFIG, model_folder.VOCABULARY}
# The first part of the name of a tensor, before the name of its parameter. Other prefixes are those
# of the optimizer, such as step, exp_avg and exp_avg_sq of Adam.
WEIGHT, AVERAGE = "weight", "average"
_ELEMENTWISE = {"exp_avg", "exp_avg_sq", "momentum"}  # of Adam and Muon, in the parameter's shape

_PREFIX, _REMOVED = "step-", ".removed-"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class Best(msgspec.Struct, frozen=True):
    """The best validation so far."""

    step: Count
    exact_match: Amount
    loss: Amount


class Window(msgspec.Struct):
    """Sums over the steps since the last line of metrics."""

    seconds: Amount = 0.0
    waited: Amount = 0.0
    # Only over the steps that were applied.
    steps: Amount = 0.0
    loss: Amount = 0.0
    right: Amount = 0.0
    norm: Amount = 0.0
    rows: Amount = 0.0
    tokens: Amount = 0.0
    symbols: Amount = 0.0
    positions: Amount = 0.0


SUMS = ("loss", "right", "norm", "rows", "tokens", "symbols", "positions")


class ValidationState(msgspec.Struct, kw_only=True):
    """The result of the validations up to a step."""

    validated: Count | None = None  # the step of the last validation
    best: Best | None = None
    stale: Count = 0  # validations since the best


class State(ValidationState, kw_only=True):
    """The state of a run except for tensors."""

    step: Count = 0  # number of steps taken, and of the next batch
    elapsed: Amount = 0.0  # seconds of training, including before resumption
    skipped: Count = 0  # steps that were not applied
    window: Window = msgspec.field(default_factory=Window)
    before_end: ValidationState | None = None  # before one that was due only because of the end
    # Whether an undisturbed run of any length has a checkpoint of this step too. Otherwise this one
    # was written because of a signal, or because the run ended.
    is_scheduled: bool = True

    def forget_end(self) -> None:
        """Undo a validation that was due only because the run ended, which it now does later."""
        if self.before_end is not None:
            earlier, self.before_end = self.before_end, None
            self.validated, self.best, self.stale = earlier.validated, earlier.best, earlier.stale


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint folder."""

    path: Path
    state: State
    tensors: dict[str, Tensor]  # by kind and parameter, such as exp_avg.embedding.symbols.weight


def save(
    run: Path,
    state: State,
    model: AnyModel,
    optimizer: torch.optim.Optimizer,
    ema: Ema | None,
    *,
    keep: int,
    keep_every: int | None,
) -> Path:
    """Write a checkpoint, then remove those that are no longer kept."""
    path = _step_folder(run / CHECKPOINTS, state.step)
    try:
        with atomic_write(path) as unfinished:
            _write(unfinished, state, model, optimizer, ema)
        update_links(run, path, state)
        # Those of later steps are damaged or from an abandoned continuation.
        _remove(path for step, path in _folders(run / CHECKPOINTS) if step > state.step)
        prune(run, state, keep=keep, keep_every=keep_every)
    except (OSError, SafetensorError, UserError) as error:
        raise UserError(
            f"cannot write the checkpoint {path}: {_reason(error)}; {what_is_left(run)}"
        ) from error
    return path


def save_best(run: Path, step: int, model: AnyModel) -> None:
    """Write the best model so far; the next checkpoint makes it RUN/best."""
    model.save(_step_folder(run / BEST_MODELS, step))


def update(run: Path, state: State) -> None:
    """Add a validation to the checkpoint of the same step, which has the same weights."""
    path = _step_folder(run / CHECKPOINTS, state.step)
    try:
        files = _read_state(path)[1]
        with atomic_write(path / STATE) as file:
            file.write_text(_state_text(state, files), "utf-8")
        update_links(run, path, state)
    except OSError as error:
        raise UserError(f"cannot write to the checkpoint {path}: {_reason(error)}") from error


def update_links(run: Path, newest: Path, state: State) -> None:
    """Update the links `last` and `best` to match the newest checkpoint."""
    if not _links_to(run / LAST, newest):
        replace_link(run / LAST, newest)
    if state.best is not None:
        best = _step_folder(run / BEST_MODELS, state.best.step)
        if best.exists() and not _links_to(run / BEST, best):
            replace_link(run / BEST, best)


def _links_to(name: Path, folder: Path) -> bool:
    target = resolve_link(name)
    return target is not None and target.resolve() == folder.resolve()


def prune(run: Path, state: State, *, keep: int, keep_every: int | None) -> None:
    """Remove the checkpoints and best models that are no longer needed after the step of a state.

    These are kept: the checkpoint of that step, those before it that are scheduled, `keep` in all,
    and the first at or after each multiple of `keep_every`. A best model is kept as long as one of
    the newest checkpoints refers to it.
    """
    past = sorted(each for each in _folders(run / CHECKPOINTS) if each[0] <= state.step)
    newest = [path for _, path in past[-1:]]
    for _, path in reversed(past[:-1]):
        if len(newest) < keep and _is_scheduled(path):
            newest.append(path)
    milestones: dict[int, Path] = {}
    if keep_every is not None:
        for step, path in past:
            milestones.setdefault(step // keep_every, path)
        milestones.pop(0, None)
    _remove(path for _, path in past if path not in {*newest, *milestones.values()})
    needed = {best for path in newest for best in _best_of(run, path)}
    best_models = [path for _, path in _folders(run / BEST_MODELS) if path not in needed]
    _remove(path for path in best_models if not _links_to(run / BEST, path))


def _is_scheduled(path: Path) -> bool:
    with suppress(CheckpointError):
        return _read_state(path)[0].is_scheduled
    return True


def newest(run: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest complete checkpoint, or None if there are no checkpoints.

    Damaged checkpoints are skipped with a message. If all are damaged, this is an error: a new
    start would overwrite files that may be recoverable.
    """
    folders = sorted(_folders(run / CHECKPOINTS), reverse=True)
    for _, path in folders:
        try:
            return read(path)
        except CheckpointError as error:
            say(f"skipping a checkpoint: {error}")
    if folders:
        raise CheckpointError(
            f"all checkpoints in {run / CHECKPOINTS} are damaged; to start again, use a new folder"
        )
    return None


def newest_state(run: Path) -> State | None:
    """Return the state of the newest checkpoint that can be read, without its tensors."""
    for _, path in sorted(_folders(run / CHECKPOINTS), reverse=True):
        with suppress(CheckpointError):
            return _read_state(path)[0]
    return None


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; raise if a file differs from its recorded size or hash."""
    state, files = _read_state(path)
    if path.name != _step_folder(path.parent, state.step).name:
        raise CheckpointError(f"{path / STATE} is of step {state.step}, not of this checkpoint")
    try:
        for name, described in files.items():
            if _described(path / name) != described:
                raise CheckpointError(f"{path / name} is damaged")
        tensors = model_folder.read_tensors(path / TRAINING)
        weights = model_folder.read_tensors(path / model_folder.WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {_reason(error)}") from error
    kind = AVERAGE if any(name.startswith(f"{WEIGHT}.") for name in tensors) else WEIGHT
    return Checkpoint(path, state, {**tensors, **{f"{kind}.{n}": t for n, t in weights.items()}})


def _read_state(path: Path) -> tuple[State, dict[str, Any]]:
    """Return the state of a checkpoint, and the sizes and hashes of its other files."""
    try:
        values = msgspec.json.decode((path / STATE).read_bytes(), type=dict[str, Any])
        if values.pop("hash") != _hash_of_values(values):
            raise CheckpointError(f"{path / STATE} is damaged")
        files = values.pop("files")
        if files.keys() != FILES:
            raise CheckpointError(f"{path / STATE} does not name the files of a checkpoint")
        return msgspec.convert(values, State), files
    except (OSError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path / STATE} is damaged: {_reason(error)}") from error


def restore(
    tensors: Mapping[str, Tensor],
    model: AnyModel,
    optimizer: torch.optim.Optimizer,
    ema: Ema | None,
) -> None:
    """Copy the tensors of a checkpoint to a model, its optimizer and its averaged weights."""
    parameters = dict(model.named_parameters())
    _check_fit(tensors, parameters, ema is not None)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"{WEIGHT}.{name}"])
            if ema is not None:
                ema.weights[name].copy_(tensors[f"{AVERAGE}.{name}"])
    names = {id(parameter): name for name, parameter in parameters.items()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    by_name: dict[str, dict[str, Tensor]] = {name: {} for name in order}
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        if kind not in {WEIGHT, AVERAGE}:
            by_name[name][kind] = tensor
    states = {number: by_name[name] for number, name in enumerate(order) if by_name[name]}
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def clear_leftovers(run: Path) -> None:
    """Remove incomplete files of a killed process; requires the lock of the run."""
    checkpoints = [path for _, path in _folders(run / CHECKPOINTS)]
    for folder in (run, run / CHECKPOINTS, run / BEST_MODELS, *checkpoints):
        clear_unfinished(folder)
        for path in folder.glob(f"{_REMOVED}*"):
            shutil.rmtree(path, ignore_errors=True)


def _write(
    folder: Path,
    state: State,
    model: AnyModel,
    optimizer: torch.optim.Optimizer,
    ema: Ema | None,
) -> None:
    tensors = dict(optimizer_tensors(model, optimizer))
    folder.mkdir()
    if ema is None:
        _write_model(folder, model)
    else:
        tensors |= {f"{WEIGHT}.{name}": p.detach() for name, p in model.named_parameters()}
        with ema.in_place():
            _write_model(folder, model)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / TRAINING, metadata=model_folder.METADATA)
    (folder / TRAINING).chmod((folder / model_folder.CONFIG).stat().st_mode)
    files = {file.name: _described(file) for file in sorted(folder.iterdir())}
    (folder / STATE).write_text(_state_text(state, files), "utf-8")


def _state_text(state: State, files: Mapping[str, Any]) -> str:
    values = {**msgspec.to_builtins(state), "files": files}
    return json.dumps({**values, "hash": _hash_of_values(values)}, indent=2) + "\n"


def _write_model(folder: Path, model: AnyModel) -> None:
    # Through a subfolder: writing a model folder locks its parent, and the parent of `folder` is
    # already locked by the checkpoint.
    subfolder = folder / "model"
    model.save(subfolder)
    for file in subfolder.iterdir():
        file.rename(folder / file.name)
    subfolder.rmdir()


def optimizer_tensors(
    model: AnyModel, optimizer: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that an optimizer keeps for each parameter, by kind and parameter.

    Raises:
        UserError: if the optimizer keeps a value that is not a tensor
    """
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, Tensor):
                raise UserError(f"the optimizer keeps {kind!r}, which is not a tensor")
            yield f"{kind}.{name}", value


def _check_fit(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], averaged: bool
) -> None:
    """Raise if tensors are missing, belong to no parameter, or have a wrong shape."""
    kinds = (WEIGHT, AVERAGE) if averaged else (WEIGHT,)
    needed = {f"{kind}.{name}" for kind in kinds for name in parameters}
    unknown = {
        key
        for key in tensors
        if key.partition(".")[2] not in parameters or (key.startswith(f"{AVERAGE}.") > averaged)
    }
    for problem, names in (("lacks", needed - tensors.keys()), ("has an unknown", unknown)):
        if names:
            raise CheckpointError(
                f"the checkpoint does not fit the run: it {problem} {min(names)!r}"
            )
    for key, tensor in tensors.items():
        kind, _, name = key.partition(".")
        shape = parameters[name].shape
        if tensor.shape != shape and (key in needed or kind in _ELEMENTWISE):
            raise CheckpointError(
                f"the checkpoint does not fit the run: {key!r} has shape {tuple(tensor.shape)}, "
                f"not {tuple(shape)}"
            )


def _step_folder(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step:08}"


def _folders(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield the steps and paths of the step folders in a folder."""
    for path in folder.glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if path.is_dir() and number.isdecimal():
            yield int(number), path


def _best_of(run: Path, path: Path) -> Iterator[Path]:
    """Yield the folders of the models that are the best according to a checkpoint.

    There are two if the last validation would not have taken place in a longer run.
    """
    with suppress(CheckpointError):
        state = _read_state(path)[0]
        for validation in (state, state.before_end):
            if validation is not None and validation.best is not None:
                yield _step_folder(run / BEST_MODELS, validation.best.step)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # Renamed first, so that a partly removed folder is never taken for a checkpoint.
        hidden = path.with_name(f"{_REMOVED}{path.name}")
        path.rename(hidden)
        shutil.rmtree(hidden)


def _described(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _hash_of_values(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def what_is_left(run: Path) -> str:
    """Describe the checkpoint from which a run would resume."""
    newest = max(_folders(run / CHECKPOINTS), default=None)
    return "there is no checkpoint yet" if newest is None else f"the last checkpoint is {newest[1]}"


def _reason(error: BaseException) -> str:
    if isinstance(error, UserError) and error.__cause__ is not None:
        error = error.__cause__  # the message of a model folder names a temporary path
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())

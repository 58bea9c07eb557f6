"""Checkpoints: the whole state of a run, written whole, found again however a run ended.

RUN/checkpoints/step-00001000 is a model folder that `tp_transformer.load` reads, with two files
more: `training.safetensors` has the optimizer's averages (and the weights themselves, where the
model's are their running average), `state.json` has the rest, and the size and hash of every file.
Random numbers and the place in the data follow from the seed and the step, so there is nothing else
to keep. RUN/best is the model that did best in validation; RUN/last is a link to the newest
checkpoint.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tp_transformer.atomic import whole
from tp_transformer.errors import CheckpointError, UserError
from tp_transformer.model import folder as model_folder
from tp_transformer.model.base import Model
from tp_transformer.training.optim import Ema

CHECKPOINTS, BEST, LAST = "checkpoints", "best", "last"
TRAINING, STATE = "training.safetensors", "state.json"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # Adam's names for what it remembers of a parameter
WEIGHT = "weight"  # as MOMENTS: the first part of a tensor's name

_PREFIX, _REMOVED = "step-", ".removed-"

AnyModel = Model[Any, Any, Any]


@dataclass(frozen=True)
class Best:
    """The best validation so far."""

    step: int
    exact_match: float
    loss: float


@dataclass
class State:
    """What a run remembers besides weights and their averages."""

    step: int = 0  # steps done, which is also the number of the next batch
    elapsed: float = 0.0  # seconds of training, over all resumptions
    skipped: int = 0  # steps that were not applied
    validated: int | None = None  # the step of the last validation
    best: Best | None = None
    stale: int = 0  # validations since the best
    window: dict[str, float] = field(default_factory=dict)  # sums since the last line of metrics

    def to_json(self) -> str:
        """All of it, exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "State":
        """What `to_json` wrote."""
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "State":
        """A state from its fields."""
        own = {one.name: values[one.name] for one in fields(cls)}
        best = own.pop("best")
        return cls(**own, best=None if best is None else Best(**best))


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, as read from its folder."""

    path: Path
    state: State
    tensors: dict[str, Tensor]  # by kind and parameter, such as exp_avg.embedding.symbols.weight


def save(
    run: Path,
    state: State,
    model: AnyModel,
    optimizer: torch.optim.Optimizer,
    ema: Ema | None,
    keep: int,
) -> Path:
    """Write a checkpoint; then, when it is whole, remove those that are not to be kept."""
    path = run / CHECKPOINTS / f"{_PREFIX}{state.step:08}"
    try:
        with whole(path) as unfinished:
            _write(unfinished, state, model, optimizer, ema)
        _link(run / LAST, path)
        _prune(run, state.step, keep)
    except (OSError, SafetensorError, UserError) as error:
        raise UserError(
            f"cannot write the checkpoint {path}: {_reason(error)}; {what_is_left(run)}"
        ) from error
    return path


def newest(run: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None if there has never been one.

    A damaged one is passed over, and that is said. If all are damaged, nothing is begun anew over
    what may still be saved by hand.
    """
    found = sorted(_folders(run), reverse=True)
    for _, path in found:
        try:
            return read(path)
        except CheckpointError as error:
            say(f"passing over a checkpoint: {error}")
    if found:
        raise CheckpointError(
            f"no checkpoint in {run / CHECKPOINTS} is whole; to begin anew, choose a new folder"
        )
    return None


def read(path: Path) -> Checkpoint:
    """Read a checkpoint, refusing one that is not exactly as it was written."""
    try:
        values = json.loads((path / STATE).read_text("utf-8"))
        if values.pop("hash") != _hash_of_values(values):
            raise CheckpointError(f"{path / STATE} is damaged")
        for name, described in values.pop("files").items():
            if _described(path / name) != described:
                raise CheckpointError(f"{path / name} is damaged")
        tensors = load_file(path / TRAINING)
        weights = load_file(path / model_folder.WEIGHTS)
        state = State.from_values(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {_reason(error)}") from error
    kind = "average" if any(name.startswith(f"{WEIGHT}.") for name in tensors) else WEIGHT
    return Checkpoint(path, state, {**tensors, **{f"{kind}.{n}": t for n, t in weights.items()}})


def restore(
    tensors: Mapping[str, Tensor],
    model: AnyModel,
    optimizer: torch.optim.Optimizer,
    ema: Ema | None,
) -> None:
    """Give a model, its optimizer and its averaged weights what a checkpoint holds."""
    parameters = dict(model.named_parameters())
    _refuse_misfits(tensors, parameters, ema is not None)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"{WEIGHT}.{name}"])
            if ema is not None:
                ema.weights[name].copy_(tensors[f"average.{name}"])
    names = {id(parameter): name for name, parameter in parameters.items()}
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    moments = {
        number: {kind: tensors[f"{kind}.{name}"] for kind in MOMENTS}
        for number, name in enumerate(order)
        if f"step.{name}" in tensors
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def clear_leftovers(run: Path) -> None:
    """Remove what a killed process was writing or removing; only for who holds the run."""
    if (run / CHECKPOINTS).is_dir():
        for path in (run / CHECKPOINTS).iterdir():
            if path.name.startswith("."):
                shutil.rmtree(path, ignore_errors=True)


def _write(
    folder: Path,
    state: State,
    model: AnyModel,
    optimizer: torch.optim.Optimizer,
    ema: Ema | None,
) -> None:
    tensors = dict(_moments(model, optimizer))
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
    values = asdict(state)
    values["files"] = {file.name: _described(file) for file in sorted(folder.iterdir())}
    values["hash"] = _hash_of_values(values)
    (folder / STATE).write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _write_model(folder: Path, model: AnyModel) -> None:
    # By way of a folder within: a model's folder waits for the lock of the one it appears in, and
    # the one around this is locked by the checkpoint that grows there.
    within = folder / "model"
    model.save(within)
    for file in within.iterdir():
        file.rename(folder / file.name)
    within.rmdir()


def _moments(model: AnyModel, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        for kind in MOMENTS if parameter in optimizer.state else ():
            yield f"{kind}.{name}", optimizer.state[parameter][kind]


def _refuse_misfits(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, Tensor], averaged: bool
) -> None:
    expected = {f"{kind}.{name}" for kind in (WEIGHT, *MOMENTS) for name in parameters}
    needed = {f"{WEIGHT}.{name}" for name in parameters}
    averages = {f"average.{name}" for name in parameters} if averaged else set()
    for problem, names in (
        ("lacks", (needed | averages) - tensors.keys()),
        ("has an unknown", tensors.keys() - expected - averages),
    ):
        if names:
            raise CheckpointError(
                f"the checkpoint does not fit the run: it {problem} {min(names)!r}"
            )
    for name, tensor in tensors.items():
        kind, _, parameter = name.partition(".")
        shape = torch.Size() if kind == "step" else parameters[parameter].shape
        if tensor.shape != shape:
            raise CheckpointError(
                f"the checkpoint does not fit the run: {name!r} has shape {tuple(tensor.shape)}, "
                f"not {tuple(shape)}"
            )


def _folders(run: Path) -> Iterator[tuple[int, Path]]:
    for path in (run / CHECKPOINTS).glob(f"{_PREFIX}*"):
        number = path.name.removeprefix(_PREFIX)
        if path.is_dir() and number.isdecimal():
            yield int(number), path


def _prune(run: Path, step: int, keep: int) -> None:
    """Remove all but the newest up to `step`; what is beyond it is damaged or of another try."""
    found = sorted(_folders(run), reverse=True)
    kept = [path for number, path in found if number <= step][:keep]
    for _, path in found:
        if path not in kept:
            # Renamed first: no half of it can be taken for a checkpoint.
            hidden = path.with_name(f"{_REMOVED}{path.name}")
            path.rename(hidden)
            shutil.rmtree(hidden)


def _link(link: Path, path: Path) -> None:
    """Let a link point to a folder, from one moment to the next."""
    temporary = link.with_name(f".{link.name}.unfinished")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(path.relative_to(link.parent), target_is_directory=True)
    os.replace(temporary, link)


def _described(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}


def _hash_of_values(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def what_is_left(run: Path) -> str:
    """Which checkpoint a run would go on from, in words."""
    found = max(_folders(run), default=None)
    return "there is no checkpoint yet" if found is None else f"the last checkpoint is {found[1]}"


def _reason(error: BaseException) -> str:
    if isinstance(error, UserError) and error.__cause__ is not None:
        error = error.__cause__  # a model folder's line names a place that only exists meanwhile
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())

"""Identification of a model in files of results: its name, its hash, its training step."""

import hashlib
import json
import re
from pathlib import Path

import torch

from tp_transformer.errors import UserError
from tp_transformer.model import bundled
from tp_transformer.model.family import AnyModel, model_path
from tp_transformer.runtime.files import resolve_link
from tp_transformer.runtime.provenance import Values
from tp_transformer.runtime.run_folder import (
    BEST,
    CONFIG,
    LAST,
    name_of,
    read_origin,
    run_of,
)
from tp_transformer.settings import read, to_values

_STEP = re.compile(r"step-(\d{1,18})")  # the folder of a checkpoint or a best model


def model_hash(model: AnyModel) -> str:
    """Return the hash of a model's configuration, vocabulary and weights."""
    digest = hashlib.sha256()
    described = model.config_values(model.config)
    digest.update(json.dumps([described, model.vocabulary.to_json()], sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        content = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}".encode())
        digest.update(content.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def describe(model: AnyModel, folder: str | Path | None, sha256: str | None = None) -> Values:
    """Describe a model by its folder's name, its hash, its configuration and its step."""
    name, step, run = "a model without a folder", None, None
    if folder is not None:
        path = bundled.find(folder).absolute()
        run = run_of(path)
        name, step = path.name if run is None else name_of(run), step_of(path)
    sha256 = sha256 or model_hash(model)
    return {
        "name": name,
        "sha256": sha256,
        "architecture": model.architecture(),
        "config": to_values(model.config),
        "n_parameters": model.n_parameters,
        "step": step,
        **({} if run is None else _training(run)),
        **({} if folder is None else _bundled(path, sha256)),
    }


def _training(run: Path) -> Values:
    """Return the seed of a run, and the hash of everything else that its result depends on."""
    try:
        origin = read_origin(run)
        values = read(run / CONFIG)
        seed = values["training"].pop("seed")
    except (UserError, KeyError, AttributeError):
        return {}
    initial = origin.get("init_from", {}).get("sha256")
    text = json.dumps([values, origin["data_sha256"], initial], sort_keys=True)
    return {"seed": seed, "recipe_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _bundled(folder: Path, sha256: str) -> Values:
    """Return what `tpt bundle` recorded about the training of a model."""
    try:
        found = json.loads((folder / bundled.RESULTS).read_text("utf-8"))["model"]
        names = [name for name in ("step", "seed", "recipe_sha256") if name in found]
        return {name: found[name] for name in names} if found["sha256"] == sha256 else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def step_of(folder: Path) -> int | None:
    """Return the number of training steps of a run's model; None if it is not recorded."""
    found = model_path(folder)
    named = _STEP.fullmatch(found.name)
    if named is not None and run_of(found) is not None:
        return int(named[1])
    for checkpoint, name in (
        (folder, None),
        (folder / LAST, BEST),  # a run: its best model is the one that is loaded
        (folder.parent / LAST, BEST),  # the best model itself
    ):
        try:
            state = (resolve_link(checkpoint) or checkpoint) / "state.json"
            values = json.loads(state.read_text("utf-8"))
            return int(values["step"] if name is None else (values[name] or values)["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return None

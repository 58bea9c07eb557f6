"""Which model, when, with what: the lines that every file of numbers carries."""

import hashlib
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tp_transformer import __version__
from tp_transformer.atomic import pointed
from tp_transformer.model.family import BEST, LAST, AnyModel
from tp_transformer.settings import to_values

Values = dict[str, Any]


def model_hash(model: AnyModel) -> str:
    """What identifies a model, however it is stored: configuration, tokens and weights."""
    digest = hashlib.sha256()
    described = model.config_values(model.config)
    digest.update(json.dumps([described, model.vocabulary.to_json()], sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        content = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}".encode())
        digest.update(content.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def describe(model: AnyModel, folder: str | Path | None, sha256: str | None = None) -> Values:
    """A model in a few words and numbers; its name is that of the folder it was loaded from."""
    name, step = "a model without a folder", None
    if folder is not None:
        path = Path(folder).absolute()
        # A checkpoint lies two levels below its run, the best model one.
        runs = [one for one in (path, *path.parents[:2]) if (one / "run.json").exists()]
        name, step = (runs or [path])[0].name, _step(path)
    return {
        "name": name,
        "sha256": sha256 or model_hash(model),
        "architecture": model.architecture(),
        "config": to_values(model.config),
        "n_parameters": model.n_parameters,
        "step": step,
    }


def _step(folder: Path) -> int | None:
    """After how many training steps a run's model was saved, where that is written down."""
    for checkpoint, name in (
        (folder, None),
        (folder / LAST, BEST),  # a run: its best model is the one that is loaded
        (folder.parent / LAST, BEST),  # the best model itself
    ):
        try:
            state = (pointed(checkpoint) or checkpoint) / "state.json"
            values = json.loads(state.read_text("utf-8"))
            return int(values["step"] if name is None else (values[name] or values)["step"])
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return None


def circumstances(device: torch.device) -> Values:
    """When and with what something was computed."""
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "tp_transformer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": device.type,
    }

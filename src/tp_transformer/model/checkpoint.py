"""Models: building from presets or configurations, loading from folders, and identification."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tp_transformer import settings
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import FolderError, SettingsError, UserError
from tp_transformer.model import bundled
from tp_transformer.model import folder as model_folder
from tp_transformer.model import recurrent as _recurrent  # noqa: F401, registers the LSTM
from tp_transformer.model.base import ARCHITECTURES, Model
from tp_transformer.model.config import TransformerConfig, WithoutWeights
from tp_transformer.model.transformer import Transformer
from tp_transformer.ranges import AnswerLength, check
from tp_transformer.runtime.files import resolve_link
from tp_transformer.runtime.memory import refuse_beyond_memory
from tp_transformer.runtime.provenance import Values
from tp_transformer.runtime.run_folder import (
    BEST,
    CONFIG,
    LAST,
    ORIGIN,
    name_of,
    read_origin,
    run_of,
)

AnyModel = Model[Any, Any, Any]

_STEP = re.compile(r"step-(\d{1,18})")  # the folder of a checkpoint or a best model of a run


def model_config(values: dict[str, Any], where: str = "model") -> Any:
    """Return the configuration from its fields, of the architecture that they name."""
    fields = dict(values)
    kind = ARCHITECTURES[fields.pop("architecture", Transformer.architecture())]
    return kind.read_config(fields, where)


def class_of(config: Any) -> type[AnyModel]:
    """Return the model class of a configuration."""
    return next(kind for kind in ARCHITECTURES.values() if kind.config_type is type(config))


def from_config(config: Any, vocabulary: Vocabulary | None = None) -> AnyModel:
    """Return an untrained model."""
    least = getattr(config, "least_numbers", 0)  # other packages may not define it
    refuse_beyond_memory("weights of these sizes", 4 * least)
    return class_of(config)(config, vocabulary)


def build(
    name_or_file: str | Path, *, vocabulary: Vocabulary | None = None, **fields: Any
) -> AnyModel:
    """Return an untrained model from a preset or a YAML file, with `fields` overridden.

    Examples:
        >>> build("tp-transformer-tiny", binding="convolution").n_parameters
    """
    sections = settings.read(name_or_file)
    settings.require_known(sections, settings.SECTIONS, str(name_or_file))
    values = sections.get("model")
    if not isinstance(values, dict):
        raise SettingsError(f"{name_or_file}: 'model' must hold the fields of a model")
    return from_config(model_config({**values, **fields}), vocabulary)


def count_parameters(name_or_file: str | Path) -> int:
    """Return the number of parameters of a preset, without initialising them."""
    with WithoutWeights():
        return build(name_or_file).n_parameters


def match_parameters(
    config: TransformerConfig, n_parameters: int, vocabulary: Vocabulary | None = None
) -> TransformerConfig:
    """Return `config` with the `d_ff` whose parameter count is nearest to `n_parameters`.

    One more unit of `d_ff` adds n_layers * (4 * d_model + 2) parameters, so the count differs from
    `n_parameters` by at most half of that (unless even a `d_ff` of 1 has too many). With this a
    plain Transformer gets the size of a TP-Transformer.

    Examples:
        >>> tp, plain = build("tp-transformer-tiny"), build("transformer-tiny")
        >>> match_parameters(plain.config, tp.n_parameters).d_ff
    """
    with WithoutWeights(), torch.device("meta"):
        missing = n_parameters - Transformer(config, vocabulary).n_parameters
    per_unit = config.n_layers * (4 * config.d_model + 2)
    return replace(config, d_ff=max(1, config.d_ff + round(missing / per_unit)))


def load(folder: str | Path | None = None) -> AnyModel:
    """Load a model in evaluation mode.

    Args:
        folder: a model folder; a run folder, of which the best model is loaded, or else the last;
            or the name of a bundled model (`tpt models` lists them). By default the first of these
    """
    folder = bundled.find(folder)
    contents = _read(folder)
    max_answer = contents.config.pop("max_answer", Model.max_answer)
    try:
        check("max_answer", max_answer, AnswerLength)
        config = _complete_config(contents)
        model = class_of(config).from_weights(config, contents.vocabulary, contents.weights)
        model.max_answer = max_answer
    except UserError as error:
        raise FolderError(f"{folder}: {error}") from error
    return model.eval()


def _read(folder: Path) -> model_folder.Contents:
    """Read a model or run folder; retry if the run has replaced the model meanwhile."""
    path = model_path(folder)
    while True:
        try:
            return model_folder.read(path)
        except FolderError:
            earlier, path = path, model_path(folder)
            if path == earlier:
                raise


def model_path(folder: Path) -> Path:
    """Return the folder itself, or the model folder inside a run folder."""
    path = resolve_link(folder) or folder
    if (path / model_folder.WEIGHTS).exists():
        return path
    model = resolve_link(path / BEST) or resolve_link(path / LAST)
    if model is None and (path / ORIGIN).exists():
        raise FolderError(f"the run {folder} has no checkpoint yet")
    return model or path


def _complete_config(contents: model_folder.Contents) -> Any:
    """Return the configuration of a folder; raise if fields are missing or too large.

    Missing fields must not take the current defaults, and a damaged number must not lead to a model
    that exceeds the memory.
    """
    if "architecture" not in contents.config:
        raise SettingsError(f"{model_folder.CONFIG} has no 'architecture'")
    config = model_config(contents.config, where=model_folder.CONFIG)
    n_numbers = sum(tensor.numel() for tensor in contents.weights.values())
    for name, value in class_of(config).config_values(config).items():
        if name not in contents.config:
            raise SettingsError(f"{model_folder.CONFIG} has no {name!r}")
        most = len(contents.weights) if name == "n_layers" else max(n_numbers, 10_000)
        if isinstance(value, int) and value > most:
            raise SettingsError(f"{name} {value} is more than the weights could have")
    return config


def model_hash(model: AnyModel) -> str:
    """Return the hash of a model's configuration, vocabulary and weights."""
    digest = hashlib.sha256()
    config = model.config_values(model.config)
    digest.update(json.dumps([config, model.vocabulary.to_json()], sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        content = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {content.dtype} {tuple(content.shape)}".encode())
        digest.update(content.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def describe(model: AnyModel, folder: str | Path | None, sha256: str | None = None) -> Values:
    """Describe a model by its folder's name, its hash, its configuration and its step."""
    sha256 = sha256 or model_hash(model)
    description = {
        "name": "a model without a folder",
        "sha256": sha256,
        "architecture": model.architecture(),
        "config": settings.to_values(model.config),
        "n_parameters": model.n_parameters,
        "step": None,
    }
    if folder is None:
        return description
    path = bundled.find(folder).absolute()
    run = run_of(path)
    if run is not None:
        description |= {"name": name_of(run), "step": step_of(path), **_recipe(run)}
    else:
        description["name"] = path.name
    return description | _bundled(path, sha256)


def _recipe(run: Path) -> Values:
    """Return the seed of a run, and the hash of everything else that its result depends on."""
    try:
        origin = read_origin(run)
        values = settings.read(run / CONFIG)
        seed = values["training"].pop("seed")
    except (UserError, KeyError, AttributeError):
        return {}
    initial = origin.get("init_from", {}).get("sha256")
    text = json.dumps([values, origin["data_sha256"], initial], sort_keys=True)
    return {"seed": seed, "recipe_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _bundled(folder: Path, sha256: str) -> Values:
    """Return what `tpt bundle` recorded about the training of a model."""
    try:
        recorded = json.loads((folder / bundled.RESULTS).read_text("utf-8"))["model"]
        names = [name for name in ("step", "seed", "recipe_sha256") if name in recorded]
        return {name: recorded[name] for name in names} if recorded["sha256"] == sha256 else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def step_of(folder: Path) -> int | None:
    """Return the number of training steps of a run's model; None if it is not recorded."""
    path = model_path(folder)
    step = _STEP.fullmatch(path.name)
    return int(step[1]) if step is not None and run_of(path) is not None else None

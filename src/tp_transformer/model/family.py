"""The models there are: built from a preset or a configuration, or loaded from a folder."""

from pathlib import Path
from typing import Any

from tp_transformer import settings
from tp_transformer.allocator import refuse_beyond_memory
from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import FolderError, SettingsError, UserError
from tp_transformer.model import folder as model_folder
from tp_transformer.model.base import WithoutWeights
from tp_transformer.model.recurrent import LSTM, LSTMConfig
from tp_transformer.model.transformer import Transformer, TransformerConfig

ModelConfig = TransformerConfig | LSTMConfig
AnyModel = Transformer | LSTM


def model_config(values: dict[str, Any], where: str = "model") -> ModelConfig:
    """The configuration that `values` describe; their `architecture` says of which model."""
    fields = dict(values)
    architecture = fields.pop("architecture", Transformer.architecture)
    if architecture == Transformer.architecture:
        return settings.to_dataclass(TransformerConfig, fields, where)
    if architecture == LSTM.architecture:
        return settings.to_dataclass(LSTMConfig, fields, where)
    raise SettingsError(
        f"there is no architecture {architecture!r}; the architectures are "
        f"{Transformer.architecture} and {LSTM.architecture}"
    )


def from_config(config: ModelConfig, vocabulary: Vocabulary | None = None) -> AnyModel:
    """A freshly initialised model."""
    refuse_beyond_memory("weights of these sizes", 4 * config.least_numbers)
    if isinstance(config, LSTMConfig):
        return LSTM(config, vocabulary)
    return Transformer(config, vocabulary)


def build(
    name_or_file: str | Path, *, vocabulary: Vocabulary | None = None, **fields: Any
) -> AnyModel:
    """A freshly initialised model: a preset by name, or a YAML file's, with `fields` changed.

    >>> build("tp-transformer-tiny", binding="convolution").n_parameters
    """
    sections = settings.read(name_or_file)
    settings.refuse_unknown(sections, settings.SECTIONS, str(name_or_file))
    values = sections.get("model")
    if not isinstance(values, dict):
        raise SettingsError(f"{name_or_file}: 'model' must hold the fields of a model")
    return from_config(model_config({**values, **fields}), vocabulary)


def count_parameters(name_or_file: str | Path) -> int:
    """How many parameters a preset has, without the time and memory to draw them."""
    with WithoutWeights():
        return build(name_or_file).n_parameters


def load(folder: str | Path | None = None) -> AnyModel:
    """The model in a folder, ready to solve; of a run's folder the best model, or else the last."""
    if folder is None:
        raise FolderError("no model is bundled yet; name the folder of one (--model FOLDER)")
    contents = model_folder.read(_of_run(Path(folder)))
    try:
        config = _complete_config(contents)
        kind = LSTM if isinstance(config, LSTMConfig) else Transformer
        model: AnyModel = kind.from_weights(config, contents.vocabulary, contents.weights)  # type: ignore[arg-type]
    except UserError as error:
        raise FolderError(f"{folder}: {error}") from error
    return model.eval()


def _of_run(folder: Path) -> Path:
    """The folder itself, or the one within it, if it is a run's."""
    if (folder / model_folder.WEIGHTS).exists():
        return folder
    if (folder / "run.json").exists() and not (folder / "last").exists():
        raise FolderError(f"the run {folder} has no checkpoint yet")
    return next((one for one in (folder / "best", folder / "last") if one.exists()), folder)


def _complete_config(contents: model_folder.Contents) -> ModelConfig:
    """A folder's configuration: all of it, and of a size that its weights could have.

    A field that is missing must not take a default of today, and a damaged number must not lead to
    a model that fills the memory before it is refused.
    """
    if "architecture" not in contents.config:
        raise SettingsError(f"{model_folder.CONFIG} has no 'architecture'")
    config = model_config(contents.config, where=model_folder.CONFIG)
    for name in settings.to_values(config):
        if name not in contents.config:
            raise SettingsError(f"{model_folder.CONFIG} has no {name!r}")
    n_numbers = sum(tensor.numel() for tensor in contents.weights.values())
    for name, value in settings.to_values(config).items():
        most = len(contents.weights) if name == "n_layers" else max(n_numbers, 10_000)
        if isinstance(value, int) and value > most:
            raise SettingsError(f"{name} {value} is more than the weights could have")
    return config

"""Model folders: weights, configuration and vocabulary.

`model.safetensors` has the tensors, `config.json` the fields of the configuration and
`vocabulary.json` the tokens in the order of their ids. No file is a pickle.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from tp_transformer.data.vocabulary import Vocabulary
from tp_transformer.errors import FolderError
from tp_transformer.runtime.files import atomic_write

WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"
METADATA = {"format": "pt"}  # expected by other readers of safetensors


@dataclass(frozen=True)
class Contents:
    """The contents of a model folder."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    vocabulary: Vocabulary


def write(folder: str | Path, contents: Contents) -> None:
    """Write a model folder atomically; replace an earlier model there."""
    path = Path(folder)
    try:
        _check_replaced_folder(path)
        with atomic_write(path) as unfinished:
            unfinished.mkdir()
            weights = {name: tensor.contiguous() for name, tensor in contents.weights.items()}
            save_file(weights, unfinished / WEIGHTS, metadata=METADATA)
            _write_json(unfinished / CONFIG, contents.config)
            write_vocabulary(unfinished / VOCABULARY, contents.vocabulary)
            # Safetensors makes its file private; give it the permissions of the other files.
            (unfinished / WEIGHTS).chmod((unfinished / CONFIG).stat().st_mode)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise FolderError(f"cannot write a model to {path}: {_one_line(error)}") from error


def write_vocabulary(file: Path, vocabulary: Vocabulary) -> None:
    """Write the tokens of a vocabulary."""
    _write_json(file, vocabulary.to_json())


def read(folder: str | Path) -> Contents:
    """Read a model folder; raise if it is missing or damaged."""
    path = Path(folder)
    if not path.is_dir():
        raise FolderError(f"there is no model folder {path}")
    missing = [name for name in (WEIGHTS, CONFIG, VOCABULARY) if not (path / name).is_file()]
    if missing:
        raise FolderError(f"{path} is not a model folder: it has no {', '.join(missing)}")
    config = _read_json(path / CONFIG)
    if not isinstance(config, dict):
        raise FolderError(f"{path / CONFIG} must hold the fields of a configuration")
    return Contents(config, _read_weights(path / WEIGHTS), _read_vocabulary(path / VOCABULARY))


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    try:
        str(file).encode()
    except UnicodeEncodeError:  # safetensors opens only paths that are valid UTF-8
        return load(file.read_bytes())
    return load_file(file)


def _read_weights(file: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(file)
    except (OSError, SafetensorError, ValueError) as error:
        raise FolderError(
            f"{file} is damaged or not a safetensors file: {_one_line(error)}"
        ) from error


def _read_vocabulary(file: Path) -> Vocabulary:
    values = _read_json(file)
    try:
        return Vocabulary.from_json(values)
    except ValueError as error:
        raise FolderError(f"{file}: {error}") from error


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{file} is damaged or not JSON: {_one_line(error)}") from error


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _check_replaced_folder(path: Path) -> None:
    """Raise if the path is neither new, nor empty, nor a model folder."""
    if not path.exists():
        return
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {path.name}
    if names and names != {WEIGHTS, CONFIG, VOCABULARY}:
        other = min(names - {WEIGHTS, CONFIG, VOCABULARY}, default=min(names))
        raise FolderError(f"{path} already holds something else ({other}); choose a new folder")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

"""What exports to other libraries have in common: which models, and the folder to write."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tp_transformer.errors import FolderError, SettingsError, reason
from tp_transformer.model.family import AnyModel
from tp_transformer.model.transformer import Transformer
from tp_transformer.runtime.files import atomic_write, refuse_other_content


def as_transformer(model: AnyModel) -> Transformer:
    """Return the model; raise if it is not a Transformer."""
    if not isinstance(model, Transformer):
        raise SettingsError(
            f"only Transformers can be exported, not the architecture {model.architecture()}"
        )
    return model


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes `folder` on success; that must be new or empty."""
    refuse_other_content(folder, "the export", is_begun=False)
    try:
        with atomic_write(folder) as unfinished:
            unfinished.mkdir()
            yield unfinished
    except OSError as error:
        raise FolderError(f"cannot write {folder}: {reason(error)}") from error

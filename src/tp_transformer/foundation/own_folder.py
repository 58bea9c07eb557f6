"""The folder in which a command keeps all its files: what else it may hold."""

from collections.abc import Collection
from pathlib import Path

from tp_transformer.foundation.errors import FolderError


def refuse_other_content(
    folder: Path, purpose: str, *, is_begun: bool, own: Collection[str] = ()
) -> None:
    """Raise if the folder of a command is a file, or has files that the command has not written.

    Args:
        folder: the folder, which need not exist
        purpose: what it is for, such as "the demo"
        is_begun: whether the command was begun there; then any files may have been added
        own: names that the command may have written before
    """
    for path in (folder, *folder.parents):
        if path.is_file():
            raise FolderError(f"{path} is a file; name a folder for {purpose}")
    if is_begun or not folder.is_dir():
        return
    names = sorted(entry.name for entry in folder.iterdir())
    others = [name for name in names if name not in own and not name.startswith(".")]
    if others:
        raise FolderError(
            f"{folder} has other files ({others[0]}); name a new folder for {purpose}"
        )

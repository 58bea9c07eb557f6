"""Atomic writing of files and folders, and links that are updated atomically.

A file or folder is written inside a hidden folder beside its destination, and renamed at the end. A
process that is killed leaves the hidden folder behind; the next one removes it. A file is replaced
in one operation, and so is a folder where the system can exchange two names (Linux).
"""

import ctypes
import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tp_transformer.errors import FolderError

if sys.platform != "win32":
    import fcntl

_UNFINISHED, _REPLACED = ".unfinished-", "replaced"
_LONGEST_PATH = 4096  # bytes
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of the system call renameat2
# Errors of file systems without locks, or without locks of folders, such as NFS.
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a path to write a file or a folder to, which is renamed to `path` on success.

    The previous contents of `path` are kept until then. If the block fails, nothing changes.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        clear_leftovers(path.parent, path.name)
        prefix = f".{path.name}{_UNFINISHED}"
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
        held = lock(work)
    try:
        unfinished = work / path.name
        yield unfinished
        for written in [*unfinished.rglob("*"), unfinished]:
            _sync(written)
        with _alone(path.parent):
            if unfinished.is_file() and not path.is_dir():
                os.replace(unfinished, path)
            else:
                _replace_folder(unfinished, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if held is not None:
            os.close(held)


def write_json(path: str | Path, values: Any) -> None:
    """Write values as JSON, atomically."""
    text = json.dumps(values, indent=1) + "\n"
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, "utf-8")


def replace_link(name: Path, folder: Path) -> None:
    """Create or replace a link to a folder beside or below it, atomically.

    The link is symbolic. Where these are not supported (Windows, some file systems), it is a file
    with the relative path of the folder, which `resolve_link` follows.
    """
    target = folder.relative_to(name.parent)
    temporary = name.with_name(f".{name.name}{_UNFINISHED}")
    temporary.unlink(missing_ok=True)
    try:
        if sys.platform == "win32":  # where a link to a folder cannot be replaced
            raise NotImplementedError
        temporary.symlink_to(target, target_is_directory=True)
    except (OSError, NotImplementedError):
        temporary.write_text(target.as_posix(), "utf-8")
    # A folder in its place was created manually, such as by a copy that followed the link.
    aside = name.with_name(f".{name.name}{_UNFINISHED}{_REPLACED}")
    if name.is_dir() and not name.is_symlink():
        name.rename(aside)
    os.replace(temporary, name)
    shutil.rmtree(aside, ignore_errors=True)


def resolve_link(name: Path) -> Path | None:
    """Return the folder that a path is or links to; None if there is none."""
    if name.is_dir():
        return name.resolve() if name.is_symlink() else name
    try:
        with name.open("rb") as file:
            text = file.read(_LONGEST_PATH).decode("utf-8")
        folder = name.parent / text
        is_below = name.parent.resolve() in folder.resolve().parents
        return folder if is_below and folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        return None


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove unfinished files of killed processes, all or those of a name, from a folder.

    What they were replacing is restored.
    """
    for work in folder.iterdir() if folder.is_dir() else ():
        destination, mark, _ = work.name[1:].partition(_UNFINISHED)
        if not work.name.startswith(".") or not mark or name not in (None, destination):
            continue
        if not work.is_dir() or work.is_symlink():
            work.unlink(missing_ok=True)
            continue
        held = lock(work)
        if held is None:
            continue  # a running process is writing there
        if (work / _REPLACED).exists() and not (folder / destination).exists():
            (work / _REPLACED).rename(folder / destination)
        shutil.rmtree(work, ignore_errors=True)
        os.close(held)


def _replace_folder(unfinished: Path, path: Path) -> None:
    if path.exists() and _exchange(unfinished, path):
        return
    # Two renames, because a folder that is not empty cannot be replaced by a rename. If the second
    # fails, the first is undone; if the process dies in between, `clear_leftovers` undoes it.
    earlier = unfinished.parent / _REPLACED
    if path.exists():
        path.rename(earlier)
    try:
        unfinished.rename(path)
    except OSError:
        if earlier.exists():
            earlier.rename(path)
        raise


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names in one operation; return False if the system cannot."""
    if sys.platform != "linux":
        return False
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    paths = [(_AT_FDCWD, os.fsencode(path)) for path in (first, second)]
    return renameat2 is not None and not renameat2(*paths[0], *paths[1], _RENAME_EXCHANGE)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that write to it with `atomic_write`."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _take(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock(path: Path) -> int | None:
    """Lock a file or folder; return a descriptor, or None if another process holds the lock.

    The system releases the lock when the process ends, for any reason. A process id in a file name
    would be wrong after a restart or in a container. Windows and some network file systems have no
    such locks; there this always succeeds. The library filelock cannot lock a folder, and fails on
    file systems without locks.
    """
    if sys.platform == "win32":
        return os.open(os.devnull, os.O_RDONLY)
    try:
        # NFS only locks files that are open for writing; folders cannot be.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except FileNotFoundError:
        return None  # its owner has just removed it
    if _take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
        return descriptor
    os.close(descriptor)
    return None


def _take(descriptor: int, kind: int) -> bool:
    """Lock an open file; return False only if another process holds the lock."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return  # Windows cannot open folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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

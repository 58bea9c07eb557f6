"""Files and folders that appear whole or not at all, and names that change from one to another.

What is written grows in a hidden folder beside its destination and takes its name at the very
end. A process that is killed leaves that hidden folder behind; the next one removes it. A file is
replaced in one operation. A folder cannot be: where readers must always find one, write each under
a path of its own and let a name point to the newest (`point`).
"""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_UNFINISHED, _REPLACED = ".unfinished-", "replaced"
_LONGEST_PATH = 4096  # bytes
# What file systems answer that have no locks, or none of folders, as NFS.
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """A place to write a file or a folder to, which becomes `path` if the block ends well.

    What `path` held before is kept until then. If the block fails, nothing has changed.
    """
    path = Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        _clear_leftovers(path)
        work = Path(tempfile.mkdtemp(prefix=_prefix(path), dir=path.parent))
        held = lock(work)
    try:
        made = work / path.name
        yield made
        _sync(made)
        _put_in_place(made, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        if held is not None:
            os.close(held)


def point(name: Path, folder: Path) -> None:
    """Let a name refer to a folder beside or below it, in place of the one before, atomically.

    The name is a symbolic link. Where there are none (Windows, some file systems) it is a file with
    the folder's relative path, which `pointed` follows.
    """
    target = folder.relative_to(name.parent)
    temporary = name.with_name(f".{name.name}{_UNFINISHED}")
    temporary.unlink(missing_ok=True)
    try:
        if sys.platform == "win32":  # a link to a folder cannot be replaced there
            raise NotImplementedError
        temporary.symlink_to(target, target_is_directory=True)
    except (OSError, NotImplementedError):
        temporary.write_text(target.as_posix(), "utf-8")
    # A folder in its place was put there by hand, such as by a copy that followed the link.
    aside = name.with_name(f".{name.name}{_UNFINISHED}{_REPLACED}")
    if name.is_dir() and not name.is_symlink():
        name.rename(aside)
    os.replace(temporary, name)
    shutil.rmtree(aside, ignore_errors=True)


def pointed(name: Path) -> Path | None:
    """The folder that a name refers to: its own, or the one it points to; None if there is none."""
    if name.is_dir():
        return name.resolve() if name.is_symlink() else name
    try:
        with name.open("rb") as file:
            text = file.read(_LONGEST_PATH).decode("utf-8")
        folder = name.parent / text
        is_below = name.parent.resolve() in folder.resolve().parents
        return folder if is_below and folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # a loop of links is a RuntimeError
        return None


def clear_leftovers(folder: Path) -> None:
    """Remove everything unfinished that killed processes left in a folder."""
    for work in folder.iterdir() if folder.is_dir() else ():
        name, mark, _ = work.name[1:].partition(_UNFINISHED)
        if not work.name.startswith(".") or not mark:
            continue
        if work.is_dir() and not work.is_symlink():
            _clear_leftovers(folder / name)
        else:
            work.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    return f".{path.name}{_UNFINISHED}"


def _clear_leftovers(path: Path) -> None:
    """Remove what killed processes left behind, putting back what they were about to replace."""
    for work in path.parent.iterdir():
        if not work.name.startswith(_prefix(path)):
            continue
        held = lock(work)
        if held is None:
            continue  # a running process is writing there
        if (work / _REPLACED).exists() and not path.exists():
            (work / _REPLACED).rename(path)
        shutil.rmtree(work, ignore_errors=True)
        os.close(held)


def _put_in_place(made: Path, path: Path) -> None:
    with _alone(path.parent):
        if made.is_file() and not path.is_dir():
            os.replace(made, path)
        else:
            _replace_folder(made, path)
    _sync_one(path.parent)


def _replace_folder(made: Path, path: Path) -> None:
    # Two renames: a folder that is not empty cannot be renamed over. If the second fails, the
    # earlier one goes back; if the process dies between them, `_clear_leftovers` puts it back.
    earlier = made.parent / _REPLACED
    if path.exists():
        path.rename(earlier)
    try:
        made.rename(path)
    except OSError:
        if earlier.exists():
            earlier.rename(path)
        raise


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others that put something in place in the same folder waiting meanwhile."""
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
    """Hold a file or folder for as long as this process lives; None if another process holds it.

    The system gives the lock back when a process dies, however it dies; a process number in a
    file name would not survive a restart or a container. Windows has no such lock, nor have some
    network file systems: there everything is taken to be free. The library filelock cannot lock a
    folder, and fails where a file system has no locks.
    """
    if sys.platform == "win32":
        return os.open(os.devnull, os.O_RDONLY)
    try:
        # Over NFS only what is open for writing can be locked; a folder cannot be opened so.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except FileNotFoundError:
        return None  # whoever held it has just removed it
    if _take(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
        return descriptor
    os.close(descriptor)
    return None


def _take(descriptor: int, kind: int) -> bool:
    """Lock what is open; False only if another process holds it."""
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _sync(path: Path) -> None:
    for file in path.rglob("*") if path.is_dir() else ():
        _sync_one(file)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return  # folders cannot be opened there
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

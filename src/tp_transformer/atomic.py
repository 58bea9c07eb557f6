"""Files and folders that appear whole or not at all.

What is written grows in a hidden folder beside its destination and takes its name at the very
end. A process that is killed leaves that hidden folder behind; the next one removes it.
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

_REPLACED = "replaced"
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


def _prefix(path: Path) -> str:
    return f".{path.name}.unfinished-"


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
    # Two renames: a folder that is not empty cannot be renamed over. If the second fails, the
    # earlier one goes back; if the process dies between them, `_clear_leftovers` puts it back.
    earlier = made.parent / _REPLACED
    with _alone(path.parent):
        if path.exists():
            path.rename(earlier)
        try:
            made.rename(path)
        except OSError:
            if earlier.exists():
                earlier.rename(path)
            raise
    _sync_one(path.parent)


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
    network file systems: there everything is taken to be free.
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

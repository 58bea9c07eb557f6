"""What is written appears whole or not at all, whatever happens on the way."""

import errno
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tp_transformer.runtime import files
from tp_transformer.runtime.files import _REPLACED, _UNFINISHED, atomic_write, lock


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_folder_and_a_file_appear_at_the_end(tmp_path):
    with atomic_write(tmp_path / "deep" / "folder") as made:
        made.mkdir()
        (made / "file").write_text("1")
        assert not (tmp_path / "deep" / "folder").exists()
    with atomic_write(tmp_path / "file") as made:
        made.write_text("2")
    assert names(tmp_path) == ["deep", "file"]
    assert names(tmp_path / "deep") == ["folder"]
    assert (tmp_path / "deep" / "folder" / "file").read_text() == "1"


def test_the_umask_rules_and_not_the_hidden_folder(tmp_path):
    with atomic_write(tmp_path / "folder") as made:
        made.mkdir()
    os.umask(mask := os.umask(0))
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~mask


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_everything_as_it_was(tmp_path, error):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    with pytest.raises(error), atomic_write(tmp_path / "folder"):
        raise error
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def hold(path, ready):
    with atomic_write(path) as made:
        made.mkdir()
        ready.set()
        signal.pause()


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=hold, args=(tmp_path / "folder", ready))
    process.start()
    try:
        assert ready.wait(60)
        (hidden,) = names(tmp_path)
        with atomic_write(tmp_path / "folder") as made:
            made.mkdir()
        assert names(tmp_path) == [hidden, "folder"]
    finally:
        process.kill()
        process.join()
    with atomic_write(tmp_path / "folder") as made:
        made.mkdir()
    assert names(tmp_path) == ["folder"]


def test_what_a_killed_process_had_set_aside_is_put_back(tmp_path):
    work = tmp_path / f".folder{_UNFINISHED}abc"
    (work / _REPLACED).mkdir(parents=True)
    (work / _REPLACED / "old").touch()
    with pytest.raises(ValueError, match="again"), atomic_write(tmp_path / "folder"):
        raise ValueError("again")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def test_a_failing_rename_puts_the_earlier_one_back(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    plain = Path.rename

    def failing(self, target):
        if self.name == "folder" and self.parent != tmp_path:
            raise OSError("no")
        return plain(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    with pytest.raises(OSError, match="no"), atomic_write(tmp_path / "folder") as made:
        made.mkdir()
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def test_many_threads_may_replace_one_folder(tmp_path):
    def replace(number):
        for _ in range(5):
            with atomic_write(tmp_path / "folder") as made:
                made.mkdir()
                (made / str(number)).touch()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(replace, range(4)))
    assert names(tmp_path) == ["folder"]
    assert len(names(tmp_path / "folder")) == 1


@pytest.mark.parametrize("number", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_everything_is_free(tmp_path, monkeypatch, number):
    """As on some network file systems."""

    def refuse(*_):
        raise OSError(number, "no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    (tmp_path / "file").touch()
    assert lock(tmp_path / "file") is not None
    with atomic_write(tmp_path / "made") as made:
        made.write_text("1")
    assert (tmp_path / "made").read_text() == "1"


def test_a_lock_is_held_by_one_only_and_a_file_is_opened_for_writing(tmp_path):
    (tmp_path / "file").touch()
    held = lock(tmp_path / "file")
    assert lock(tmp_path / "file") is None
    assert os.write(held, b"x") == 1  # over NFS only such files can be locked
    os.close(held)
    assert lock(tmp_path / "file") is not None

"""The recorded commit."""

import shutil
import subprocess

import pytest

from tp_transformer.runtime import provenance


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_the_source(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    source = tmp_path / "src" / "provenance.py"
    source.parent.mkdir()
    source.write_text("1\n")
    monkeypatch.setattr(provenance, "__file__", str(source))
    find = provenance.commit.__wrapped__  # without the cache
    assert find() is None
    git("init", "-q")
    assert find() is None  # not tracked: such as an environment inside a checkout
    git("add", ".")
    git("commit", "-qm", "first")
    assert find() == git("rev-parse", "HEAD")
    (tmp_path / "notes").write_text("untracked\n")
    assert find() == git("rev-parse", "HEAD")
    source.write_text("2\n")
    assert find() == f"{git('rev-parse', 'HEAD')}-modified"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find() is None  # no git

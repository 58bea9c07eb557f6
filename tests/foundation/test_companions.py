"""A module of ours is imported together with another library, in any order."""

import subprocess
import sys

import pytest


@pytest.fixture
def run(tmp_path):
    """Runs code that can import `library.part` and its companion."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "__init__.py").write_text("from library import part\nlast = 1\n")
    (tmp_path / "library" / "part.py").write_text("value = 1\n")
    (tmp_path / "companion.py").write_text("from library.part import value\nprint('imported')\n")

    def run(code):
        source = f"from tp_transformer.foundation.companions import import_after\n{code}"
        done = subprocess.run(
            [sys.executable, "-W", "always", "-c", source],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split(), done.stderr

    return run


def test_before_after_and_never(run):
    waits = "import_after('library.part', 'companion')\nprint('waits')\n"
    assert run(waits)[0] == ["waits"]
    assert run(f"{waits}import library\nprint(library.last)")[0] == ["waits", "imported", "1"]
    assert run(f"import library\n{waits}")[0] == ["imported", "waits"]
    assert run(f"{waits}import library, companion\nimport library.part")[0] == ["waits", "imported"]


def test_the_library_works_without_its_companion(run):
    out, err = run("import_after('library.part', 'absent')\nimport library\nprint(library.last)")
    assert out == ["1"]
    assert "ImportWarning: absent cannot be imported: No module named 'absent'" in err
    missing = (
        "import_after('nothing', 'companion')\ntry: import nothing\nexcept ImportError: print('no')"
    )
    assert run(missing)[0] == ["no"]

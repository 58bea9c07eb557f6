"""Damaged stores and copies of the dataset: success, or the package's own error in one line.

Nothing else will do: no traceback, no segmentation fault, no gigabytes of memory.
"""

import subprocess
import sys
from pathlib import Path

import pytest

READERS = Path(__file__).with_name("fuzz_readers.py")


def fuzz(kind, seed, count):
    """Run trials in a process of their own, and fail with the trial that it ended at."""
    command = [sys.executable, "-X", "faulthandler", READERS, kind, str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    names = done.stdout.splitlines()
    assert done.returncode == 0, f"{names[-1:]} ended in {done.returncode}: {done.stderr[-2000:]}"
    assert len(names) == count


@pytest.mark.parametrize("kind", ["store", "corpus"])
def test_damage_never_ends_in_anything_but_a_line(kind):
    fuzz(kind, seed=0, count=200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", ["store", "corpus"])
def test_damage_of_thousands_of_kinds(kind, seed):
    fuzz(kind, seed, count=4000)

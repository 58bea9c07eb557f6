"""Progress: a bar with rate and time left in a terminal, lines elsewhere."""

import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tp_transformer.runtime import progress

CODE = """
import time
from tp_transformer.runtime.progress import progress
with progress("making") as update:
    for done in range(0, 401, 20):
        update(done, 400)
        time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("updates", "total", "in_bytes", "expected"),
    [
        (
            [(0.0, 100), (40.0, 500), (45.0, 550), (100.0, 1100)],
            2100,
            False,
            ["work: 24%, 10/s, 2.7 min left", "work: 52%, 10/s, 1.7 min left"],
        ),
        (
            [(0.0, 0), (60.0, 120 * 2**20)],
            240 * 2**20,
            True,
            ["work: 50%, 2.0 MiB/s, 1.0 min left"],
        ),
        ([(0.0, 0), (40.0, 10)], 20, False, ["work: 50%, 0.25/s, 0.7 min left"]),
    ],
)
def test_lines_have_the_share_the_speed_and_the_time_left(
    monkeypatch, capsys, updates, total, in_bytes, expected
):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with progress.progress("work", in_bytes=in_bytes) as update:
        for clock[0], done in updates:
            update(done, total)
    assert capsys.readouterr().err.splitlines() == expected


def test_a_terminal_gets_a_bar_with_rate_and_time_left():
    """`script` gives the process a terminal."""
    command = ["script", "-qec", f"{sys.executable} -c '{CODE}'", "/dev/null"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"making.*\d+/400.*[\d,]+/s.*\d:\d\d:\d\d", shown)


NOTES = []


@contextmanager
def noted(title):
    """A display that notes what it is told, and when it is closed."""
    NOTES.append(title)
    try:
        yield lambda done, total: NOTES.append((done, total))
    finally:
        NOTES.append("closed")


def test_what_is_tracked_is_shown_only_where_it_was_asked_for():
    NOTES.clear()
    assert list(progress.track("outside", "ab")) == ["a", "b"]
    assert NOTES == []
    with progress.showing(noted):
        for _ in progress.track("letters", iter("ab"), 2):
            assert list(progress.track("within", "cd")) == ["c", "d"]  # one bar at a time
        assert list(progress.track("more", "c")) == ["c"]
    closed = ["letters", (0, 2), (1, 2), (2, 2), "closed", "more", (0, 1), (1, 1), "closed"]
    assert closed == NOTES
    list(progress.track("afterwards", "ab"))
    assert closed == NOTES


def test_a_bar_is_closed_when_the_work_is_interrupted():
    NOTES.clear()
    kept = progress.track("letters", "ab")  # as a traceback keeps it

    def work():
        with progress.showing(noted):
            next(kept)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert NOTES == ["letters", (0, 2), "closed"]

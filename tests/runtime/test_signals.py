"""Ctrl-C, SIGTERM and SIGHUP: one line, the right code, soon, and nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import runs
from runs import wait_for

PATIENCE = 180.0  # seconds: the machine may be busy with other work
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SAID = {
    signal.SIGINT: "tpt: interrupted",
    signal.SIGTERM: "tpt: ended by SIGTERM",
    signal.SIGHUP: "tpt: ended by SIGHUP",
}
GOES_ON = "; the same command resumes"


STARTED = []


@pytest.fixture(autouse=True)
def _leave_nothing_running():
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:  # the test has failed
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def start(arguments, **options):
    command = [sys.executable, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    STARTED.append(subprocess.Popen(command, start_new_session=True, **pipes, **options))
    return STARTED[-1]


def tpt(*arguments, **options):
    return start(["-m", "tp_transformer", *map(str, arguments)], **options)


def descendants(pid):
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [*map(int, listed), *(one for child in listed for one in descendants(int(child)))]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def assert_nobody_left(pids):
    wait_for(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("number", CODES)
def test_while_modules_are_imported(tmp_path, number):
    """A module that is imported first sends the signal, and then takes its time."""
    (tmp_path / "cyclopts.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {number})\ntime.sleep(60)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = tpt("models", env={**os.environ, "PYTHONPATH": path})
    out, err = process.communicate(timeout=PATIENCE)
    # A terminal that is gone is not written to; this output is no terminal.
    assert (process.returncode, out, err) == (CODES[number], "", f"{SAID[number]}\n")


BUSY = """
import time
from tp_transformer.verbs.model import Models
from tp_transformer.__main__ import run
def busy(options):
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        time.sleep({tidying})
Models.__call__, Models.resumes = busy, True
run()
"""


@pytest.mark.parametrize("number", CODES)
def test_the_first_signal_lets_a_command_tidy_up(number):
    process = start(["-c", BUSY.format(tidying=0.2), "models"])
    assert process.stdout.readline() == "begun\n"
    for _ in range(2):  # one Ctrl-C, told by the terminal and by torchrun
        os.kill(process.pid, number)
        time.sleep(0.05)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (CODES[number], f"{SAID[number]}{GOES_ON}\n")


MISTAKEN = """
import time
from tp_transformer.verbs.model import Models
from tp_transformer.__main__ import run
from tp_transformer.errors import UserError
class Finalized:
    def __del__(self):
        print("begun", flush=True)
        time.sleep(600)
def busy(options):
    try:
        {work}
    except BaseException:
        raise UserError("the file is damaged")
Models.__call__ = busy
run()
"""


@pytest.mark.parametrize("work", ["print('begun', flush=True); time.sleep(600)", "Finalized()"])
def test_what_a_library_makes_of_a_signal_is_not_believed(work):
    """It takes the exception for an error of its own, or Python reports it and goes on."""
    process = start(["-c", MISTAKEN.format(work=work), "models"])
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (143, "tpt: ended by SIGTERM\n")


def test_a_second_signal_ends_a_command_that_takes_too_long():
    process = start(["-c", BUSY.format(tidying=600), "models"])
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGINT)
    time.sleep(1.2)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, f"tpt: interrupted{GOES_ON}\n")


def test_what_nohup_ignores_stays_ignored():
    ignored = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    process = start(["-c", ignored + BUSY.format(tidying=0), "models"])
    assert process.stdout.readline() == "begun\n"
    os.kill(process.pid, signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_generating_ends_with_all_its_workers(tmp_path, number):
    """The terminal sends Ctrl-C to all processes, twice; and SIGHUP when it is closed."""
    arguments = ("--modules", "*composed", "--count", "2000", "--workers", "2")
    process = tpt("data", "generate", "--out", tmp_path / "store", *arguments)
    wait_for(lambda: len(descendants(process.pid)) == 3)  # and the tracker of their resources
    children = descendants(process.pid)
    if number == signal.SIGTERM:
        time.sleep(3.0)  # the other cases find them importing what they need
    tell = os.killpg if number in (signal.SIGINT, signal.SIGHUP) else os.kill
    tell(process.pid, number)
    if number == signal.SIGINT:
        time.sleep(0.1)
        os.killpg(process.pid, number)
    began = time.monotonic()
    out, err = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - began < 30.0
    if number != signal.SIGKILL:
        expected = f"{SAID[number]}{GOES_ON}\n"
        # Python's tracker of resources, a process of its own, may warn when it cleans up.
        lines = err.splitlines(keepends=True)
        said = "".join(line for line in lines if "resource_tracker" not in line)
        assert (process.returncode, out, said) == (CODES[number], "", expected)
    assert_nobody_left(children)


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_the_demos_trainings_end_with_it(tmp_path, number):
    runs.make_store(tmp_path / "data")
    code = f"""
from pathlib import Path
from rich.console import Console
from tp_transformer.runtime import signals
from tp_transformer.study.engine import StudyRun, train_side_by_side
from tp_transformer.training.config import RunConfig
signals.prepare()
folder = Path({str(tmp_path)!r})
preset, training = "tp-transformer-tiny", {{"steps": 1_000_000, "checkpoint_every": 3}}
more = {{"data": {{"batch_size": 8}}, "validation": {{"count": 12}}}}
config = RunConfig.of(preset, training=training, **more)
files = [{{"name": x, "folder": folder / x, "results": folder / f"{{x}}.json"}} for x in "ab"]
common = {{"preset": preset, "config": config, "data": folder / "data"}}
train_side_by_side([StudyRun(**common, **one) for one in files], Console())
"""
    process = start(["-c", code])
    folders = [tmp_path / name for name in "ab"]
    wait_for(lambda: all((folder / "metrics.jsonl").is_file() for folder in folders))
    children = descendants(process.pid)
    assert len(children) >= 2
    os.kill(process.pid, number)
    process.communicate(timeout=PATIENCE)
    assert_nobody_left(children)
    for folder in folders:  # they were told to save, and said so
        assert "SIGTERM" in (folder / "log.txt").read_text()


def test_an_endless_proof_ends_with_the_evaluation():
    code = """
import time
from tp_transformer.scoring import diagnose
def prove_equal(*_):
    print("proving", flush=True)
    while True: time.sleep(0.01)
diagnose.prove_equal = prove_equal
diagnose.serve()
"""
    process = start(["-c", code], stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    process.stdin.write(json.dumps(["1", "1"]) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "proving\n"
    process.stdin.close()  # as the system does when whoever holds the pipe has ended
    process.stdin = None
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0


@pytest.mark.slow
def test_an_evaluation_ended_at_any_moment_goes_on(tmp_path, half_trained, sums_store):
    """Never an abort, never a traceback; and in the end the results are there."""
    n_times, out = 60, tmp_path / "results.json"
    arguments = ("evaluate", "--model", half_trained, "--data", sums_store, "--out", out)
    began = time.monotonic()
    undisturbed = tpt(*arguments)
    assert undisturbed.communicate(timeout=2 * PATIENCE) is not None
    duration, expected = time.monotonic() - began, json.loads(out.read_text())["splits"]
    for place in range(n_times):
        out.unlink(missing_ok=True)
        number = list(CODES)[place % len(CODES)]
        process = tpt(*arguments)
        time.sleep(duration * (0.3 + 0.6 * (place + 0.5) / n_times))
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE)
        if process.returncode == -number:  # in its last moments, which are left to the system
            assert (out.exists(), err) == (True, "")
        elif process.returncode:
            assert process.returncode == CODES[number], err
            assert err in (f"{SAID[number]}{GOES_ON}\n", f"{SAID[number]}\n")
    assert tpt(*arguments).communicate(timeout=2 * PATIENCE) is not None
    assert json.loads(out.read_text())["splits"] == expected


def test_a_process_is_started_before_the_command_ends():
    """Or the new process would print a traceback for want of what its parent had yet to send."""
    code = (
        "import signal, time\n"
        "from tp_transformer.runtime import signals\n"
        "signals.prepare()\n"
        "def launch():\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    time.sleep(0.2)\n"
        "    print('started', flush=True)\n"
        "source, file = 'def start(): launch()', '/x/multiprocessing/popen_spawn_posix.py'\n"
        "exec(compile(source, file, 'exec'))\n"
        "try:\n"
        "    start()\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    out, err = start(["-c", code]).communicate(timeout=PATIENCE)
    assert (out, err) == ("started\ninterrupted\n", "")

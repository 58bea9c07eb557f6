import io
import json
import re

import pytest
from rich.console import Console

import runs
from tp_transformer import UserError
from tp_transformer.study import watch
from tp_transformer.study.watch import Run, train_side_by_side


@pytest.fixture
def data(tmp_path):
    runs.make_store(tmp_path / "data")
    return tmp_path / "data"


def two(folder, data, *more):
    settings = [f"--{name}={value}" for name, value in runs.SETTINGS.items()]
    return [
        Run(name, folder / name, (f"--config={name}-tiny", f"--data={data}", *settings, *more))
        for name in ("tp-transformer", "transformer")
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_two_runs_side_by_side(tmp_path, data, monkeypatch, is_terminal):
    monkeypatch.setattr(watch, "_SECONDS_BETWEEN_LINES", 0.0)
    if is_terminal:  # that the commands run by themselves need not be seen twice
        monkeypatch.setattr(watch.subprocess, "Popen", runs.Forked)
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=is_terminal)
    train_side_by_side(two(tmp_path, data), console)
    for name in ("tp-transformer", "transformer"):
        assert (tmp_path / name / "last" / "model.safetensors").exists()
        assert name in file.getvalue()
    assert re.search("step (28|30)", file.getvalue())


def test_one_that_fails_stops_the_other_and_says_why(tmp_path, data, monkeypatch):
    begun = []
    monkeypatch.setattr(
        watch.subprocess, "Popen", lambda *a, **k: begun.append(runs.Forked(*a, **k)) or begun[-1]
    )
    good, _ = two(tmp_path, data, "--training.steps=100000")
    _, bad = two(tmp_path, data, "--model.n_heads=3")
    with pytest.raises(UserError, match=r"training transformer failed: tpt: .*n_heads"):
        train_side_by_side([good, bad], Console(file=io.StringIO()))
    assert len(begun) == 2
    assert all(process.poll() is not None for process in begun)


def test_one_that_fails_just_before_the_last_look_is_not_missed(tmp_path, monkeypatch):
    """It is well when asked for a failure, and has ended when asked whether it runs."""
    answers = iter([None, None, 1])

    class Process:
        def __init__(self, *_, stderr, **__):
            stderr.write(b"tpt: no memory\n")
            self.stdin = None

        def poll(self):
            return next(answers, 1)

        def wait(self, timeout):
            return 1

        def terminate(self):
            pass

    monkeypatch.setattr(watch.subprocess, "Popen", Process)
    with pytest.raises(UserError, match="training a failed: tpt: no memory"):
        train_side_by_side([Run("a", tmp_path, ())], Console(file=io.StringIO()))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_so_many_at_once(tmp_path, monkeypatch, is_terminal):
    """A run begins when one before it has ended; each has its share of the cores."""
    events, threads = [], set()

    class Process:
        def __init__(self, command, *, env, **_):
            self.stdin, self.looks = None, 3
            self.name = command[command.index("--run") + 1]
            events.append(("begin", self.name))
            threads.add(env["OMP_NUM_THREADS"])

        def poll(self):
            self.looks -= 1
            if self.looks == 0:
                events.append(("end", self.name))
            return None if self.looks > 0 else 0

        def wait(self, timeout):
            return 0

    monkeypatch.setattr(watch.subprocess, "Popen", Process)
    monkeypatch.setattr(watch, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(watch, "n_cores", lambda: 5)
    file = io.StringIO()
    several = [Run(f"run {name}", tmp_path / name, ()) for name in "abcde"]
    train_side_by_side(several, Console(file=file, force_terminal=is_terminal), at_once=2)
    n_running = n_most = 0
    for event, _ in events:
        n_running += 1 if event == "begin" else -1
        n_most = max(n_most, n_running)
    assert (n_most, n_running, threads) == (2, 0, {"2"})
    assert [name for event, name in events if event == "begin"] == [
        str(run.folder) for run in several
    ]
    if is_terminal:
        assert all(run.name in file.getvalue() for run in several)


def test_records_are_read_line_by_line(tmp_path):
    def text(*steps):
        shown = {"kind": "monitor", "loss": 1.0, "exact_match": 0.5, "n": 2}
        return "".join(json.dumps({**shown, "step": step}) + "\n" for step in steps)

    def read():
        return [record["step"] for record in started.new_records()]

    started = watch._Started(Run("a", tmp_path, ()), None, None)
    assert read() == []
    records = tmp_path / "metrics.jsonl"
    records.write_text(text(1) + '{"st')
    assert read() == [1]
    assert read() == []
    records.write_text(text(1, 2) + "not a record\n" + text(3))
    assert read() == [2, 3]
    records.write_text(text(1))  # a run that goes on has forgotten the rest
    assert read() == [1]

"""The engine of studies: runs side by side, their failures and their progress."""

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

import runs
from tp_transformer import UserError, cli
from tp_transformer.errors import FolderError
from tp_transformer.study import engine
from tp_transformer.study.engine import StudyRun, begin, train_side_by_side
from tp_transformer.training import record
from tp_transformer.training.config import RunConfig


@pytest.fixture
def data(tmp_path):
    return runs.make_store(tmp_path / "data")


def run_of(folder, name, data, config=None, preset="tp-transformer-tiny"):
    files = {"folder": folder / name, "results": folder / f"{name}.json"}
    return StudyRun(name=name, preset=preset, config=config or runs.config(), data=data, **files)


def two(folder, data, **changed):
    return [run_of(folder, name, data, runs.config(**changed)) for name in ("first", "second")]


def test_its_options_give_its_settings(tmp_path, data):
    config = runs.config(model__binding="none", optim__clip_norm=None, data__weights={"a": 2.0})
    run = run_of(tmp_path, "a", data, config)
    verb = cli.parse(run.command())
    assert verb.resolved() == config
    assert (verb.run, verb.data, verb.threads) == (run.folder, data, 1)
    assert replace(run, config=RunConfig.of(run.preset)).options == ()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_two_runs_side_by_side(tmp_path, data, monkeypatch, is_terminal):
    monkeypatch.setattr(record, "_SECONDS_BETWEEN_LINES", 0.0)
    if is_terminal:  # that the commands run by themselves need not be seen twice
        monkeypatch.setattr(engine.subprocess, "Popen", runs.Forked)
    file, ended = io.StringIO(), []
    console = Console(file=file, width=80, force_terminal=is_terminal)
    train_side_by_side(two(tmp_path, data), console, ended=lambda run: ended.append(run.name))
    assert sorted(ended) == ["first", "second"]
    for name in ended:
        assert (tmp_path / name / "last" / "model.safetensors").exists()
        assert name in file.getvalue()
    assert re.search("step (28|30)", file.getvalue())


def test_one_that_fails_stops_the_other_and_says_why(tmp_path, data, monkeypatch):
    begun = []
    monkeypatch.setattr(
        engine.subprocess, "Popen", lambda *a, **k: begun.append(runs.Forked(*a, **k)) or begun[-1]
    )
    good, bad = two(tmp_path, data, training__steps=100_000)
    bad = replace(bad, data=tmp_path / "missing")
    with pytest.raises(UserError, match=r"training second failed: tpt: .*missing"):
        train_side_by_side([good, bad], Console(file=io.StringIO()))
    assert len(begun) == 2
    assert all(process.poll() is not None for process in begun)


class Process:
    """In the place of a `subprocess.Popen`, one that ends when it was looked at three times."""

    code = 0

    def __init__(self, command, *, env, stderr, **_):
        self.stdin, self.n_looks = None, 3
        self.name = command[command.index("--run") + 1]
        self.threads = env["OMP_NUM_THREADS"]
        stderr.write(b"tpt: no memory\n")
        self.note("begin")

    def note(self, event):
        """For subclasses."""

    def poll(self):
        self.n_looks -= 1
        if self.n_looks == 0:
            self.note("end")
        return None if self.n_looks > 0 else self.code

    def wait(self, timeout):
        return self.code

    def terminate(self):
        pass


def test_one_that_fails_just_before_the_last_look_is_not_missed(tmp_path, monkeypatch):
    """It is well when asked for a failure, and has ended when asked whether it runs."""
    monkeypatch.setattr(engine.subprocess, "Popen", type("Failing", (Process,), {"code": 1}))
    with pytest.raises(UserError, match="training a failed: tpt: no memory"):
        train_side_by_side([run_of(tmp_path, "a", tmp_path)], Console(file=io.StringIO()))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_so_many_at_once(tmp_path, monkeypatch, is_terminal):
    """A run begins when one before it has ended; each has its share of the cores."""
    events, threads = [], set()

    class Noted(Process):
        def note(self, event):
            events.append((event, self.name))
            threads.add(self.threads)

    monkeypatch.setattr(engine.subprocess, "Popen", Noted)
    monkeypatch.setattr(engine, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(engine, "n_cores", lambda: 5)
    file = io.StringIO()
    several = [run_of(tmp_path, name * 3, tmp_path) for name in "abcde"]
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


def test_records_are_read_line_by_line(tmp_path, monkeypatch):
    def text(*steps):
        record = {"kind": "monitor", "loss": 1.0, "exact_match": 0.5, "n": 2}
        return "".join(json.dumps({**record, "step": step}) + "\n" for step in steps)

    def read():
        return [record["step"] for record in process.new_records()]

    monkeypatch.setattr(engine.subprocess, "Popen", Process)
    process = engine._Process(run_of(tmp_path, "a", tmp_path), n_threads=1)
    assert read() == []
    records = tmp_path / "a" / "metrics.jsonl"
    records.parent.mkdir()
    records.write_text(text(1) + '{"st')
    assert read() == [1]
    assert read() == []
    records.write_text(text(1, 2) + "not a record\n" + text(3))
    assert read() == [2, 3]
    records.write_text(text(1))  # a run that goes on has forgotten the rest
    assert read() == [1]
    process.wait()


def test_a_folder_that_was_begun_with_other_settings(tmp_path):
    file, values = tmp_path / "task.json", {"training": {"steps": 6, "betas": (0.9, 0.99)}}
    begin(file, values)
    before = file.read_bytes()
    begin(file, values)  # tuples are lists in the file
    with pytest.raises(FolderError, match=r"other settings: training\.steps is 6, not 10"):
        begin(file, {"training": {**values["training"], "steps": 10}})
    assert file.read_bytes() == before
    file.write_text("[")
    with pytest.raises(FolderError, match=r"task\.json is damaged"):
        begin(file, values)

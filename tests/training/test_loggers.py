"""Loggers: TensorBoard, trackers with the API of Weights & Biases, functions; after resuming."""

import json
import sys
import types

import pytest

from runs import config, records
from tp_transformer import train
from tp_transformer.cli import main
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.training.record import LOGGERS, LoggedRun, names_in, open_logger


def train_record(step, loss):
    return {"kind": "train", "step": step, "loss": loss, "skipped": 0}


def validation_record(step, exact_match):
    modules = {"numbers__gcd": exact_match}
    return {"kind": "validation", "step": step, "modules": modules, "best": True, "loss": 1.0}


def logged(folder, resume_step=0):
    return LoggedRun(folder=folder, id="abc", resume_step=resume_step, settings={"training": {}})


def test_tensorboard_has_each_step_once_after_resuming(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = open_logger("tensorboard", logged(tmp_path))
    for step in (20, 40, 60):
        first.record(train_record(step, loss=1.0))
    first.close()
    second = open_logger("tensorboard", logged(tmp_path, resume_step=20))
    second.record(train_record(40, loss=2.0))
    second.record(validation_record(40, 0.5))
    second.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    seen = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert seen == [(20, 1.0), (40, 2.0)]
    assert [event.value for event in events.Scalars("modules/numbers__gcd")] == [0.5]
    assert "train/step" not in events.Tags()["scalars"]
    assert "validation/best" not in events.Tags()["scalars"]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("tensorboard", "torch.utils.tensorboard.writer"),
        ("wandb", "wandb"),
        ("trackio", "trackio"),
    ],
)
def test_without_its_package_the_error_names_the_extra(store, tmp_path, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"tp-transformer\[{name}\]"):
        train(config(), store, tmp_path / "run", quiet=True, loggers=[name])
    assert not (tmp_path / "run").exists()
    with pytest.raises(SettingsError, match=r"no logger 'wandbb' \(did you mean 'wandb'"):
        names_in(["wandbb"])


class Tracker(types.ModuleType):
    """A module with the functions of wandb and trackio that are used."""

    def __init__(self, name, *, has_ids):
        super().__init__(name)
        self.has_ids = has_ids
        self.started, self.logged, self.n_finished = [], [], 0

    def init(self, *, project, name, config, resume, **more):
        assert set(more) == ({"id", "dir"} if self.has_ids else set())  # trackio refuses others
        self.started.append({"project": project, "name": name, "resume": resume, **more})
        self.settings = config
        return self

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.n_finished += 1


@pytest.mark.parametrize(("name", "has_ids"), [("wandb", True), ("trackio", False)])
def test_a_tracker_continues_its_run_after_a_resumption(
    store, tmp_path, monkeypatch, name, has_ids
):
    tracker = Tracker(name, has_ids=has_ids)
    monkeypatch.setitem(sys.modules, name, tracker)
    run = tmp_path / "run"
    train(config(training__steps=8), store, run, quiet=True, loggers=[name])
    train(config(training__steps=12), None, run, quiet=True)  # without being asked for again
    first, second = tracker.started
    assert first == second
    assert first["name"] == f"run-{json.loads((run / 'run.json').read_text())['id']}"
    assert (first["project"], first["resume"]) == ("tp-transformer", "allow")
    assert tracker.settings["training"]["steps"] == 12
    assert tracker.n_finished == 2
    losses = [
        (step, values["train/loss"]) for step, values in tracker.logged if "train/loss" in values
    ]
    recorded = [one for one in records(run) if one["kind"] == "train"]
    assert losses == [(one["step"], one["loss"]) for one in recorded]
    assert [step for step, _ in losses] == [1, 4, 8, 12]


class Mine:
    """A logger that keeps what it receives."""

    def __init__(self, run=None):
        self.run, self.records, self.is_closed = run, [], False

    def record(self, values):
        self.records.append(values)

    def close(self):
        self.is_closed = True


def test_functions_and_objects_are_loggers_and_may_have_names(store, tmp_path, monkeypatch):
    seen, mine, named = [], Mine(), []
    monkeypatch.setitem(LOGGERS._entries, "mine", lambda run: named.append(Mine(run)) or named[0])
    run = tmp_path / "run"
    train(config(training__steps=4), store, run, quiet=True, loggers=[seen.append, mine, "mine"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert seen == mine.records == named[0].records == lines
    assert mine.is_closed
    assert named[0].run.folder == run
    assert json.loads((run / "run.json").read_text())["loggers"] == ["mine"]


def test_other_loggers_replace_the_recorded_ones(store, tmp_path, monkeypatch):
    wandb, trackio = Tracker("wandb", has_ids=True), Tracker("trackio", has_ids=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    run = tmp_path / "run"
    train(config(training__steps=2), store, run, quiet=True, loggers=["wandb"])
    main(["train", "--run", str(run), "--training.steps=3", "--log", "trackio"])
    main(["train", "--run", str(run), "--training.steps=4"])
    assert (len(wandb.started), len(trackio.started)) == (1, 2)

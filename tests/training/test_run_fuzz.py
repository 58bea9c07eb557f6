"""Damaged run folders: every reader succeeds or says in one line what is wrong."""

import json
import re
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

import tp_transformer
from fuzzing import DEPTH, mutate_bytes, mutate_file, mutate_json, tolerated, trials
from runs import config, make_store
from tp_transformer import train
from tp_transformer.cli import main
from tp_transformer.errors import FolderError, UserError
from tp_transformer.model.checkpoint import describe
from tp_transformer.report.charts import read_curves
from tp_transformer.training.checkpoint import _hash_of_values
from tp_transformer.training.loop import Loop
from tp_transformer.training.record import read_records

DEEP = "[" * DEPTH + "]" * DEPTH


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("data") / "store", interpolate=(4, 2))


@pytest.fixture(scope="module")
def finished(tested, tmp_path_factory):
    """A run with two checkpoints, at its end."""
    run = tmp_path_factory.mktemp("runs") / "finished"
    changed = {"training__steps": 4, "training__checkpoint_every": 2, "validation__every": 2}
    settings = config(**changed, training__log_every=1, validation__monitor=4, model__dropout=0.0)
    train(settings, tested, run, quiet=True)
    return run


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


@pytest.fixture
def few_steps(monkeypatch):
    """However long a damaged run may last, stop it after a step."""
    step = Loop._step

    def stopping(self, ahead):
        self._signals.record(signal.SIGTERM)
        return step(self, ahead)

    monkeypatch.setattr(Loop, "_step", stopping)


@contextmanager
def stopped_or_not():
    """Pass over the exit code of a command that `few_steps` stopped."""
    try:
        yield
    except SystemExit as stop:
        if stop.code != 128 + signal.SIGTERM:
            raise


def set_json(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def rehash(file):
    """Give a damaged state.json the hash that belongs to it, so that its values are looked at."""
    try:
        values = json.loads(file.read_bytes())
        values.pop("hash", None)
        file.write_text(json.dumps({**values, "hash": _hash_of_values(values)}))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return


@pytest.mark.parametrize(
    "changes",
    [
        {"data": ["a"]},
        {"data": 3},
        {"data": None},
        {"data": "\0"},
        {"data": "\ud800"},
        {"data": "x" * 100_000},
        {"data_sha256": []},
        {"config_sha256": 3},
    ],
)
def test_odd_values_in_run_json_get_one_line(run, changes):
    set_json(run / "run.json", **changes)
    with pytest.raises(UserError) as error:
        train(None, None, run, quiet=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", [DEEP, "[]", "3", "null", '"text"', "{}", "", "9" * 5000])
def test_an_odd_run_json_gets_one_line(run, text):
    (run / "run.json").write_text(text)
    with pytest.raises(FolderError, match=r"run\.json is damaged") as error:
        train(None, None, run, quiet=True)
    assert not re.search(r"Error\b", str(error.value))  # no Python exception


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        "[]",
        '{"kind": "train", "step": 1}',
        '{"kind": "validation", "step": "1"}',
        '{"kind": [], "step": 1}',
        '{"kind": "monitor", "step": 1, "loss": {}, "exact_match": 1, "n": 2}',
        '{"kind": "monitor", "step": 1, "loss": 1, "exact_match": NaN, "n": 2}',
        '{"kind": "monitor", "step": true, "loss": 1, "exact_match": 1, "n": 2}',
        '{"kind": "monitor", "step": 1, "loss": 1, "exact_match": 1, "n": 1e999}',
    ],
)
def test_odd_lines_of_metrics_are_dropped_and_that_is_said(run, few_steps, line):
    records, _ = read_records(run / "metrics.jsonl")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert read_records(run / "metrics.jsonl") == (records, 1)
    assert len(read_curves(run)) == 2
    shutil.rmtree((run / "last").resolve())
    train(None, None, run, quiet=True)
    kept, n_others = read_records(run / "metrics.jsonl")
    assert [one for one in kept if one["step"] <= 2] == [one for one in records if one["step"] <= 2]
    assert n_others == 0
    assert "removed incomplete lines from metrics.jsonl: 1" in (run / "log.txt").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"window": 3},
        {"window": {"seconds": "1", "waited": 0.0}},
        {"best": 3},
        {"best": {"step": 1, "exact_match": [], "loss": 1.0}},
        {"files": 3},
        {"files": {}},
        {"step": "4"},
        {"step": 3},
        {"step": 10**30},
        {"elapsed": None},
        {"validated": 0.5},
    ],
)
def test_odd_values_in_state_json_make_a_damaged_checkpoint(run, few_steps, changes):
    state = run / "checkpoints" / "step-00000004" / "state.json"
    set_json(state, **changes)
    rehash(state)
    train(None, None, run, quiet=True)
    said = (run / "log.txt").read_text()
    assert "skipping a checkpoint: " in said
    assert "resuming from step 2" in said


@pytest.mark.parametrize("text", ["3", "[]", "null", DEEP, '{"step": 1e999}', '{"best": 3}'])
def test_an_odd_state_json_does_not_keep_a_model_from_being_described(run, text):
    (run / "last" / "state.json").write_text(text)
    described = describe(tp_transformer.load(run), run)
    assert described["step"] == 4  # which the folder of the best model is named after


def damage(run, chance):
    """Damage one file of a run, such that a state.json has its hash or not; returns its name."""
    files = [file for file in sorted(run.rglob("*")) if file.is_file() and file.name != ".lock"]
    files = [file for file in files if not {"best", "last"} & set(file.relative_to(run).parts[:1])]
    file = chance.choice(files)
    if file.name == "metrics.jsonl" and chance.random() < 0.7:
        lines = file.read_bytes().splitlines(keepends=True)
        place = chance.randrange(len(lines))
        lines[place] = mutate_json(json.loads(lines[place]), chance) + b"\n"
        file.write_bytes(b"".join(lines))
    else:
        mutate_file(file, chance)
    if file.name == "state.json" and chance.random() < 0.8:
        rehash(file)
    if chance.random() < 0.1:
        link = run / chance.choice(("best", "last"))
        link.unlink()
        link.write_bytes(mutate_bytes(b"checkpoints/step-00000004", chance))
    return file.relative_to(run)


def read_in_every_way(run, tested, name, evaluates):
    with tolerated(f"{name}: load"):
        describe(tp_transformer.load(run), run)
    with tolerated(f"{name}: load last"):
        tp_transformer.load(run / "last")
    with tolerated(f"{name}: curve"):
        read_curves(run)
    if evaluates:
        out = run.parent / "results.json"
        asked = ["--model", str(run), "--data", str(tested), "--out", str(out)]
        with tolerated(f"{name}: evaluate"):
            main(["evaluate", *asked])
        out.unlink(missing_ok=True)
    with tolerated(f"{name}: options"), stopped_or_not():  # which are added to config.yaml
        main(["train", "--run", str(run), "--training.seed=0"])
    with tolerated(f"{name}: train"):
        train(None, None, run, quiet=True)


@pytest.mark.parametrize("count", [30, pytest.param(1500, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("few_steps")
def test_damaged_runs(finished, tested, tmp_path, capsys, count):
    for number, (name, chance) in enumerate(trials(count, seed=12)):
        run = tmp_path / "run"
        shutil.copytree(finished, run, symlinks=True)
        file = damage(run, chance)
        read_in_every_way(run, tested, f"{name} of {file}", evaluates=number % 20 == 0)
        shutil.rmtree(run)
        capsys.readouterr()


def test_the_fuzzer_would_notice():
    with pytest.raises(AssertionError, match="one: TypeError"), tolerated("one"):
        Path(["a list for a path"])

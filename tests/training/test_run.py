"""The run folder: begun, gone on with, refused."""

import json
import os
import re
import shlex
import shutil

import pytest

import tp_transformer
from runs import command, config, finish, make_store, options, start, start_ranks, tpt
from tp_transformer import train
from tp_transformer.data.store import open_store
from tp_transformer.errors import FolderError, SettingsError, UserError
from tp_transformer.runtime import files
from tp_transformer.runtime.run_folder import LOCK
from tp_transformer.settings import read
from tp_transformer.training import setup
from tp_transformer.training.config import run_config


@pytest.fixture
def run(undisturbed, tmp_path):
    return shutil.copytree(undisturbed, tmp_path / "run", symlinks=True)


def test_the_folder_explains_itself(undisturbed, store):
    resolved = config(training__ema=0.9, model__n_vocab=72)  # as many rows as the task has tokens
    assert run_config(read(undisturbed / "config.yaml")) == resolved
    origin = json.loads((undisturbed / "run.json").read_text())
    model = tp_transformer.load(undisturbed)
    assert origin["n_parameters"] == model.n_parameters
    assert origin["data"] == str(store)
    assert {"torch", "python", "numpy", "tp_transformer", "seed", "device", "threads"} < set(origin)


def test_a_module_that_the_store_lacks_is_named_and_leaves_no_folder(capsys, store, tmp_path):
    run = tmp_path / "run"
    asked = [*command(store, run), "--modules", "*gcd", "algebra__linear_1d", "--device", "cpu"]
    code, out, err = tpt(capsys, *asked)
    assert (code, out) == (2, "")
    assert f"{store} has no algebra__linear_1d in its train split; it has " in err
    assert ", ".join(open_store(store)["train"].modules) in err
    assert not run.exists()


def test_the_command_line_trains_and_tells_what_next(capsys, store, tmp_path):
    run = tmp_path / "a run"
    arguments = [*command(store, run, training__steps=2), "--modules", "*gcd", "--device", "cpu"]
    code, out, _ = tpt(capsys, *arguments)
    assert code == 0
    assert f"{run} is finished, after step 2" in out
    assert re.search(r"best: .*run/best, of step 2", out)
    suggested = shlex.split(out.splitlines()[-1].removeprefix("next: tpt "))
    assert suggested[:3] == ["solve", "--model", str(run)]
    questions = [one.question for one in open_store(store)["train"].examples("*gcd")]
    assert suggested[3] in questions
    assert tpt(capsys, *suggested)[0] == 0
    assert read(run / "config.yaml")["data"]["modules"] == ["*gcd"]
    code, out, _ = tpt(capsys, "train", "--run", str(run))
    assert code == 0
    assert "was finished already" in out
    again = ["--config", str(run / "config.yaml"), "--data", str(store)]
    code, out, _ = tpt(capsys, "train", "--run", str(run), *again)
    assert code == 0
    assert "was finished already" in out


def test_other_settings_are_refused_by_name(capsys, run):
    code, out, err = tpt(
        capsys, "train", "--run", str(run), "--training.steps=40", "--model.d_ff", "64"
    )
    assert (code, out) == (2, "")
    assert f"model.d_ff is 32 in {run}, not 64" in err
    assert f"training.steps is 30 in {run}, not 40" in err
    assert err.count("\n") == 1
    code, _, err = tpt(capsys, "train", "--run", str(run), "--budget", "2h")
    assert code == 2
    assert "training.budget is absent" in err


def test_other_data_are_refused(run, tmp_path):
    other = make_store(tmp_path / "other")
    assert train(None, other, run).was_finished  # the same store in another place
    make_store(other, interpolate=[1])
    with pytest.raises(UserError, match="was started on other data"):
        train(None, other, run)


def test_a_folder_that_holds_something_else_is_refused(store, tmp_path):
    for name in ("thesis.txt", "config.yaml", "metrics.jsonl"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).touch()
        with pytest.raises(FolderError, match=rf"holds something else \({name}\)"):
            train(config(), store, folder)
        with pytest.raises(FolderError, match="is a file"):
            train(config(), store, folder / name)
    with pytest.raises(UserError, match="is not a run yet"):
        train(None, store, tmp_path / "new")
    with pytest.raises(UserError, match="there is no store"):
        train(config(), tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_two_processes_on_one_run(run):
    held = files.lock(run / LOCK)
    assert held is not None
    with pytest.raises(FolderError, match="another process is training"):
        train(None, None, run)
    os.close(held)
    assert train(None, None, run).was_finished


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nothing"], "nothing; create one with `tpt data prepare`"),
        (["--config", "nonsense"], "there is no preset 'nonsense'"),
        (["--budget", "soon"], "'soon' is not a positive duration"),
        (["--training.stesp=3"], "--training.stesp (did you mean --training.steps?)"),
        (["--optim.learning_rate=-1"], "learning_rate must be above 0"),
        (["--device", "cuda"], "cuda is not available"),
        (["--data.batch_size=many"], "data.batch_size must be a whole number"),
        (["--modules", "nonsense"], "nonsense"),
        (["--model.n_positions=10"], "the model reads at most 8"),
    ],
)
def test_mistakes_end_in_one_line(capsys, store, tmp_path, arguments, message):
    given = ["--config", "tp-transformer-tiny", "--data", str(store), *options()]
    code, out, err = tpt(capsys, "train", "--run", str(tmp_path / "run"), *given, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("tpt: ")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_that_another_process_has_begun_meanwhile_is_left_alone(store, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def make_loop(*arguments):
        monkeypatch.undo()
        train(config(training__steps=2), store, run, quiet=True)
        return original(*arguments)

    original = setup.make_loop
    monkeypatch.setattr(setup, "make_loop", make_loop)
    with pytest.raises(FolderError, match="another process has started"):
        train(config(training__steps=3), store, run, quiet=True)
    assert read(run / "config.yaml")["training"]["steps"] == 2


def test_load_takes_the_best_or_else_the_last(run):
    def weights(folder):
        return tp_transformer.load(folder).state_dict()["embedding.symbols.weight"]

    (run / "last").unlink()
    (run / "last").symlink_to("checkpoints/step-00000027")
    best, last = weights(run / "best"), weights(run / "last")
    assert not best.equal(last)
    assert weights(run).equal(best)
    (run / "best").unlink()
    assert weights(run).equal(last)
    (run / "last").unlink()
    with pytest.raises(FolderError, match="has no checkpoint yet"):
        tp_transformer.load(run)


def test_a_run_without_a_model_is_refused():
    with pytest.raises(SettingsError, match="needs the section 'model'"):
        run_config({"training": {"steps": 3}})


@pytest.mark.parametrize("text", [None, "", "training: [", "training:\n  steps: 99\n"])
def test_a_changed_settings_file_is_written_again(run, text):
    """The settings of a run are those of run.json."""
    file = run / "config.yaml"
    recorded = file.read_text()
    shutil.rmtree((run / "last").resolve())  # so that there is something to train
    file.unlink() if text is None else file.write_text(text)
    assert train(None, None, run, quiet=True).step == 30
    assert file.read_text() == recorded
    assert "config.yaml was changed; it is restored" in (run / "log.txt").read_text()


def test_a_run_of_an_earlier_version_has_its_settings_in_the_file_only(run):
    origin = json.loads((run / "run.json").read_text())
    recorded = origin.pop("settings")
    (run / "run.json").write_text(json.dumps(origin))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text[: len(text) // 2])
    with pytest.raises(SettingsError, match=r"config\.yaml was changed after the run was started"):
        train(None, None, run, quiet=True)
    (run / "config.yaml").write_text(text)
    shutil.rmtree((run / "last").resolve())
    assert train(None, None, run, quiet=True).step == 30
    assert json.loads((run / "run.json").read_text())["settings"] == recorded


def test_folders_need_not_be_valid_utf8(store, tmp_path, monkeypatch):
    folder, log = tmp_path / os.fsdecode(b"caf\xe9"), tmp_path / "log"
    shutil.copytree(store, folder / "data")
    monkeypatch.chdir(folder)

    def run(*arguments, code=0):
        log.unlink(missing_ok=True)
        assert finish(start(arguments, log)) == [code], log.read_text()
        assert "Traceback" not in log.read_text()

    short = {"training__steps": 2}
    run(*command("data", "run", **short), "--dry-run")
    run(*command("data", "run", **short))
    run("train", "--run", "run", "--training.steps=5")
    assert train(config(training__steps=6), None, folder / "run", quiet=True).step == 6
    run("train", "--run", "run", "--model.d_ff=9", code=2)
    run(*command("data", "seeds", **short), "--seeds", "1", "--init-from", "run")
    assert json.loads((folder / "run" / "run.json").read_text())["data"] == str(folder / "data")
    ranks = start_ranks(["train", "--run", "run", "--training.steps=7"], 2, log)
    assert finish(*ranks) == [0, 0], log.with_name("log-0").read_text()
    assert r"caf\udce9" in (folder / "run" / "log.txt").read_text()

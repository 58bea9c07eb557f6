"""A run whose limits are changed: longer, shorter, with a cooldown; everything else is refused."""

import json
import shutil

import pytest

import tp_transformer
from runs import assert_same_run, command, config, finish, start, tensors, tpt
from tp_transformer import train
from tp_transformer.errors import SettingsError
from tp_transformer.model.checkpoint import model_hash
from tp_transformer.settings import read

CONSTANT = {"optim__schedule": "constant", "training__ema": 0.9}


@pytest.fixture(scope="module")
def thirty_steps(store, tmp_path_factory):
    """An undisturbed run with a learning rate that does not depend on the length of the run."""
    run = tmp_path_factory.mktemp("runs") / "thirty-steps"
    train(config(**CONSTANT), store, run, quiet=True)
    return run


def weights(run):
    return tensors(run / "last")[("model.safetensors", "embedding.symbols.weight")]


@pytest.mark.parametrize("first", [20, 17])  # a validation is due after 20 steps, not after 17
def test_an_extended_run_equals_an_undisturbed_one(store, tmp_path, thirty_steps, first):
    run = tmp_path / "run"
    ended = train(config(**CONSTANT, training__steps=first), store, run, quiet=True)
    assert ended.step == first
    train(config(**CONSTANT), None, run, quiet=True)
    assert_same_run(run, thirty_steps, but={"progress"})  # which was that of a shorter run
    assert read(run / "config.yaml") == read(thirty_steps / "config.yaml")
    log = (run / "log.txt").read_text()
    assert f"changed: training.steps is 30, not {first}" in log
    assert "would differ" not in log
    (change,) = json.loads((run / "run.json").read_text())["changes"]
    assert (change["step"], change["settings"]) == (first, {"training": {"steps": 30}})
    assert train(None, None, run).was_finished


def test_a_kill_while_the_settings_are_changed_loses_nothing(store, tmp_path, thirty_steps):
    """The moments before run.json is written, and between that and the writing of config.yaml."""
    begun = tmp_path / "begun"
    train(config(**CONSTANT, training__steps=27), store, begun, quiet=True)
    for number, text in enumerate(("run.json", "config.yaml")):
        run = shutil.copytree(begun, tmp_path / f"killed-{number}", symlinks=True)
        given = ["train", "--training.steps=30", "--run", str(run)]
        assert finish(start(given, tmp_path / "log", kill_at=(text, 0))) == [-9]
        assert len(json.loads((run / "run.json").read_text()).get("changes", [])) == number
        assert read(run / "config.yaml")["training"]["steps"] == 27
        assert train(None, None, run, quiet=True).step == (30 if number else 27)
        train(config(**CONSTANT), None, run, quiet=True)
        assert_same_run(run, thirty_steps, but={"progress"})
        assert read(run / "config.yaml")["training"]["steps"] == 30


def test_a_constant_run_ends_with_a_cooldown_now(store, tmp_path):
    """The first 15 steps of both are the same, so that the cooldown begins where it would have."""
    expected, run = tmp_path / "expected", tmp_path / "run"
    cooled = config(**CONSTANT, training__steps=20, optim__cooldown=0.25)
    train(cooled, store, expected, quiet=True)
    train(config(**CONSTANT, training__steps=15), store, run, quiet=True)
    train(cooled, None, run, quiet=True)
    assert weights(run).equal(weights(expected))
    rates = [json.loads(line)["learning_rate"] for line in _train_lines(run)]
    assert rates == [json.loads(line)["learning_rate"] for line in _train_lines(expected)]
    assert rates[-1] < rates[0]
    assert "would differ" not in (run / "log.txt").read_text()


def _train_lines(run):
    return [one for one in (run / "metrics.jsonl").read_text().splitlines() if '"train"' in one]


def test_a_run_can_be_shortened_to_what_it_has_taken(capsys, store, tmp_path):
    run, arguments = tmp_path / "run", ["train", "--run"]
    train(config(training__steps=12), store, run, quiet=True)
    code, _, err = tpt(capsys, *arguments, str(run), "--training.steps=11")
    assert code == 2
    assert f"training.steps is 11, but {run} has taken 12 steps" in err
    assert read(run / "config.yaml")["training"]["steps"] == 12
    assert "changes" not in json.loads((run / "run.json").read_text())
    shutil.rmtree(run)
    train(config(training__steps=1000, training__budget="2s"), store, run, quiet=True)
    taken = json.loads((run / "last" / "state.json").read_text())["step"]
    code, out, _ = tpt(capsys, *arguments, str(run), f"--training.steps={taken}")
    assert code == 0
    assert f"after step {taken:,}" in out


def test_what_depends_on_the_length_of_the_run_is_noted(store, tmp_path):
    run = tmp_path / "run"
    schedule = {"optim__schedule": "cosine"}
    train(config(training__steps=4, **schedule), store, run, quiet=True)
    train(config(training__steps=6, **schedule), None, run, quiet=True)
    log = (run / "log.txt").read_text()
    assert "the learning rates up to step 4 were those of the earlier settings" in log


@pytest.mark.parametrize(
    ("first", "then", "is_allowed"),
    [
        ({"training__budget": "1h"}, {"training__budget": "90min"}, True),
        ({"training__budget": "90min"}, {"training__budget": "1h"}, False),
        ({"training__budget": "1h"}, {"training__budget": None}, True),
        ({"training__budget": None}, {"training__budget": "1h"}, False),
        ({"training__epochs": 5.0}, {"training__epochs": 6.0}, True),
        ({"training__epochs": 5.0}, {"training__epochs": 4.0}, False),
        ({"training__seed": 1}, {"training__seed": 2}, False),
        ({"training__patience": 3}, {"training__patience": 4}, False),
    ],
)
def test_which_settings_can_be_changed(store, tmp_path, first, then, is_allowed):
    run = tmp_path / "run"
    train(config(training__steps=2, validation__count=0, **first), store, run, quiet=True)
    changed = config(training__steps=2, validation__count=0, **then)
    ((name, value),) = then.items()
    field = name.removeprefix("training__")
    if is_allowed:
        train(changed, None, run, quiet=True)
        assert read(run / "config.yaml")["training"][field] == value
        assert train(None, None, run).was_finished  # the hash is that of the new file
    else:
        with pytest.raises(SettingsError, match=f"training.{field} is .* in .*, not "):
            train(changed, None, run, quiet=True)
        assert "changes" not in json.loads((run / "run.json").read_text())


def test_a_new_run_starts_from_the_weights_of_another(capsys, store, tmp_path, undisturbed):
    run = tmp_path / "run"
    given = [*command(store, run, training__steps=1, model__dropout=0.0), "--init-from"]
    rate = "--optim.learning_rate=1e-12"
    code, _, _ = tpt(capsys, *given, str(undisturbed), rate)
    assert code == 0
    best = tp_transformer.load(undisturbed).state_dict()
    for name, tensor in tp_transformer.load(run / "last").state_dict().items():
        assert tensor.allclose(best[name], atol=1e-9), name
    origin = json.loads((run / "run.json").read_text())["init_from"]
    assert origin["folder"] == str(undisturbed)
    assert origin["sha256"] == model_hash(tp_transformer.load(undisturbed))
    assert train(None, None, run, init_from=undisturbed, quiet=True).was_finished
    with pytest.raises(SettingsError, match=r"was started from .*undisturbed, not from"):
        train(None, None, run, init_from=tmp_path, quiet=True)
    with pytest.raises(SettingsError, match="was started from no other model"):
        train(None, None, undisturbed, init_from=run, quiet=True)


def test_another_architecture_is_refused_by_its_first_difference(store, tmp_path, undisturbed):
    run = tmp_path / "run"
    with pytest.raises(SettingsError, match=r"another architecture .*: model\.d_ff is 32, not 64$"):
        train(config(model__d_ff=64), store, run, init_from=undisturbed, quiet=True)
    assert not run.exists()


def test_a_run_from_weights_is_exactly_resumed_before_its_first_checkpoint(
    store, tmp_path, undisturbed
):
    initial = shutil.copytree(undisturbed / "last", tmp_path / "initial")
    expected, run = tmp_path / "expected", tmp_path / "run"
    settings = config(training__steps=3, training__ema=0.9)
    for folder in (expected, run):
        train(settings, store, folder, init_from=initial, quiet=True)
    _remove_checkpoints(run)
    train(None, None, run, quiet=True)
    assert_same_run(run, expected)
    trained = (expected / "last" / "model.safetensors").read_bytes()
    (initial / "model.safetensors").write_bytes(trained)
    _remove_checkpoints(run)
    with pytest.raises(tp_transformer.UserError, match="has changed since"):
        train(None, None, run, quiet=True)


def _remove_checkpoints(run):
    for name in ("checkpoints", "best-models"):
        shutil.rmtree(run / name)
    for name in ("last", "best"):
        (run / name).unlink()

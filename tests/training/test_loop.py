"""The loop: what it does with bad steps, when it ends, what it validates, keeps and shows."""

import json
import math
import os

import pytest
import torch

import tp_transformer
from runs import config, records, tensors
from tp_transformer import train
from tp_transformer.data.store import open_store
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.model.base import Model
from tp_transformer.model.loss import Loss
from tp_transformer.runtime.progress import RecentSpeed
from tp_transformer.training import loop as loop_module
from tp_transformer.training.config import Limits, TrainingConfig, seconds
from tp_transformer.training.record import Display
from tp_transformer.training.validate import ValidationConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", 90),
        ("45min", 2700),
        ("2h", 7200),
        ("1d12h", 129_600),
        ("1.5h", 5400),
        ("2h 30min", 9000),
    ],
)
def test_lengths_of_time(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "2", "h", "2 hours", "12h1d", "-2h", "0s", "2x"])
def test_what_is_no_length_of_time(text):
    with pytest.raises(SettingsError, match="is not a positive duration"):
        TrainingConfig(budget=text)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (TrainingConfig, {"steps": None}, "needs an end"),
        (TrainingConfig, {"steps": 0}, "steps must be 1 or more"),
        (TrainingConfig, {"epochs": 0.0}, "epochs must be above 0"),
        (TrainingConfig, {"ema": 1.0}, "ema must be above 0 and below 1"),
        (TrainingConfig, {"label_smoothing": 1.0}, "label_smoothing must be"),
        (TrainingConfig, {"keep": 0}, "keep must be 1 or more"),
        (TrainingConfig, {"seed": -1}, "seed must be 0 or more, not -1"),
        (TrainingConfig, {"checkpoint_minutes": 0.0}, "checkpoint_minutes must be above 0"),
        (ValidationConfig, {"every": 0}, "every must be 1 or more"),
        (ValidationConfig, {"count": -1}, "count must be 0"),
    ],
)
def test_senseless_settings_are_refused(kind, fields, message):
    with pytest.raises(SettingsError, match=message):
        kind(**fields)


def poison(monkeypatch, steps, value=math.nan):
    """Let the losses of some steps, counted from 1, come out as a value that is not finite."""
    plain, n_calls = Model.loss, 0

    def poisoned(self, batch, *, label_smoothing=0.0):
        nonlocal n_calls
        loss = plain(self, batch, label_smoothing=label_smoothing)
        n_calls += self.training
        factor = value if self.training and n_calls in steps else 1.0
        return Loss(loss.total * factor, loss.n_tokens, loss.n_right)

    monkeypatch.setattr(Model, "loss", poisoned)


def one_pass(**changed):
    return config(training__symbols_per_pass=10**6, model__dropout=0.0, **changed)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_step_is_not_applied(store, tmp_path, monkeypatch, value):
    poison(monkeypatch, {4}, value)
    settings = one_pass(training__steps=4, training__ema=0.9, training__checkpoint_every=1)
    train(settings, store, tmp_path / "run", quiet=True)
    before = tensors(tmp_path / "run" / "checkpoints" / "step-00000003")
    after = tensors(tmp_path / "run" / "checkpoints" / "step-00000004")
    assert all(torch.equal(before[name], after[name]) for name in before)
    state = json.loads((tmp_path / "run" / "last" / "state.json").read_text())
    assert state["skipped"] == 1
    assert records(tmp_path / "run")[0]["skipped"] == 0
    assert "step 4 is not applied" in (tmp_path / "run" / "log.txt").read_text()


def test_many_bad_steps_in_a_row_end_the_run(store, tmp_path, monkeypatch):
    run = tmp_path / "run"
    poison(monkeypatch, {2, *range(8, 100)})
    settings = one_pass(training__max_bad_steps=4, training__checkpoint_every=1)
    with pytest.raises(UserError, match=r"4 steps in a row .* step 11 .*bad_batch\.json") as error:
        train(settings, store, run, quiet=True)
    assert "step-00000007" in str(error.value)
    assert sorted(os.listdir(run / "checkpoints")) == ["step-00000006", "step-00000007"]
    bad = json.loads((run / "bad_batch.json").read_text())
    assert bad["step"] == 11
    assert len(bad["samples"]) == 8
    split = open_store(store)["train"]
    for sample in bad["samples"]:
        example = split[sample["row"]]
        assert (sample["question"], sample["answer"]) == (example.question, example.answer)
    monkeypatch.undo()
    assert train(None, None, run, quiet=True).step == 30


def test_weights_that_are_not_finite_are_never_saved(store, tmp_path, monkeypatch):
    run = tmp_path / "run"
    plain = torch.optim.Adam.step

    def exploding(self, *args):
        plain(self, *args)
        if next(iter(self.state.values()))["step"] == 6:
            self.param_groups[0]["params"][0].data.fill_(math.inf)

    monkeypatch.setattr(torch.optim.Adam, "step", exploding)
    with pytest.raises(UserError, match="step-00000003"):
        train(one_pass(training__max_bad_steps=3), store, run, quiet=True)
    assert os.listdir(run / "checkpoints") == ["step-00000003"]


def test_the_loss_goes_down_and_the_best_is_kept(undisturbed):
    lines = records(undisturbed)
    trained = [line for line in lines if line["kind"] == "train"]
    validated = [line for line in lines if line["kind"] == "validation"]
    assert [line["step"] for line in trained] == [1, 4, 8, 12, 16, 20, 24, 28]
    assert [line["step"] for line in validated] == [10, 20, 30]
    assert trained[-1]["loss"] < trained[0]["loss"] - 1
    assert trained[-1]["progress"] == pytest.approx(28 / 30)
    assert trained[-1]["epoch"] == pytest.approx(28 * 8 / 114)
    keys = [(line["exact_match"], -line["loss"]) for line in validated]
    for number, line in enumerate(validated):
        assert line["best"] == (keys[number] > max(keys[:number], default=(-1, 0)))
        assert line["n"] == 6
        assert set(line["modules"]) == {"numbers__gcd", "numbers__place_value"}


def test_a_validation_is_what_the_saved_model_scores_on_the_held_out_questions(store, undisturbed):
    split = open_store(store)["train"]
    best = [line for line in records(undisturbed) if line.get("best")][-1]
    model = tp_transformer.load(undisturbed)
    held_out = [row for one in split.segments for row in one.rows[-2:]]
    questions, answers = split.rows(held_out)
    right = [a == b for a, b in zip(model.solve(questions), answers, strict=True)]
    assert best["exact_match"] == pytest.approx(sum(right) / 6)
    batch = tp_transformer.Batch.from_text(questions, answers, model.vocabulary)
    with torch.no_grad():
        assert best["loss"] == pytest.approx(model.loss(batch).mean.item(), rel=1e-5)


def test_patience(store, tmp_path):
    settings = config(
        optim__learning_rate=1e-30, validation__every=3, training__patience=2, model__dropout=0.0
    )
    outcome = train(settings, store, tmp_path / "run", quiet=True)
    assert outcome.step == 9  # the first is the best, two more do not improve on it
    assert train(None, None, tmp_path / "run").was_finished


def test_a_run_ends_by_epochs_and_by_time(store, tmp_path):
    by_epochs = config(training__steps=None, training__epochs=0.5)
    assert train(by_epochs, store, tmp_path / "epochs", quiet=True).step == math.ceil(114 * 0.5 / 8)
    by_time = config(
        training__steps=None,
        training__budget="1s",
        optim__schedule="cosine",
        optim__warmup=0,
        training__log_every=1,
    )
    assert train(by_time, store, tmp_path / "time", quiet=True).step > 0
    text = (tmp_path / "time" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    lines = [line for line in lines if line["kind"] == "train"]
    assert 1.0 <= lines[-1]["elapsed"] < 30
    assert lines[-1]["learning_rate"] < lines[0]["learning_rate"]
    assert train(None, None, tmp_path / "time").was_finished


def test_emulated_bfloat16_is_replaced_by_float32(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tp_transformer.runtime.ranks.has_bfloat16", lambda _: False)
    for precision in ("bfloat16", "float32"):
        train(config(training__precision=precision, training__steps=3), store, tmp_path / precision)
        assert ("no native bfloat16 was found" in capsys.readouterr().err) is (
            precision == "bfloat16"
        )
        origin = json.loads((tmp_path / precision / "run.json").read_text())
        assert origin["precision"] == "float32"
    first, second = (tensors(tmp_path / name / "last") for name in ("bfloat16", "float32"))
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_bfloat16_trains_with_weights_in_float32(store, tmp_path, monkeypatch):
    monkeypatch.setattr("tp_transformer.runtime.ranks.has_bfloat16", lambda _: True)
    settings = config(training__precision="bfloat16", training__steps=3, training__log_every=1)
    train(settings, store, tmp_path / "run", quiet=True)
    plain = config(training__steps=3, training__log_every=1)
    train(plain, store, tmp_path / "plain", quiet=True)
    losses = [
        [line["loss"] for line in records(tmp_path / name) if line["kind"] == "train"]
        for name in ("run", "plain")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert losses[0] != losses[1]
    assert all(
        tensor.dtype == torch.float32 for tensor in tensors(tmp_path / "run" / "last").values()
    )


def limits(steps=None, epochs=None, budget=None):
    return Limits(steps=steps, epochs=epochs, budget=budget, batch_size=10, n_rows=95)


@pytest.mark.parametrize(
    ("given", "last_step"),
    [({"steps": 50}, 50), ({"epochs": 2.0}, 19), ({"steps": 50, "epochs": 2.0}, 19), ({}, None)],
)
def test_the_last_step(given, last_step):
    assert limits(**given, budget=9.0).last_step == last_step
    if last_step is not None:
        ends = limits(**given)
        assert ends.progress(last_step - 1, 0.0) < 1 <= ends.progress(last_step, 0.0)


def test_the_time_left_is_that_of_the_first_limit():
    both = limits(steps=100, budget=60.0)
    assert both.time_left(50, 20.0, steps_per_second=5.0) == 10.0
    assert both.time_left(50, 20.0, steps_per_second=0.5) == 40.0
    assert both.time_left(50, 20.0, None) == 40.0
    assert both.time_left(100, 61.0, 0.5) == 0.0
    assert limits(steps=100).time_left(0, 0.0, None) is None


def test_the_speed_is_that_of_the_last_minutes():
    speed = RecentSpeed(window=100.0)
    speed.add(0.0, 0)
    assert speed.per_second(0.0, 0) is None
    step = 0
    for second in range(1, 1001):  # ten steps a second, then one
        step += 10 if second <= 500 else 1
        speed.add(float(second), step)
        if second == 500:
            assert speed.per_second(500.0, step) == 10.0
    assert speed.per_second(1000.0, step) == pytest.approx(1.0)
    # The mean over the whole run is 5.5: the time left would be a fifth of what it is.
    assert step / 1000.0 == 5.5
    assert len(speed._points) < 110


@pytest.mark.parametrize("resumed", [False, True])
def test_the_display_moves_from_the_first_step(store, tmp_path, monkeypatch, resumed):
    """Also after a resumption, and between two records if these are far apart."""

    class Seen(Display):
        def show(self, record):
            if record["kind"] == "train":
                seen.append(("recorded", record["step"]))

        def update(self, record):
            seen.append(("shown", record["step"]))

    seen = []
    monkeypatch.setattr(loop_module, "SECONDS_BETWEEN_VIEWS", 0.0)
    settings = {"training__log_every": 5, "training__checkpoint_every": 2}
    if resumed:
        train(config(training__steps=2, **settings), store, tmp_path / "run", quiet=True)
    train(config(training__steps=6, **settings), store, tmp_path / "run", display=lambda _: Seen())
    first = 3 if resumed else 1
    kinds = {1: "recorded", 5: "recorded"}
    assert seen == [(kinds.get(step, "shown"), step) for step in range(first, 7)]

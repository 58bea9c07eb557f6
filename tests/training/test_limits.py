"""When a run ends, and how much time is left."""

import pytest

from runs import config
from tp_transformer import train
from tp_transformer.runtime.progress import RecentSpeed
from tp_transformer.training import loop as loop_module
from tp_transformer.training.config import Limits
from tp_transformer.training.record import Display


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


def test_many_steps_a_second_take_no_more_memory():
    speed = RecentSpeed(window=10.0)
    for step in range(10_000):
        speed.add(step / 1000, step)
    assert len(speed._points) == 10
    assert speed.per_second(10.0, 10_000) == pytest.approx(1000.0)


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

"""The curve of a run: what is monitored chooses nothing, and what is drawn can be read."""

import json
import shutil

import pytest
import torch

from legible import illegible, texts
from runs import config, make_store, records, tensors
from tp_transformer import figures, train
from tp_transformer.cli import main
from tp_transformer.data.sampling import Feed
from tp_transformer.data.store import open_store
from tp_transformer.errors import SettingsError, UserError
from tp_transformer.model.checkpoint import build, load
from tp_transformer.report.charts import Curve, read_curves, save_curves
from tp_transformer.runtime.ranks import Ranks
from tp_transformer.training.validate import monitored, validate


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A store with test questions."""
    return make_store(tmp_path_factory.mktemp("data") / "store", interpolate=(9, 2))


def own_records(run, *kinds):
    return [record for record in records(run) if record["kind"] in kinds]


def test_a_monitor_changes_nothing_but_the_records(tested, tmp_path):
    changed = {"training__ema": 0.9, "training__patience": 2, "training__steps": 16}
    changed |= {"validation__every": 4, "training__checkpoint_every": None}
    runs = [tmp_path / "plain", tmp_path / "monitored"]
    for run, count in zip(runs, (0, 8), strict=True):
        train(config(**changed, validation__monitor=count), tested, run, quiet=True)
    plain, watched = runs
    for name in ("last", "best"):
        ours, theirs = tensors(plain / name), tensors(watched / name)
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert own_records(watched, "train", "validation") == records(plain)
    found = own_records(watched, "monitor")
    steps = [record["step"] for record in own_records(plain, "validation")]
    assert [record["step"] for record in found] == steps
    assert {record["n"] for record in found} == {6}  # 4 of 9, and the 2 that there are
    assert all(
        record["modules"].keys() == {"numbers__gcd", "numbers__place_value"} for record in found
    )
    assert "monitor of interpolate on 6 questions" in (watched / "log.txt").read_text()


def test_what_is_monitored_are_the_first_interpolation_questions(tested, tmp_path):
    run = tmp_path / "run"
    train(config(training__steps=10, validation__monitor=8), tested, run, quiet=True)
    (found,) = own_records(run, "monitor")
    model, split = load(run / "last"), open_store(tested)["interpolate"]
    rows = [*split.modules["numbers__gcd"][:4], *split.modules["numbers__place_value"][:4]]
    questions, answers = split.rows(rows)
    n_right = sum(a == b for a, b in zip(model.solve(questions), answers, strict=True))
    assert found["exact_match"] == pytest.approx(n_right / len(rows))


def test_a_monitor_without_held_out_questions_ends_no_run(tested, tmp_path):
    run = tmp_path / "run"
    changed = {"validation__count": 0, "validation__monitor": 4, "validation__every": 2}
    changed |= {"training__steps": 8}
    outcome = train(config(**changed, training__patience=1), tested, run, quiet=True)
    assert (outcome.step, outcome.best) == (8, None)
    assert len(own_records(run, "monitor")) == 4
    assert not (run / "best").exists()
    assert train(None, None, run).was_finished


def test_ranks_share_the_monitored_questions(tested):
    split = open_store(tested)["interpolate"]
    model = build("tp-transformer-tiny", d_model=16)
    questions = monitored(split, "*", 11, model.vocabulary)
    n_rows = [
        sum(len(source.lengths) for source, _ in questions(rank, 3).values()) for rank in range(3)
    ]
    assert sum(n_rows) == 8
    ranks = Ranks(torch.device("cpu"))
    whole = validate(model.eval(), questions(0, 1), ranks, 100, model.layout_for(ranks.device))
    assert whole.n == 8


def test_nothing_to_monitor_is_refused(store, tested, tmp_path):
    with pytest.raises(UserError, match="no split 'interpolate'"):
        train(config(validation__monitor=4), store, tmp_path / "run")
    split = open_store(tested)["interpolate"]
    with pytest.raises(SettingsError, match="no questions of these modules"):
        monitored(split, "numbers__is_prime", 4, Feed(split, batch_size=1).vocabulary)
    with pytest.raises(SettingsError, match="monitor must be 0"):
        config(validation__monitor=-1)


def test_the_curve_says_whether_the_error_fell_every_time():
    falling = Curve("a", "monitor", "mine", 100, (10, 20, 30), (0.9, 0.5, 0.25))
    assert falling.rises == []
    assert falling.line() == (
        "a: error on 100 questions, mine: 90.00% at step 10, 25.00% at step 30; "
        "strictly decreasing over 3 validations"
    )
    resting = Curve("a", "validation", "held out", 100, (10, 20, 30), (0.5, 0.5, 0.6))
    assert resting.rises == [20, 30]
    assert resting.line().endswith("not lower at 2 of 2 validations, the first time at step 20")
    assert Curve("a", "monitor", "mine", 100, (10,), (0.5,)).line().endswith("50.00% at step 10")


def test_the_command_draws_several_runs(capsys, tested, tmp_path):
    for name in ("one", "two"):
        settings = config(validation__monitor=8, training__steps=10, validation__every=5)
        train(settings, tested, tmp_path / name, quiet=True)
    main(
        ["curve", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "figures")]
    )
    out = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in out] == ["one", "one", "two", "two", "figures"]
    assert "questions, interpolate:" in out[0]
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert names == {f"error-curve.{kind}" for kind in figures.FORMATS}
    curves = read_curves(tmp_path / "one")
    own = own_records(tmp_path / "one", "monitor")
    assert curves[0].errors == tuple(1 - record["exact_match"] for record in own)


def test_the_curve_is_legible(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, *_: drawn.append(figure) or [])
    steps = tuple(range(1000, 11_000, 1000))
    errors = tuple(0.9 / number for number in range(1, 11))
    for name in ("tp", "a_run_with_a_long_name_$x$"):
        curves = [
            Curve(name, kind, kind, 2048, steps, errors) for kind in ("monitor", "validation")
        ]
        save_curves([*curves, Curve("other", "monitor", "mine", 2048, steps, errors)], tmp_path)
    for figure in drawn:
        assert illegible(figure, texts(figure)) == []


def test_a_folder_without_a_curve_is_refused(capsys, undisturbed, tmp_path):
    run = shutil.copytree(undisturbed, tmp_path / "run", symlinks=True)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] == "train"]
    (run / "metrics.jsonl").write_text("\n".join(kept))
    for folder, message in ((run, "has no validation yet"), (tmp_path, "is not a run")):
        with pytest.raises(SystemExit) as stop:
            main(["curve", str(folder), "--out", str(tmp_path / "figures")])
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()

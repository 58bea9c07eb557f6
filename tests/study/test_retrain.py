"""`tpt retrain`: the training of a model is repeated by the record of its runs."""

import json
import signal
from dataclasses import replace

import pytest

import runs
import tp_transformer as tpt
from tp_transformer.data.mathematics.produce import Order, produce
from tp_transformer.errors import FolderError, StoreError
from tp_transformer.model import bundled
from tp_transformer.model.bundled import RESULTS
from tp_transformer.model.checkpoint import model_hash
from tp_transformer.runtime.processes import workers
from tp_transformer.scoring.results import Results
from tp_transformer.show.model_card import CardFacts, model_card
from tp_transformer.study import retrain as retraining
from tp_transformer.study.bundle import bundle
from tp_transformer.study.retrain import plan_retraining, retrain
from tp_transformer.training.history import history_of
from tp_transformer.training.run import train

ORDERS = [
    Order(modules=("numbers__place_value",), splits=("train-easy", "interpolate"), count=n, seed=3)
    for n in (40, 60)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs, each from the one before, the third with more questions; and their bundle."""
    folder = tmp_path_factory.mktemp("retrain")
    stores = [produce(order, folder / f"{order.count}", workers(1)) for order in ORDERS]
    start = None
    for number, store in enumerate([stores[0], *stores]):
        run = folder / f"run-{number}"
        settings = {"training__seed": number, "training__ema": 0.9, "training__steps": 20}
        train(runs.config(**settings), store, run, init_from=start, quiet=True)
        start = run
    bundle(start, out=folder / "bundled")
    return folder


@pytest.fixture
def in_package(folder, monkeypatch):
    monkeypatch.setattr(bundled, "FOLDER", folder / "bundled")
    return bundled.names()[0]


def test_the_repetition_has_the_same_weights(folder, in_package, tmp_path, capsys):
    arguments = ["retrain", in_package, "--out", str(tmp_path / "again"), "--threads", "1"]
    code, out, _ = runs.tpt(capsys, *arguments)
    assert (code, f"{tmp_path}/again/run-3 is finished" in out) == (0, True)
    assert {path.name for path in (tmp_path / "again").iterdir()} == {
        *("data-1", "data-2", "run-1", "run-2", "run-3")
    }
    for place, number in enumerate((0, 1, 2), 1):
        models = [folder / f"run-{number}", tmp_path / "again" / f"run-{place}"]
        first, second = (model_hash(tpt.load(model)) for model in models)
        assert first == second
    code, out, _ = runs.tpt(capsys, *arguments)
    assert (code, "was finished already" in out) == (0, True)


def test_a_dry_run_writes_nothing(in_package, tmp_path, capsys):
    out = tmp_path / "again"
    code, text, _ = runs.tpt(capsys, "retrain", in_package, "--out", str(out), "--dry-run")
    assert code == 0
    lines = text.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(out / f"run-{n}") for n in (1, 2, 3)]
    assert [line.split("; ")[0][-6:] for line in lines] == ["data-1", "data-1", "data-2"]
    assert not out.exists()


def test_an_interruption_ends_it(in_package, tmp_path, monkeypatch):
    trained = []

    def stopped(config, store, run, **_):
        outcome = train(replace(config, training=replace(config.training, steps=1)), store, run)
        trained.append(run.name)
        return replace(outcome, signal=signal.SIGTERM if len(trained) == 2 else None)

    monkeypatch.setattr(retraining, "train", stopped)
    outcome = retrain(in_package, tmp_path / "again")
    assert outcome.signal == signal.SIGTERM
    assert trained == ["run-1", "run-2"]


def test_questions_that_were_not_generated_must_be_given(tmp_path):
    store = runs.make_store(tmp_path / "digits")
    train(runs.config(training__steps=2), store, tmp_path / "run", quiet=True)
    with pytest.raises(StoreError, match=r"of the run run were not generated.*--data"):
        plan_retraining(tmp_path / "run", tmp_path / "again")
    retrain(tmp_path / "run", tmp_path / "again", data=store)
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["run-1"]
    first, second = (tpt.load(tmp_path / name) for name in ("run", "again/run-1"))
    assert model_hash(first) == model_hash(second)


def test_mistakes_end_in_one_line(in_package, tmp_path, capsys):
    tpt.build("tp-transformer-tiny", n_layers=1).save(tmp_path / "untrained")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    named = f"name a run or a bundled model ({in_package})"
    for model, out, said in (
        ("tp-transformer-smal", "again", named),
        (str(tmp_path / "untrained"), "again", named),
        (in_package, "mine", "has other files (notes.txt)"),
    ):
        code, text, err = runs.tpt(capsys, "retrain", model, "--out", str(tmp_path / out))
        assert (code, text, err.count("\n")) == (2, "", 1)
        assert said in err
    assert not (tmp_path / "again").exists()


def test_an_unknown_start_cannot_be_repeated(folder, tmp_path):
    bundle(folder / "run-0", out=tmp_path / "bundled")
    (name,) = bundled.names(tmp_path / "bundled")
    file = tmp_path / "bundled" / name / "training.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "unknown_start": "0" * 64}))
    with pytest.raises(FolderError, match="weights whose own training is not recorded"):
        plan_retraining(tmp_path / "bundled" / name, tmp_path / "again")


def test_cards_name_the_command_only_if_it_works(folder, in_package):
    card = (folder / "bundled" / in_package / "README.md").read_text()
    assert f"$ tpt retrain {in_package} --out retrained --threads 1\n" in card
    assert "It generates the questions and trains all runs" in card
    model, results = tpt.load(in_package), Results.read(folder / "bundled" / in_package / RESULTS)
    facts = CardFacts(name="x", model=model, results=results, history=history_of(in_package))
    unknown = replace(facts, history=replace(facts.history, unknown_start="0" * 64))
    assert "tpt retrain" not in model_card(unknown, None)
    stages = [replace(one, data={"name": "mine", "sha256": ""}) for one in facts.history.stages]
    given = replace(facts, history=replace(facts.history, stages=tuple(stages)))
    assert "$ tpt retrain x --out retrained --threads 1 --data mine\n" in model_card(given, None)
    assert "It trains all runs" in model_card(given, None)

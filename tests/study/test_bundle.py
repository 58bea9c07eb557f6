"""`tpt bundle`, and the models that the package contains."""

import json
import re
import shlex
from dataclasses import replace

import pytest
import torch

import runs
import tp_transformer as tpt
from tp_transformer.cli import parse
from tp_transformer.errors import FolderError
from tp_transformer.model import bundled
from tp_transformer.model.checkpoint import model_hash
from tp_transformer.report.cards import CardFacts, generation_command, model_card
from tp_transformer.scoring.results import Results
from tp_transformer.study import bundle as bundling
from tp_transformer.study.bundle import bundle
from tp_transformer.training.history import _core_seconds, history_of
from tp_transformer.training.run import train

FILES = {
    *("model.safetensors", "config.json", "vocabulary.json", "README.md", "results.json"),
    *("training.json", "training-1.yaml"),
}
QUESTION = "What is the units digit of 74189?"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store, and two runs on it that differ in their binding."""
    folder = tmp_path_factory.mktemp("bundle")
    store = runs.make_store(folder / "digits", interpolate=(30, 20))
    for name, binding in (("tp", "hadamard"), ("plain", "none")):
        config = runs.config(training__ema=0.9, model__binding=binding)
        train(config, store, folder / name, quiet=True)
    return folder


@pytest.fixture(scope="module")
def written(trained):
    return bundle(trained / "tp", twin=trained / "plain", out=trained / "out")


@pytest.fixture
def in_package(written, monkeypatch):
    """The bundled models are those of the tests."""
    monkeypatch.setattr(bundled, "FOLDER", written)
    return written


def facts_of(folder):
    """What a card says, read from the files beside it."""
    return CardFacts(
        name=folder.name,
        model=tpt.load(folder),
        results=Results.read(folder / "results.json"),
        history=history_of(folder),
    )


def cards(folder):
    """Each card of a folder, and the card that follows from the files beside it."""
    facts = [facts_of(folder / name) for name in bundled.names(folder)]
    for one in facts:
        same = [other for other in facts if other.results.data == one.results.data]
        twin = next((other for other in same if other is not one), None)
        yield (folder / one.name / "README.md").read_text("utf-8"), model_card(one, twin)


def test_what_is_written(trained, written):
    assert json.loads((written / "models.json").read_text()) == ["tp", "plain"]
    for name in ("tp", "plain"):
        assert {path.name for path in (written / name).iterdir()} == FILES
        weights = tpt.load(written / name).state_dict()
        for tensor, exact in tpt.load(trained / name).state_dict().items():
            assert torch.equal(weights[tensor], exact.bfloat16().to(exact.dtype))
        text = (written / name / "training-1.yaml").read_text()
        assert text == (trained / name / "config.yaml").read_text()


def test_the_scores_are_those_of_evaluate(trained, written):
    found = Results.read(written / "tp" / "results.json")
    expected = tpt.evaluate(written / "tp", trained / "digits")
    assert found.splits.keys() == {"interpolate"}
    for module, score in expected.splits["interpolate"].modules.items():
        undiagnosed = score.to_json() | {"wrong": {}, "examples": ()}
        assert found.splits["interpolate"].modules[module].to_json() == undiagnosed
    assert found.name == "tp"
    assert found.model["sha256"] == expected.model["sha256"]
    run = tpt.evaluate(trained / "tp", trained / "digits").model
    for name in ("step", "seed", "recipe_sha256"):
        assert found.model[name] == run[name]


def test_cards_follow_from_the_files_beside_them(written):
    for card, expected in cards(written):
        assert card == expected


def test_a_card_has_the_facts(trained, written):
    card = (written / "tp" / "README.md").read_text()
    origin = json.loads((trained / "tp" / "run.json").read_text())
    best = json.loads((trained / "tp" / "last" / "state.json").read_text())["best"]
    score = Results.read(written / "tp" / "results.json").splits["interpolate"]
    average, (low, high) = score.average
    n_below = sum(one.accuracy < 0.1 for one in score.modules.values())
    for text in (
        f"{tpt.load(written / 'tp').n_parameters:,} parameters",
        f"| steps | {best['step']} |",
        f"| samples | {best['step'] * 8} |",
        f"{average:.1%} ({low:.1%} to {high:.1%})",
        f"| modules below 10% | {n_below} |",
        origin["data_sha256"],
        origin["commit"] or "not recorded",
        origin["processor"],
        "threads: 1",
        "at most 198 characters",
        "binding hadamard",
        "model.binding is hadamard, not none",
    ):
        assert text in card, text
    for module, one in score.modules.items():
        low, high = one.interval
        row = f"| `{module}` | {one.accuracy:.1%} | {low:.1%} to {high:.1%} | {one.n} |"
        assert row in card


def test_its_commands_train_with_the_recorded_settings(trained, written, monkeypatch):
    monkeypatch.chdir(written / "tp")
    monkeypatch.setattr(bundled, "FOLDER", written)
    card = (written / "tp" / "README.md").read_text()
    again, more = (
        parse(shlex.split(line)[1:]) for line in re.findall(r"^\$ (tpt train.*)$", card, re.M)
    )
    recorded = parse(["train", f"--config={trained / 'tp' / 'config.yaml'}"]).resolved()
    assert again.resolved() == more.resolved() == recorded
    assert (again.init_from, str(more.init_from)) == (None, "tp")
    assert again.threads == 1


def test_test_questions_that_were_trained_on_are_counted(trained, written):
    split = tpt.data.open(trained / "digits")
    asked = [one.question for one in split["interpolate"]]
    seen = {one.question for one in split["train"]}
    n_seen = sum(question in seen for question in asked)
    assert n_seen > 0  # numbers of one digit
    assert Results.read(written / "tp" / "results.json").data["seen_in_training"] == n_seen


def test_a_card_says_which_training_questions_were_compared(written):
    facts = facts_of(written / "tp")
    assert "not compared" not in model_card(facts, None)
    (stage,) = facts.history.stages
    earlier = replace(stage, run="before", data={**stage.data, "sha256": "0" * 64})
    longer = replace(facts, history=replace(facts.history, stages=(earlier, stage)))
    said = "the training split of the run `tp` (the other data of earlier runs were not compared)"
    assert said in model_card(longer, None)


def test_the_generation_command_asks_for_the_same(tmp_path):
    from tp_transformer.data.mathematics.produce import Order

    splits = ("train-hard", "interpolate")
    for order in (Order(count=3, seed=7), Order(modules=("numbers__*",), splits=splits)):
        source = {"kind": "generated", **order.describe()}
        verb = parse(generation_command({"name": "math", "source": source})[1:])
        chosen = [f"train-{x}" for x in verb.difficulties] if "train" in verb.splits else []
        chosen += [split for split in verb.splits if split != "train"]
        made = Order(
            modules=verb.modules,
            splits=tuple(chosen),
            count=verb.count,
            test_count=verb.test_count,
            seed=verb.seed,
        )
        assert made == order
    assert generation_command({"name": "x", "source": {"kind": "test"}}) is None


def test_the_bundled_model_is_the_default(in_package, capsys, tmp_path, trained, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hashes = [model_hash(tpt.load(*name)) for name in ((), ("tp",), ("plain",))]
    expected = [model_hash(tpt.load(in_package / name)) for name in ("tp", "tp", "plain")]
    assert hashes == expected
    answer = tpt.load(in_package / "tp").solve([QUESTION])[0]
    assert runs.tpt(capsys, "solve", QUESTION) == (0, f"{answer}\n", "")
    assert runs.tpt(capsys, "solve", QUESTION, "--model", "plain")[0] == 0
    code, out, _ = runs.tpt(capsys, "models")
    assert code == 0
    assert "bundled: tp (" in out
    assert "bundled: plain (" in out
    results = tpt.evaluate(None, trained / "digits")
    assert results.name == "tp"
    recorded = Results.read(in_package / "tp" / "results.json")
    for name in ("sha256", "step", "seed", "recipe_sha256"):
        assert results.model[name] == recorded.model[name]
    page = tmp_path / "page.html"
    assert runs.tpt(capsys, "explore", "--out", str(page))[0] == 0
    assert '"folder": "tp"' in page.read_text().replace('"folder":"', '"folder": "')


def test_a_folder_has_precedence_over_a_name(in_package, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tpt.build("tp-transformer-tiny", n_layers=1)
    other.save("plain")
    assert model_hash(tpt.load("plain")) == model_hash(other)


def test_without_a_bundled_model(capsys, tmp_path, monkeypatch, trained):
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "bundled")
    with pytest.raises(FolderError, match="no model is bundled"):
        tpt.load()
    data = str(trained / "digits")
    for command in (
        ["solve", "1 + 1"],
        ["evaluate", "--data", data, "--out", str(tmp_path / "results.json")],
        ["interpret", "roles", "--data", data, "--out", str(tmp_path / "out")],
        ["explore", "--out", str(tmp_path / "page.html")],
    ):
        code, out, err = runs.tpt(capsys, *command)
        assert (code, out) == (2, "")
        assert "no model is bundled" in err
        assert err.count("\n") == 1
    assert runs.tpt(capsys, "models")[0] == 0
    assert not list(tmp_path.iterdir())


def test_a_run_that_continues_the_bundled_model(trained, written, tmp_path, monkeypatch):
    """Its history has both runs, also after the bundled model is replaced."""
    monkeypatch.setattr(bundled, "FOLDER", written)
    earlier = history_of("tp")
    config = runs.config(training__steps=8, validation__every=8)
    train(config, trained / "digits", tmp_path / "more", init_from="tp", quiet=True)
    history = history_of(tmp_path / "more")
    assert history.stages[0] == earlier.stages[0]
    assert [stage.run for stage in history.stages] == ["tp", "more"]
    assert history.samples == earlier.samples + 8 * 8
    assert history.core_hours > earlier.core_hours
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "gone")
    assert history_of(tmp_path / "more") == history
    out = bundle(tmp_path / "more", out=tmp_path / "out")
    assert {path.name for path in (out / "more").iterdir()} == FILES | {"training-2.yaml"}
    ((card, expected),) = cards(out)
    assert card == expected
    assert f"Total: {history.samples:,} samples" in card
    assert "--init-from runs/tp" in card


def test_a_resumed_run_records_its_sessions(trained, tmp_path):
    run = tmp_path / "run"
    train(runs.config(training__steps=10), trained / "digits", run, quiet=True)
    train(runs.config(training__steps=20), trained / "digits", run, quiet=True)
    train(runs.config(training__steps=20), trained / "digits", run, quiet=True)  # finished
    (resumed,) = json.loads((run / "run.json").read_text())["resumed"]
    assert resumed["step"] == 10
    assert resumed["threads"] == 1
    (stage,) = history_of(run / "last").stages
    assert [one["step"] for one in stage.sessions] == [0, 10]
    assert stage.core_seconds == pytest.approx(stage.seconds)
    assert stage.changes == [{"step": 10, "settings": {"training": {"steps": 20}}}]


def test_core_seconds_count_the_threads_of_each_session():
    def session(elapsed, threads, n_ranks=1):
        return {"elapsed": elapsed, "threads": threads, "n_ranks": n_ranks}

    sessions = [session(0, 2), session(100, 1), session(130, 4, 2)]
    assert _core_seconds(sessions, 140) == 100 * 2 + 30 * 1 + 10 * 8
    assert _core_seconds(sessions, 110) == 100 * 2 + 10 * 1  # of a model before the third
    lost = [session(0, 2), session(100, 1), session(60, 1)]  # the second reached no checkpoint
    assert _core_seconds(lost, 80) == 60 * 2 + 20 * 1


def snapshot(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_failure_changes_nothing(trained, written, monkeypatch):
    before = snapshot(trained / "out")

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(bundling, "model_card", fail)
    both = {"twin": trained / "tp", "out": written}
    with pytest.raises(FolderError, match="the disk is full"):
        bundle(trained / "plain", **both)
    monkeypatch.undo()
    assert snapshot(trained / "out") == before
    assert not [path for path in trained.iterdir() if path.name.startswith(".")]


def test_mistakes_end_in_one_line(trained, capsys, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "project").mkdir()  # it has models of its own
    (tmp_path / "project" / "models.json").write_text('["notes"]')
    (tmp_path / "project" / "notes").mkdir()
    train_only = runs.make_store(tmp_path / "train-only")
    out, tp = str(tmp_path / "out"), str(trained / "tp")
    monkeypatch.setattr(bundled, "FOLDER", tmp_path / "a" / "site-packages" / "x" / "bundled")
    for arguments, message in (
        ([str(tmp_path / "nowhere"), "--out", out], "is not a run"),
        ([str(tmp_path / "other"), "--out", out], "is not a run"),
        ([tp, "--out", str(tmp_path / "other")], "holds something else"),
        ([tp, "--out", str(tmp_path / "project")], "holds something else"),
        ([tp, "--out", str(tmp_path / "other" / "notes.txt")], "is a file"),
        ([tp, "--out", str(tmp_path / "other" / "notes.txt" / "out")], "is a file"),
        ([tp, "--out", out, "--data", str(train_only)], "no test questions"),
        ([tp, "--out", out, "--twin", tp], "would both be bundled as tp"),
        ([tp], "not a source checkout"),
    ):
        code, printed, err = runs.tpt(capsys, "bundle", *arguments)
        assert (code, printed) == (2, ""), arguments
        assert message in err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "other" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "project" / "notes").is_dir()


def test_other_bundled_models_stay(trained, tmp_path):
    folder = tmp_path / "out"
    bundle(trained / "tp", out=folder)
    before = {file.name: file.read_bytes() for file in (folder / "tp").iterdir()}
    bundle(trained / "plain", out=folder)  # without a twin, which its card then does not name
    assert bundled.names(folder) == ["plain", "tp"]
    assert {file.name: file.read_bytes() for file in (folder / "tp").iterdir()} == before
    assert "Compared with" not in (folder / "plain" / bundled.CARD).read_text()


# The models in the package, if there are any.

REAL = bundled.FOLDER
needs_model = pytest.mark.skipif(not bundled.names(REAL), reason="no model is bundled")


@needs_model
def test_the_numbers_of_the_bundled_cards_follow_from_their_files():
    """Words may change, but no number; `tpt bundle` writes the cards anew."""
    for card, expected in cards(REAL):
        numbers = re.findall(r"\d[\w.,]*%?", card)
        assert len(numbers) > 150
        assert numbers == re.findall(r"\d[\w.,]*%?", expected)


@needs_model
def test_the_bundled_models_are_small_enough():
    files = [path for path in REAL.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 30_000_000
    for name in bundled.names(REAL):
        assert (REAL / name / "model.safetensors").stat().st_size <= 12_000_000


@needs_model
def test_the_bundled_scores_are_of_the_bundled_weights():
    for name in bundled.names(REAL):
        results = Results.read(REAL / name / "results.json")
        assert results.model["sha256"] == model_hash(tpt.load(name))
        assert results.splits.keys() == {"interpolate", "extrapolate"}
        assert len(results.splits["interpolate"].modules) in (6, 56)


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize("name", bundled.names(REAL))
def test_new_questions_are_answered_as_the_card_says(name):
    """Questions of another seed: the intervals of accuracies overlap."""
    from tp_transformer.scoring.statistics import average_interval, wilson

    model, results = tpt.load(name), Results.read(REAL / name / "results.json")
    for split, score in results.splits.items():
        counts, n_apart = [], 0
        for module, expected in score.modules.items():
            asked = list(tpt.data.generate(module, split=split, count=200, seed=987_654))
            answers = model.solve([one.question for one in asked])
            right = sum(a == one.answer for a, one in zip(answers, asked, strict=True))
            counts.append((right, len(asked)))
            (low, high), (least, most) = expected.interval, wilson(right, len(asked))
            n_apart += most < low or high < least
        _, (low, high) = average_interval(counts)
        _, (least, most) = score.average
        assert low <= most, split
        assert least <= high, split
        # Two 95% intervals are apart with a probability below 1%.
        assert n_apart <= 0.05 * len(counts), split

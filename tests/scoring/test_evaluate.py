"""Evaluation: the same counts however it is done, resumed where it stopped, and what it refuses."""

import io
import json
import shlex
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

import tp_transformer as tpt
from corpora import make_store
from runs import finish, start_ranks
from tp_transformer.cli import main, parse
from tp_transformer.data.store import open_store
from tp_transformer.errors import (
    FolderError,
    ResultsError,
    SettingsError,
    UserError,
)
from tp_transformer.model.checkpoint import model_hash
from tp_transformer.report.terminal import render_results
from tp_transformer.scoring import evaluate as module
from tp_transformer.scoring.evaluate import evaluate
from tp_transformer.scoring.options import EvaluationOptions, QuestionChoice
from tp_transformer.scoring.results import Results

QUICK = EvaluationOptions(diagnose=0)


def counted(results):
    """All that must not depend on how an evaluation was done."""
    values = json.loads(json.dumps(results.to_json()))
    del values["made"], values["model"]["name"]
    for split in values["splits"].values():
        for score in (split, *split["modules"].values()):
            score["loss"] = round(score["loss"], 4)
    for tie in values["near_ties"]:
        tie["margin"] = round(tie["margin"], 9)
    return values


@pytest.fixture(scope="session")
def undisturbed(store, trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "results.json"
    return evaluate(
        trained, store, out, QuestionChoice(train_count=200), EvaluationOptions(diagnose=10)
    )


def test_counts_are_those_of_decoding_every_question(store, trained, undisturbed):
    model = tpt.load(trained)
    for name in ("interpolate", "extrapolate"):
        split = open_store(store)[name]
        for segment in split.segments:
            questions, answers = split.rows(segment.rows)
            found = [a == b for a, b in zip(model.solve(questions), answers, strict=True)]
            score = undisturbed.splits[name].modules[segment.module]
            assert score.verdicts.tolist() == found
            assert score.right == sum(found)
    assert undisturbed.splits["train"].modules["numbers__place_value"].n == 200
    assert 0 < undisturbed.splits["interpolate"].average[0] < 1


@pytest.mark.parametrize("limit", [150, 100_000])
def test_the_size_of_passes_does_not_matter(store, trained, undisturbed, tmp_path, limit):
    work = EvaluationOptions(diagnose=10, symbols_per_pass=limit)
    found = evaluate(trained, store, tmp_path / "r.json", QuestionChoice(train_count=200), work)
    assert counted(found) == counted(undisturbed)
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_padded_batches_come_to_the_same(store, trained, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setattr(tpt.Transformer, "reads_packed", False)
    choice, work = QuestionChoice(train_count=200), EvaluationOptions(diagnose=10)
    found = evaluate(trained, store, tmp_path / "r.json", choice, work)
    assert counted(found) == counted(undisturbed)


def test_two_ranks_come_to_the_same(store, trained, undisturbed, tmp_path):
    out, answers = tmp_path / "r.json", tmp_path / "answers.jsonl"
    command = ["evaluate", "--model", str(trained), "--data", str(store), "--out", str(out)]
    command += ["--train-count=200", "--symbols-per-pass=2000", "--decode=100"]
    command += ["--predictions", str(answers)]
    assert finish(*start_ranks(command, 2, tmp_path / "log")) == [0, 0]
    found = Results.read(out)
    values, expected = counted(found), counted(undisturbed)
    assert values["decoding"]["n"] == 100
    for one in (values, expected):
        del one["decoding"]
        for split in one["splits"].values():
            for score in split["modules"].values():
                del score["wrong"], score["examples"]  # here all were looked at
    assert values == expected
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert len(lines) == sum(split.n for split in found.splits.values())
    assert "tpt compare" in (tmp_path / "log-0").read_text()
    assert "tpt compare" not in (tmp_path / "log-1").read_text()


@pytest.fixture
def undecided(trained, tmp_path):
    """A model whose every verdict hangs on less than rounding: nearly equal scores."""
    model = tpt.load(trained)
    with torch.no_grad():
        # The last normalisation feeds the scores: its gain makes them as small as we like.
        norms = [one for one in model.decoder[-1].modules() if isinstance(one, torch.nn.LayerNorm)]
        norms[-1].weight.mul_(1e-9)
        norms[-1].bias.mul_(1e-9)
    model.save(tmp_path / "undecided")
    return tmp_path / "undecided"


def test_near_ties_have_one_verdict_and_are_listed(store, undecided, tmp_path):
    choice = QuestionChoice(splits=("extrapolate",))
    found = [
        evaluate(undecided, store, tmp_path / f"{limit}.json", choice,
                 EvaluationOptions(diagnose=0, symbols_per_pass=limit))
        for limit in (200, 20_000)
    ]  # fmt: skip
    assert counted(found[0]) == counted(found[1])
    split = found[0].splits["extrapolate"]
    assert len(found[0].near_ties) == split.n == sum(m.near_ties for m in split.modules.values())
    for tie in found[0].near_ties[:50]:
        assert tie["right"] == (tie["margin"] > 0)


class Stopped(BaseException):
    pass


def test_a_stopped_evaluation_goes_on(store, trained, undisturbed, tmp_path, monkeypatch):
    """On two thirds of the passes it is stopped; then only what is left is asked."""
    judge, n_rows = module.JUDGES["float32"], []

    def stopping(model, source, target):
        if len(n_rows) == 6:
            raise Stopped
        n_rows.append(len(source.lengths))
        return judge(model, source, target)

    monkeypatch.setitem(module.JUDGES, "float32", stopping)
    out = tmp_path / "r[1].json"  # no pattern, but a name
    choice, work = (
        QuestionChoice(train_count=200),
        EvaluationOptions(diagnose=10, symbols_per_pass=4000),
    )
    with pytest.raises(Stopped):
        evaluate(trained, store, out, choice, work)
    first = sum(n_rows)
    assert not out.exists()
    asked = []

    def counting(model, source, target):
        if next(model.parameters()).dtype == torch.float32:
            asked.append(len(source.lengths))
        return judge(model, source, target)

    monkeypatch.setitem(module.JUDGES, "float32", counting)
    found = evaluate(trained, store, out, choice, work)
    total = sum(split.n for split in found.splits.values())
    assert first > 0
    assert first + sum(asked) == total
    assert counted(found) == counted(undisturbed)
    assert [file.name for file in tmp_path.iterdir()] == ["r[1].json"]


def stop_at_third_pass(monkeypatch, precision):
    """Have evaluations of that precision end early, until undone."""
    judge, calls = module.JUDGES["float32"], []

    def stopping(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise Stopped
        return judge(*arguments)

    monkeypatch.setitem(module.JUDGES, precision, stopping)


def test_what_another_model_found_is_neither_taken_over_nor_lost(
    store, trained, tmp_path, monkeypatch
):
    other = tpt.build("tp-transformer-tiny")
    other.save(tmp_path / "other")
    out = tmp_path / "r.json"
    choice = QuestionChoice(splits=("interpolate",))
    work = EvaluationOptions(diagnose=0, symbols_per_pass=3000)
    with monkeypatch.context() as patch:
        stop_at_third_pass(patch, "float32")
        with pytest.raises(Stopped):
            evaluate(tmp_path / "other", store, out, choice, work)
    (left,) = tmp_path.glob(".r.json.*rank-*")
    kept = left.read_bytes()
    found = evaluate(trained, store, out, choice, work)
    expected = evaluate(trained, store, tmp_path / "s.json", choice, QUICK)
    assert counted(found) == counted(expected)
    assert left.read_bytes() == kept
    evaluate(tmp_path / "other", store, out, choice, replace(work, overwrite=True))
    assert not left.exists()


def test_results_of_something_else_are_not_overwritten(store, trained, tmp_path, capsys):
    out = tmp_path / "r.json"
    choice = QuestionChoice(splits=("interpolate",))
    first = evaluate(trained, store, out, choice, QUICK)
    evaluate(trained, store, out, choice, QUICK)  # the same once more
    before = out.read_bytes()
    with pytest.raises(ResultsError, match=r'with splits \["interpolate"\], not \["extrapolate"\]'):
        evaluate(trained, store, out, QuestionChoice(splits=("extrapolate",)), QUICK)
    tpt.build("tp-transformer-tiny").save(tmp_path / "other")
    given = ["evaluate", "--model", str(tmp_path / "other"), "--data", str(store),
             "--out", str(out), "--splits", "interpolate", "--diagnose", "0"]  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        main(given)
    assert stop.value.code == 2
    refused = capsys.readouterr().err
    assert f"results of another model ({first.name}); --overwrite replaces them" in refused
    assert out.read_bytes() == before
    main([*given, "--overwrite"])
    assert Results.read(out).name == "other"
    out.write_text("my notes")
    with pytest.raises(ResultsError, match=r"not JSON.*--overwrite replaces it"):
        evaluate(trained, store, out, choice, QUICK)
    assert out.read_text() == "my notes"


def test_results_tell_how_mistakes_were_told_apart(store, trained, tmp_path, monkeypatch):
    choice, work = QuestionChoice(splits=("extrapolate",)), EvaluationOptions(diagnose=3)
    found = evaluate(trained, store, tmp_path / "r.json", choice, work)
    assert found.made["diagnosis"] == {"has_sympy": True, "n_out_of_time": 0}
    monkeypatch.setattr("tp_transformer.scoring.diagnose.find_spec", lambda _: None)
    found = evaluate(trained, store, tmp_path / "r.json", choice, work)
    assert Results.read(tmp_path / "r.json").made["diagnosis"]["has_sympy"] is False
    console = Console(width=80, file=io.StringIO())
    render_results(found, console)
    assert "Without sympy" in console.file.getvalue()


@pytest.fixture
def native_bfloat16(monkeypatch):
    """A processor with bfloat16, or one that emulates it all the same."""
    monkeypatch.setattr("tp_transformer.runtime.ranks.has_bfloat16", lambda _: True)


@pytest.mark.usefixtures("native_bfloat16")
def test_bfloat16_changes_no_count(store, trained, undisturbed, tmp_path):
    work = EvaluationOptions(diagnose=0, precision="bfloat16")
    quick = evaluate(trained, store, tmp_path / "r.json", QuestionChoice(train_count=200), work)
    assert (quick.made["precision"], undisturbed.made["precision"]) == ("bfloat16", "float32")
    assert counted(quick)["near_ties"] == counted(undisturbed)["near_ties"]
    assert quick.splits.keys() == undisturbed.splits.keys()
    for split, score in quick.splits.items():
        exact = undisturbed.splits[split]
        assert score.loss == pytest.approx(exact.loss, rel=0.01)
        for name, one in score.modules.items():
            np.testing.assert_array_equal(one.verdicts, exact.modules[name].verdicts)
    with pytest.raises(UserError, match=r"precision must be one of .*int8, not 'half'"):
        EvaluationOptions(precision="half")


def test_emulated_bfloat16_is_replaced_by_float32(store, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("tp_transformer.runtime.ranks.has_bfloat16", lambda _: False)
    work, choice = (
        EvaluationOptions(diagnose=0, precision="bfloat16"),
        QuestionChoice(splits=("extrapolate",)),
    )
    assert evaluate(trained, store, None, choice, work).made["precision"] == "float32"


def test_int8_is_scored_as_it_answers(store, trained, tmp_path):
    out, choice = tmp_path / "r.json", QuestionChoice(splits=("extrapolate",))
    work = EvaluationOptions(diagnose=0, precision="int8", decode=50)
    found = evaluate(trained, store, out, choice, work)
    assert found.made["precision"] == "int8"
    assert found.decoding["n"] == 50
    assert found.decoding["other_verdict"] == []
    float32 = evaluate(trained, store, tmp_path / "s.json", choice, QUICK)
    assert found.model == float32.model  # that of the folder, not the rounded one
    assert found.splits["extrapolate"].loss != float32.splits["extrapolate"].loss
    with pytest.raises(ResultsError, match=r"has results in int8, not float32; --overwrite"):
        evaluate(trained, store, out, choice, QUICK)


def test_decoding_goes_on_where_it_stopped(store, trained, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "DECODED_AT_ONCE", 20)
    solve, asked = tpt.Transformer.solve, []

    def stopping(self, questions, **options):
        if len(asked) == 3:
            raise Stopped
        asked.append(len(questions))
        return solve(self, questions, **options)

    monkeypatch.setattr(tpt.Transformer, "solve", stopping)
    out, choice = tmp_path / "r.json", QuestionChoice(splits=("extrapolate",))
    with pytest.raises(Stopped):
        evaluate(trained, store, out, choice, EvaluationOptions(diagnose=100))
    asked.append(0)
    found = evaluate(trained, store, out, choice, EvaluationOptions(diagnose=100))
    assert sum(asked) == 100
    expected = evaluate(
        trained, store, tmp_path / "s.json", choice, EvaluationOptions(diagnose=100)
    )
    assert counted(found) == counted(expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.json", "s.json"]


def test_predictions_are_what_the_model_says(store, trained, tmp_path):
    file = tmp_path / "deep" / "answers.jsonl"
    choice = QuestionChoice(splits=("interpolate", "extrapolate"))
    found = evaluate(
        trained, store, tmp_path / "r.json", choice, EvaluationOptions(predictions=file)
    )
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    opened = open_store(store)
    assert len(lines) == len(opened["interpolate"]) + len(opened["extrapolate"])
    said = tpt.load(trained).solve([line["question"] for line in lines])
    for line, text in zip(lines, said, strict=True):
        question, answer = opened[line["split"]].rows([line["row"]])
        assert (line["question"], line["answer"]) == (question[0], answer[0])
        assert line["predicted"] == text
        assert line["right"] == (text == answer[0])
    for name, split in found.splits.items():
        for module_name, score in split.modules.items():
            own = [x for x in lines if (x["split"], x["module"]) == (name, module_name)]
            assert [line["right"] for line in own] == score.verdicts.tolist()
            assert sum(score.wrong.values()) == score.n - score.right


def test_results_have_examples_of_mistakes_and_their_command(store, trained, tmp_path):
    file, out = tmp_path / "answers.jsonl", tmp_path / "r.json"
    choice, work = (
        QuestionChoice(splits=("interpolate",)),
        EvaluationOptions(predictions=file, overwrite=True),
    )
    evaluate(trained, store, out, choice, work)
    found = Results.read(out)
    answers = [json.loads(line) for line in file.read_text().splitlines()]
    for name, score in found.splits["interpolate"].modules.items():
        wrong = {
            (line["question"], line["answer"], line["predicted"])
            for line in answers
            if line["module"] == name and not line["right"]
        }
        assert {(one.question, one.answer, one.predicted) for one in score.examples} <= wrong
        counts = Counter(one.kind for one in score.examples)
        assert counts == {kind: min(count, 2) for kind, count in score.wrong.items()}
    verb = parse(shlex.split(found.made["command"])[1:])
    assert (verb.choice, verb.work, verb.out) == (choice, work, out)
    assert (verb.model, verb.data) == (trained, store)
    assert "command" not in evaluate(tpt.load(trained), store, None, choice).made


def test_the_training_sample_is_drawn_from_the_module_alone(store, trained, tmp_path):
    def sample(modules, seed=0):
        choice = QuestionChoice(modules=modules, splits=("train",), train_count=50, seed=seed)
        work = replace(QUICK, overwrite=True)
        found = evaluate(trained, store, tmp_path / "r.json", choice, work)
        return found.splits["train"].modules["numbers__place_value"]

    alone, among = sample(("numbers__*",)), sample(("*",))
    assert alone.sha256 == among.sha256
    assert (alone.verdicts == among.verdicts).all()
    assert sample(("*",), seed=1).sha256 != alone.sha256


def test_the_hash_is_that_of_the_model_and_not_of_its_files(trained, tmp_path):
    model = tpt.load(trained)
    model.save(tmp_path / "again")
    assert model_hash(tpt.load(tmp_path / "again")) == model_hash(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    assert model_hash(model) != model_hash(tpt.load(trained))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"modules": ("nonsense",)}, "no module matches 'nonsense'"),
        ({"modules": ("calculus__*",)}, "has no question"),
        ({"train_count": 0, "splits": ("train",)}, "has no question"),
        ({"splits": ("validation",)}, "no split 'validation'"),
        ({"train_count": -1}, "train_count must be 0 or more"),
    ],
)
def test_choices_that_cannot_be_are_refused(store, trained, tmp_path, choice, message):
    with pytest.raises(UserError, match=message):
        evaluate(trained, store, tmp_path / "r.json", QuestionChoice(**choice), QUICK)
    assert not list(tmp_path.iterdir())


def test_other_mistakes_are_refused(store, trained, tmp_path):
    with pytest.raises(FolderError, match="no model"):
        evaluate(tmp_path / "none", store, tmp_path / "r.json")
    with pytest.raises(UserError, match="is a folder"):
        evaluate(trained, store, tmp_path, options=QUICK)
    with pytest.raises(SettingsError, match="decode must be 0 or more"):
        EvaluationOptions(decode=-1)
    short = tpt.build("tp-transformer-tiny", n_positions=12)
    short.save(tmp_path / "short")
    with pytest.raises(SettingsError, match="the model reads at most 10"):
        evaluate(tmp_path / "short", store, tmp_path / "r.json", options=QUICK)


def test_the_command_line_shows_what_was_found(store, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "new" / "r.json"
    command = ["evaluate", "--model", str(trained), "--data", str(store), "--out", str(out)]
    command += ["--train-count=0", "--diagnose=5", "--decode=50"]
    main([*command, "--modules", "numbers__*", "arithmetic__*"])
    shown = capsys.readouterr().out
    found = Results.read(out)
    assert found.decoding["n"] == 50
    assert found.decoding["other_verdict"] == []
    score = found.splits["extrapolate"].modules["arithmetic__add_or_sub_big"]
    (line,) = (x for x in shown.splitlines() if "arithmetic__add_or_sub_big" in x)
    assert f"{score.accuracy:.1%}" in line
    assert f"{score.interval[0]:.1%} - {score.interval[1]:.1%}" in line
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert found.model["n_parameters"] == tpt.load(trained).n_parameters
    assert found.model["name"] == trained.name


def test_the_same_questions_in_another_store_are_the_same(store, trained, tmp_path):
    """A store with that module alone: its rows have other numbers, the questions do not."""
    split = open_store(store)["interpolate"]
    (segment,) = split.select("numbers__place_value")
    rows = list(zip(*split.rows(segment.rows), strict=True))
    key = ("interpolate", "numbers__place_value", None)
    alone = make_store(tmp_path / "alone", {key: rows})
    choice = QuestionChoice(splits=("interpolate",), modules=("numbers__place_value",))
    found = [
        evaluate(trained, data, tmp_path / f"{data.name}.json", choice, QUICK).splits["interpolate"]
        for data in (store, alone)
    ]
    assert found[0].to_json() == found[1].to_json()


def test_an_answer_that_does_not_end_is_wrong_by_decoding_too(store, trained, tmp_path):
    """Where the longest answer there is would be a beginning of what the model says."""
    questions, _ = open_store(store)["interpolate"].rows(np.arange(200))
    said = tpt.load(trained).solve(questions)
    rows = [(q, text[0]) for q, text in zip(questions, said, strict=True) if len(text) > 1]
    cut = make_store(tmp_path / "cut", {("interpolate", "numbers__gcd", None): rows})
    found = evaluate(
        trained, cut, tmp_path / "r.json", options=EvaluationOptions(diagnose=0, decode=50)
    )
    assert found.splits["interpolate"].average[0] == 0
    assert found.decoding["other_verdict"] == []


def test_predictions_are_decoded_in_full(store, trained, tmp_path):
    """Also where every right answer is shorter, and whether or not the model ends its answer."""
    endless = tpt.load(trained)
    with torch.no_grad():
        endless.embedding.symbols.weight[endless.vocabulary.eos] = 0
    endless.save(tmp_path / "endless")
    questions, _ = open_store(store)["extrapolate"].rows(np.arange(60))
    key = ("extrapolate", "arithmetic__add_or_sub_big", None)
    short = make_store(tmp_path / "short", {key: [(question, "x") for question in questions]})
    for folder, lengths in ((trained, range(2, 30)), (tmp_path / "endless", [200])):
        file = tmp_path / "answers.jsonl"
        results = tmp_path / f"{folder.name}.json"
        found = evaluate(folder, short, results, options=EvaluationOptions(predictions=file))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        predicted = [line["predicted"] for line in lines]
        assert predicted == tpt.load(folder).solve(questions, max_length=200)
        assert max(map(len, predicted)) in lengths
        assert found.splits["extrapolate"].average[0] == 0

"""Each analysis from a folder and a store to its files, as `tpt interpret` does it."""

import json
import shlex
import shutil
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

import tp_transformer as tpt
from tp_transformer import UserError, cli
from tp_transformer.interpret.analyses import ANALYSES, StoreRequest
from tp_transformer.interpret.run import TRIES, interpret
from tp_transformer.runtime.run_folder import ORIGIN

MODULE = "arithmetic__add_or_sub"
WRITTEN = {
    "roles": {"roles.json", "roles-layer0-head1.svg", "roles-structure.pdf"},
    "attention": {"attention-encoder.json", "attention-encoder-layer0.png"},
    "information": {"information.json", "information.svg"},
    "binding": {"binding.json", "binding.png"},
    "interchange": {"interchange.json"},
    "surgery": {"surgery.json", "surgery.pdf"},
    "tensor-product": {"tensor-product.json", "tensor-product.svg"},
}


def arguments(name, half_trained, sums_store, out):
    chosen = ["--head=1"] if name in {"roles", "attention", "interchange", "surgery"} else []
    if ANALYSES[name].needs_store:
        chosen += [f"--data={sums_store}", f"--module={MODULE}"]
    return ["interpret", name, f"--model={half_trained}", f"--out={out}", "--count=24", *chosen]


def expanded(line):
    """The files that the line of written files names."""
    patterns = line.removeprefix("written: ").split(", ")
    for pattern in patterns:
        beginning, _, kinds = pattern.rpartition(".")
        for kind in kinds.strip("{}").split(","):
            yield from Path("/").glob(f"{beginning}.{kind}".removeprefix("/"))


def run(name, out, *, options=None, **source):
    """Analyse with fields of the options and of the source."""
    chosen = ANALYSES[name].options(**(options or {}))
    return interpret(name, StoreRequest(**{"module": MODULE, **source}), chosen, out)


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_says_what_it_found_and_writes_it(
    name, half_trained, sums_store, tmp_path, capsys, monkeypatch
):
    shown = {}

    @contextmanager
    def show(title):
        shown[title] = []
        yield lambda done, total: shown[title].append((done, total))

    monkeypatch.setattr("tp_transformer.verbs.interpret.progress", show)
    cli.main(arguments(name, half_trained, sums_store, tmp_path / "out"))
    assert set(shown) - {"asking the model", "drawing figures"}
    for title, updates in shown.items():
        assert updates[0] == (0, updates[-1][1]), title
        if title != "asking the model":  # which ends when there are enough questions
            assert updates[-1][0] == updates[-1][1], title
    said, files = capsys.readouterr()
    assert WRITTEN[name] <= {file.name for file in (tmp_path / "out").iterdir()}
    (line,) = files.splitlines()
    assert set(expanded(line)) == set((tmp_path / "out").iterdir())
    (main,) = (file for file in WRITTEN[name] if file in {f"{name}.json", f"{name}-encoder.json"})
    values = json.loads((tmp_path / "out" / main).read_text("utf-8"))
    assert max(map(len, said.splitlines())) <= 80
    words = " ".join(said.split())
    assert all(" ".join(sentence.split()) in words for sentence in values["summary"])
    figures = {file.stem for file in (tmp_path / "out").iterdir() if file.suffix == ".svg"}
    assert set(values["captions"]) == figures
    assert all(text.endswith("seed 0") for text in values["captions"].values())
    assert all(table["title"] in words for table in values["tables"])
    made_by = cli.parse(shlex.split(values["environment"]["command"])[1:])
    assert made_by == cli.parse(arguments(name, half_trained, sums_store, tmp_path / "out"))
    assert values["seed"] == 0
    assert values["model"]["sha256"] == tpt.model.checkpoint.model_hash(tpt.load(half_trained))
    if name in {"roles", "attention"}:
        assert len(values["sample"]["questions"]) == 24
        solved = tpt.load(half_trained).solve(values["sample"]["questions"])
        assert solved == values["sample"]["answers"]


def test_a_model_that_answers_nothing_still_has_the_binding_problem_put_to_it(sums_store, tmp_path):
    tpt.build("tp-transformer-tiny", d_model=32, d_ff=64, n_layers=1).save(tmp_path / "model")
    _, files = run(
        "binding", tmp_path / "out", model=tmp_path / "model", count=8
    )  # without a store
    assert {file.stem for file in files} == {"binding"}
    for name in ("roles", "surgery"):
        with pytest.raises(UserError, match=r"answers none of the 700 .*--answered false"):
            run(name, tmp_path / "out", data=sums_store, model=tmp_path / "model", count=8)


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ({"split": "extrapolate", "module": None}, "arithmetic__add_or_sub_big (extrapolate"),
        ({"split": None}, f"{MODULE} (interpolate"),
    ],
)
def test_the_first_test_split_and_its_only_module(
    given, origin, half_trained, sums_store, tmp_path
):
    source = {"data": sums_store, "model": half_trained, "count": 8, **given}
    found, _ = run("information", tmp_path / "out", **source)
    assert f"8 questions of {origin}, seed 0)" in found.context.sample.origin


def test_without_a_store_questions_are_generated(half_trained, tmp_path):
    source = {"model": half_trained, "count": 8, "seed": 3, "answered": False}
    found, _ = run("information", tmp_path / "out", **source)
    sample = found.context.sample
    assert sample.origin == f"8 questions of {MODULE} (interpolate, seed 3)"
    generated = tpt.data.generate(MODULE, split="interpolate", count=8, seed=3)
    assert sorted(sample.questions) == sorted(example.question for example in generated)
    assert "--data" not in found.context.environment["command"]
    with pytest.raises(UserError, match=f"none of the {8 * TRIES} questions of {MODULE}"):
        run("roles", tmp_path / "out", **{**source, "answered": True})


def test_an_lstm_is_refused_before_it_is_asked_anything(sums_store, tmp_path):
    tpt.build("lstm-saxton", d_hidden=8).save(tmp_path / "model")
    for name in ANALYSES:
        with pytest.raises(UserError, match="LSTM"):
            run(name, tmp_path / "out", data=sums_store, model=tmp_path / "model")


def test_surgery_at_a_place(half_trained, sums_store, tmp_path, capsys):
    asked = arguments("surgery", half_trained, sums_store, tmp_path)
    cli.main([*asked, "--at=operators"])
    assert "Encoder layer 0, operators, 24 questions" in capsys.readouterr().out
    values = json.loads((tmp_path / "surgery.json").read_text("utf-8"))
    positions = values["effects"][0]["positions"]
    for question, own in zip(values["sample"]["questions"], positions, strict=True):
        for at in own:
            assert question[at - 1] in "+-" or not question[at - 1].isdigit(), (question, at)
    assert sum(map(len, positions)) >= 24


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("--module=arithmetic__mixed", "choose another by --module: arithmetic__add_or_sub, "),
        ("--head=9", "heads 0 to 3, not 9"),
        ("--layer=7", "layers 0 to 0"),
        ("--count=0", "--count must be 1 or more"),
        ("--clusters=100000", "cannot be made of"),
        ("--vectors=other", "--vectors must be one of role, value"),
        ("--clusters=0", "clusters must be 1 or more"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    changed, message, half_trained, sums_store, tmp_path, capsys
):
    asked = arguments("roles", half_trained, sums_store, tmp_path / "out")
    with pytest.raises(SystemExit) as ended:
        cli.main([*asked, changed])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def test_the_step_is_that_of_the_model_that_was_loaded(
    half_trained, sums_store, tmp_path, monkeypatch
):
    """A run that saves a better model during the analysis."""
    best = tmp_path / "run" / "best"
    for step in (7, 8):
        shutil.copytree(half_trained, tmp_path / "run" / "best-models" / f"step-{step}")
    (tmp_path / "run" / ORIGIN).write_text("{}", "utf-8")
    best.symlink_to("best-models/step-7")

    def meanwhile(*args, **kwargs):
        best.unlink()
        best.symlink_to("best-models/step-8")
        return analyse(*args, **kwargs)

    information = import_module("tp_transformer.interpret.information")
    analyse = information.analyse
    monkeypatch.setattr(information, "analyse", meanwhile)
    run("information", tmp_path / "out", data=sums_store, model=tmp_path / "run", count=12)
    values = json.loads((tmp_path / "out" / "information.json").read_text("utf-8"))
    assert values["model"]["step"] == 7


def test_a_file_is_no_folder(half_trained, sums_store, tmp_path):
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(UserError, match="is a file"):
            run("roles", out, data=sums_store, model=half_trained)


def test_figures_without_captions_are_lower_and_the_captions_are_in_the_numbers(
    half_trained, sums_store, tmp_path
):
    source = {"data": sums_store, "model": half_trained, "count": 12}
    for caption in (True, False):
        asked = [f"--{name}={value}" for name, value in source.items()]
        out = tmp_path / str(caption)
        choice = [] if caption else ["--caption=false"]
        cli.main(
            ["interpret", "information", *asked, f"--module={MODULE}", f"--out={out}", *choice]
        )
    drawn, bare = (
        " ".join((tmp_path / str(caption) / "information.svg").read_text("utf-8").split())
        for caption in (True, False)
    )
    captions = json.loads((tmp_path / "False" / "information.json").read_text("utf-8"))["captions"]
    assert captions["information"] in drawn
    assert "analysis seed" not in bare
    assert set(drawn.split()) > set(bare.split())

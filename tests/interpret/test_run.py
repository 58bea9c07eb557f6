"""Each analysis from a folder and a store to its files, as `tpt interpret` does it."""

import json
import shutil

import pytest

import tp_transformer as tpt
from tp_transformer import UserError, cli
from tp_transformer.interpret import information
from tp_transformer.interpret.run import ANALYSES, Options, interpret

MODULE = "arithmetic__add_or_sub"
WRITTEN = {
    "roles": {"roles.json", "roles-layer0-head1.svg", "roles-structure.pdf"},
    "attention": {"attention-encoder.json", "attention-encoder-layer0.png"},
    "information": {"information.json", "information.svg"},
    "binding": {"binding.json", "binding.png", "surgery.json", "surgery.pdf"},
    "tensor-product": {"tensor-product.json", "tensor-product.svg"},
}


def arguments(name, half_trained, sums_store, out):
    chosen = [] if name in {"information", "tensor-product"} else ["--head=1"]
    return [
        "interpret",
        name,
        f"--model={half_trained}",
        f"--data={sums_store}",
        f"--out={out}",
        f"--module={MODULE}",
        "--count=24",
        *chosen,
    ]


@pytest.mark.parametrize("name", ANALYSES)
def test_an_analysis_says_what_it_found_and_writes_it(
    name, half_trained, sums_store, tmp_path, capsys
):
    cli.main(arguments(name, half_trained, sums_store, tmp_path / "out"))
    said, files = capsys.readouterr()
    assert WRITTEN[name] <= {file.name for file in (tmp_path / "out").iterdir()}
    assert {str(file) for file in (tmp_path / "out").iterdir()} == set(files.splitlines())
    (main,) = (file for file in WRITTEN[name] if file in {f"{name}.json", f"{name}-encoder.json"})
    values = json.loads((tmp_path / "out" / main).read_text("utf-8"))
    assert values["meaning"] == said.splitlines()[: len(values["meaning"])]
    assert values["seed"] == 0
    assert values["model"]["sha256"] == tpt.provenance.model_hash(tpt.load(half_trained))
    if name in {"roles", "attention"}:
        assert len(values["sample"]["questions"]) == 24
        solved = tpt.load(half_trained).solve(values["sample"]["questions"])
        assert solved == values["sample"]["answers"]


def test_two_models_beside_each_other(half_trained, sums_store, tmp_path):
    plain = tpt.build("transformer-tiny", d_model=32, d_ff=64, n_layers=1)
    plain.save(tmp_path / "plain")
    options = Options(
        data=sums_store, model=half_trained, against=tmp_path / "plain", module=MODULE, count=12
    )
    outcome = interpret("information", options, tmp_path / "out")
    assert sum(line.startswith("plain: ") for line in outcome.lines) == 4
    assert "plain" in (tmp_path / "out" / "information.json").read_text("utf-8")


def test_a_model_without_roles(sums_store, tmp_path):
    plain = tpt.build("transformer-tiny", d_model=32, d_ff=64, n_layers=1)
    plain.save(tmp_path / "plain")
    options = Options(
        data=sums_store, model=tmp_path / "plain", module=MODULE, count=8, answered=False
    )
    outcome = interpret("binding", options, tmp_path / "out")
    assert outcome.lines[-1] == "No surgery: this model has no roles."
    with pytest.raises(UserError, match="binds nothing"):
        interpret("tensor-product", options, tmp_path / "out")


def test_a_model_that_answers_nothing_still_has_the_binding_problem_put_to_it(sums_store, tmp_path):
    tpt.build("tp-transformer-tiny", d_model=32, d_ff=64, n_layers=1).save(tmp_path / "model")
    options = Options(data=sums_store, model=tmp_path / "model", module=MODULE, count=8)
    outcome = interpret("binding", options, tmp_path / "out")
    assert "No surgery: the model answers none" in outcome.lines[-1]
    assert {file.stem for file in outcome.files} == {"binding"}
    with pytest.raises(UserError, match="--answered false"):
        interpret("roles", options, tmp_path / "out")


def test_an_lstm_is_refused_before_it_is_asked_anything(sums_store, tmp_path):
    tpt.build("lstm-saxton", d_hidden=8).save(tmp_path / "model")
    options = Options(data=sums_store, model=tmp_path / "model", module=MODULE)
    for name in ANALYSES:
        with pytest.raises(UserError, match="LSTM"):
            interpret(name, options, tmp_path / "out")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"head": 99}, "heads 0 to 3"),
        ({"at": "numberz"}, "did you mean 'numbers'"),
        ({"module": "numbers__gcd"}, "has no numbers__gcd"),
        ({"clusters": 0}, "clusters must be 1 or more"),
    ],
)
def test_what_is_refused_leaves_nothing(wrong, message, half_trained, sums_store, tmp_path):
    values = {"data": sums_store, "model": half_trained, "module": MODULE, **wrong}
    with pytest.raises(UserError, match=message):
        interpret("binding", Options(**values), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_surgery_at_a_place(half_trained, sums_store, tmp_path, capsys):
    asked = arguments("binding", half_trained, sums_store, tmp_path)
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
        ("--module=numbers__gcd", "has no numbers__gcd"),
        ("--head=9", "heads 0 to 3, not 9"),
        ("--layer=7", "layers 0 to 0"),
        ("--count=0", "--count must be 1 or more"),
        ("--clusters=100000", "cannot be made of"),
        ("--vectors=other", "invalid choice"),
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


def test_a_relation_is_refused_wherever_it_is_of_no_use(half_trained, sums_store, tmp_path):
    options = Options(
        data=sums_store, model=half_trained, module=MODULE, where="decoder", relation="nonsense"
    )
    with pytest.raises(UserError, match="no relation 'nonsense'"):
        interpret("attention", options, tmp_path / "out")


def test_the_step_is_that_of_the_model_that_was_loaded(
    half_trained, sums_store, tmp_path, monkeypatch
):
    shutil.copytree(half_trained, tmp_path / "model")
    state = tmp_path / "model" / "state.json"
    state.write_text('{"step": 7}', "utf-8")

    def meanwhile(*args, **kwargs):
        state.write_text('{"step": 8}', "utf-8")
        return analyse(*args, **kwargs)

    analyse = information.analyse
    monkeypatch.setattr(information, "analyse", meanwhile)
    options = Options(data=sums_store, model=tmp_path / "model", module=MODULE, count=12)
    interpret("information", options, tmp_path / "out")
    values = json.loads((tmp_path / "out" / "information.json").read_text("utf-8"))
    assert values["model"]["step"] == 7


def test_a_file_is_no_folder(half_trained, sums_store, tmp_path):
    (tmp_path / "out").write_text("")
    options = Options(data=sums_store, model=half_trained, module=MODULE)
    with pytest.raises(UserError, match="is a file"):
        interpret("roles", options, tmp_path / "out")
    with pytest.raises(UserError, match="is a file"):
        interpret("roles", options, tmp_path / "out" / "deeper")

"""The registry of analyses: functions of the package, and verbs."""

import subprocess
import sys
from dataclasses import fields

import pytest

import tp_transformer as tpt
from commands import options
from documents import ROOT, blocks
from planted import sample
from tp_transformer import UserError
from tp_transformer.cli import verbs_of
from tp_transformer.interpret.analyses import ANALYSES

NAMES = {
    *("roles", "attention", "information", "binding"),
    *("interchange", "surgery", "tensor-product"),
}


def test_every_analysis_is_a_function_and_a_verb():
    verbs = {n.partition(" ")[2]: v for n, v in verbs_of("interpret").items() if "interpret" in n}
    assert set(ANALYSES) == set(verbs) == NAMES
    for name, analysis in ANALYSES.items():
        assert getattr(tpt.interpret, name.replace("-", "_")) is analysis
        assert verbs[name].__doc__ == f"{analysis.help}."
        helps = {option.name: option.parameter.help for option in options(("interpret", name))}
        for field in fields(analysis.options):
            assert helps[f"--{field.name}"]


def test_modules_of_an_analysis_do_not_replace_its_function():
    code = (
        "import tp_transformer as tpt\n"
        "from tp_transformer.interpret.binding import BindingResult\n"
        "from tp_transformer.interpret.roles import analysis\n"
        "import tp_transformer.interpret.roles.clusters\n"
        "for function in (tpt.interpret.roles, tpt.interpret.binding): assert callable(function)\n"
        "assert callable(analysis.analyse)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_questions_may_be_plain_texts():
    model = tpt.build("tp-transformer-tiny", d_model=32)
    texts = [f"What is {a}/{a + 3}?" for a in range(2, 6)]
    found = tpt.interpret.roles(model, texts, clusters=3, seed=4)
    assert found.context.sample.questions == tuple(texts)
    assert list(found.context.sample.answers) == model.solve(texts)
    assert found.to_json()["seed"] == 4
    assert set(found.plot()) == {f"roles-layer1-head{head}" for head in range(4)}


def test_the_python_of_its_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python", (ROOT / "docs" / "interpretation.md").read_text("utf-8"))
    exec(compile(code, "interpretation.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "analysis" / "roles.json").exists()


def test_unknown_names_are_errors():
    with pytest.raises(AttributeError, match="no attribute 'rolez'"):
        tpt.interpret.rolez  # noqa: B018
    with pytest.raises(UserError, match=r"no analysis 'rolez'.*did you mean 'roles'.*analyses are"):
        ANALYSES["rolez"]
    with pytest.raises(TypeError, match="cluster"):
        tpt.interpret.roles(None, sample(1), cluster=3)


LACKS = "this analysis needs roles, which the attention of this model lacks"
SHORT = "needs a role as long as the filler that it is bound to, which the {} binding"


@pytest.mark.parametrize(
    ("binding", "options", "name", "message"),
    [
        ("constant", {}, "interchange", LACKS),
        ("constant", {}, "surgery", LACKS),
        ("constant", {}, "tensor-product", LACKS),
        ("value", {}, "tensor-product", SHORT.format("value")),
        ("dictionary", {}, "tensor-product", SHORT.format("dictionary")),
        ("sigmoid", {"per_head": True}, "tensor-product", SHORT.format("sigmoid")),
    ],
)
def test_a_binding_without_the_roles_of_an_analysis_is_refused(binding, options, name, message):
    model = tpt.build("tp-transformer-tiny", n_layers=1, binding=binding, **options).eval()
    with pytest.raises(UserError, match=message):
        ANALYSES[name](model, ["(4/6)/(5/3)"])


@pytest.mark.parametrize(
    ("binding", "options"),
    [("constant", {}), ("value", {}), ("dictionary", {}), ("sigmoid", {"per_head": True})],
)
def test_analyses_take_roles_of_any_size_or_do_without(binding, options):
    sizes = {"n_layers": 1, "d_model": 16, "n_heads": 2}
    model = tpt.build("tp-transformer-tiny", **sizes, binding=binding, **options).eval()
    questions = ["What is 3 + 4?", "Calculate 3 - (4 - 5).", "What is 12 - 7?", "What is 8 + 1?"]
    found = tpt.interpret.roles(model, questions, clusters=3)
    assert found.vectors == ("value" if binding == "constant" else "role")
    if binding != "constant":
        assert tpt.interpret.surgery(model, questions, clusters=3).summary()
